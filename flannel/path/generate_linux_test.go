package path_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"flanwatch/flannel"
	"flanwatch/flannel/path"
)

// ruleset is a generated state of the node: tables of both iptables in both families, and native tables.
type ruleset struct {
	saves  []save
	native []native
}

// save is what one iptables-restore gets.
type save struct {
	backend flannel.Backend
	family  flannel.Family
	text    string
}

// native is a table of nft.
type native struct {
	id     flannel.TableID
	chains []flannel.Chain
	set    []netip.Prefix
	fates  map[netip.Prefix]string // elements of a map from addresses to verdicts
	inet   bool                    // the table is of the family inet, which both address families pass
}

func (g ruleset) String() string {
	var b strings.Builder
	for _, s := range g.saves {
		fmt.Fprintf(&b, "# %v %v\n%s", s.backend, s.family, s.text)
	}
	for _, n := range g.native {
		b.WriteString(n.script())
	}
	return b.String()
}

func (n native) script() string {
	var b strings.Builder
	family := n.id.Family.String()
	name := n.id.Name
	if n.inet {
		family, name = "inet", name+n.id.Family.Short()
	}
	fmt.Fprintf(&b, "table %s %s {\n", family, name)
	kind := map[flannel.Family]string{flannel.IPv4: "ipv4_addr", flannel.IPv6: "ipv6_addr"}[n.id.Family]
	var elements []string
	for _, p := range n.set {
		elements = append(elements, p.String())
	}
	fmt.Fprintf(&b, "set peers { type %s; flags interval; elements = { %s }; }\n", kind, strings.Join(elements, ", "))
	n.maps(&b, kind)
	for _, c := range n.chains {
		fmt.Fprintf(&b, "chain %s {", c.ID.Name)
		if c.Base != nil {
			fmt.Fprintf(&b, " type %s hook %s priority %d; policy %s;", c.Base.Type, c.Base.Hook, c.Base.Priority, c.Base.Policy)
		}
		b.WriteString("\n")
		for _, e := range c.Entries {
			b.WriteString("\t" + e.Rule.Nft(n.id.Family) + "\n")
		}
		b.WriteString("}\n")
	}
	return b.String() + "}\n"
}

// maps writes the maps to verdicts.
func (n native) maps(b *strings.Builder, kind string) {
	if len(n.fates) == 0 {
		return
	}
	fmt.Fprint(b, "chain last { }\n") // that verdicts lead to
	var fates, services []string
	for _, p := range slices.SortedFunc(maps.Keys(n.fates), func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) }) {
		fates = append(fates, p.String()+" : "+n.fates[p])
		if p.IsSingleIP() {
			services = append(services, fmt.Sprintf("%v . udp . 443 : %s, %v . udp . 7000 : accept", p.Addr(), n.fates[p], p.Addr()))
		}
	}
	fmt.Fprintf(b, "map fates { type %s : verdict; flags interval; elements = { %s }; }\n", kind, strings.Join(fates, ", "))
	if len(services) > 0 {
		services = []string{"elements = { " + strings.Join(services, ", ") + " };"}
	}
	fmt.Fprintf(b, "map services { type %s . inet_proto . inet_service : verdict; %s }\n", kind, strings.Join(services, ""))
}

// load puts the rule set in place of the one before. The programs run side by side, as most of their time is waiting.
func (w *world) load(g ruleset) {
	w.t.Helper()
	var running []*exec.Cmd
	var outputs []*strings.Builder
	start := func(text, name string, args ...string) {
		cmd, out := exec.Command(name, args...), &strings.Builder{}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(text), out, out
		if err := w.node.Start(cmd); err != nil {
			w.t.Fatal(err)
		}
		running, outputs = append(running, cmd), append(outputs, out)
	}
	for _, s := range g.saves {
		tool := map[flannel.Family]string{flannel.IPv4: "iptables", flannel.IPv6: "ip6tables"}[s.family]
		start(s.text, tool+map[flannel.Backend]string{
			flannel.IptablesNft: "-nft-restore", flannel.IptablesLegacy: "-legacy-restore",
		}[s.backend], "-w")
	}
	var script strings.Builder
	for _, f := range flannel.Families {
		for i := range mostNative {
			fmt.Fprintf(&script, "table %v native%d\ndelete table %[1]v native%[2]d\n", f, i)
			fmt.Fprintf(&script, "table inet native%d%s\ndelete table inet native%[1]d%[2]s\n", i, f.Short())
		}
	}
	for _, n := range g.native {
		script.WriteString(n.script())
	}
	start(script.String(), "nft", "-f", "-")
	for i, cmd := range running {
		if err := cmd.Wait(); err != nil {
			w.t.Fatalf("%v: %v: %s\n%s", cmd.Args, err, outputs[i], g)
		}
	}
}

// tables is what the evaluator is given of the rule set as it was written; false where that cannot be put together without
// reading it back: a table of the family inet holds rules that nft adds conditions to.
func (g ruleset) tables(t testing.TB) (path.Tables, bool) {
	t.Helper()
	out := path.Tables{Sets: map[path.SetID]path.Set{{Name: "peers4"}: {Prefixes: peers4}, {Name: "peers6"}: {Prefixes: peers6}}}
	for _, s := range g.saves {
		rs, err := flannel.ParseSave(s.text, s.backend, s.family)
		if err != nil {
			t.Fatal(err)
		}
		out.Chains = append(out.Chains, rs.Chains...)
	}
	for _, n := range g.native {
		if n.inet || len(n.fates) > 0 {
			return out, false
		}
		out.Chains = append(out.Chains, n.chains...)
		out.Sets[path.SetID{Table: n.id, Name: "peers"}] = path.Set{Prefixes: n.set}
	}
	return out, true
}

// peers4 and peers6 are in two sets of ipset, which are there all the time.
var peers4, peers6 = prefixes("10.244.1.0/24", "192.0.2.99/32"), prefixes("fd00:244:0:1::/64", "2001:db8::99/128")

const mostNative = 2

// generator makes rules at random, of conditions that often hold.
type generator struct {
	*rand.Rand
	family  flannel.Family
	backend flannel.Backend
	table   string
	hook    string
	inet    bool
	mapped  bool // there are maps to verdicts
}

func generate(r *rand.Rand) ruleset {
	var out ruleset
	for _, f := range flannel.Families {
		for _, b := range []flannel.Backend{flannel.IptablesNft, flannel.IptablesLegacy} {
			g := generator{Rand: r, family: f, backend: b}
			out.saves = append(out.saves, save{b, f, g.save()})
		}
		for i := range r.IntN(mostNative + 1) {
			g := generator{Rand: r, family: f, backend: flannel.Nftables}
			out.native = append(out.native, g.native(fmt.Sprintf("native%d", i)))
		}
	}
	return out
}

var builtin = []struct {
	table string
	hooks []string
}{
	{"raw", []string{"PREROUTING", "OUTPUT"}},
	{"mangle", []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}},
	{"nat", []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}},
	{"filter", []string{"INPUT", "FORWARD", "OUTPUT"}},
}

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

func pick[T any](g *generator, list ...T) T { return list[g.IntN(len(list))] }

// save writes all tables of an iptables, each chain with two more that it can lead to.
func (g *generator) save() string {
	var b strings.Builder
	for _, t := range builtin {
		g.table = t.table
		fmt.Fprintf(&b, "*%s\n", t.table)
		var rules strings.Builder
		for _, hook := range t.hooks {
			policy := "ACCEPT"
			if t.table == "filter" && g.chance(6) {
				policy = "DROP"
			}
			fmt.Fprintf(&b, ":%s %s [0:0]\n", hook, policy)
			g.hook = strings.ToLower(hook)
			for i, name := range []string{hook, hook + "-1", hook + "-2"} {
				if i > 0 {
					fmt.Fprintf(&b, ":%s - [0:0]\n", name)
				}
				for _, rule := range g.rules(hook, i) {
					fmt.Fprintf(&rules, "-A %s %s\n", name, rule)
				}
			}
		}
		b.WriteString(rules.String() + "COMMIT\n")
	}
	return b.String()
}

// rules gives the rules of a base chain (level 0) or of one below it, which can jump to those further down.
func (g *generator) rules(base string, level int) []string {
	n := g.IntN(3)
	if g.table == "nat" && g.hook == "postrouting" || g.hook == "forward" {
		n = 1 + g.IntN(4)
	}
	var out []string
	for range n {
		parts := g.matches()
		target := g.target(base, level)
		if strings.Contains(target, ":7000") && !strings.Contains(strings.Join(parts, " "), "-p udp") {
			parts = append([]string{"-p udp"}, parts...)
		}
		out = append(out, strings.Join(append(dedupe(parts), target), " "))
	}
	return out
}

func dedupe(parts []string) []string {
	var out []string
	seen := map[string]bool{}
	for _, p := range parts {
		key := strings.Join(strings.Fields(strings.TrimPrefix(p, "! "))[:1], " ")
		if key == "-m" {
			key = strings.Join(strings.Fields(p)[:2], " ")
		}
		if !seen[key] {
			seen[key] = true
			out = append(out, p)
		}
	}
	return out
}

func (g *generator) matches() []string {
	var out []string
	for range g.IntN(3) {
		out = append(out, g.match())
	}
	if len(out) == 0 && g.chance(50) {
		out = append(out, g.match())
	}
	return out
}

func (g *generator) not() string {
	if g.chance(30) {
		return "! "
	}
	return ""
}

func (g *generator) prefix() string {
	if g.family == flannel.IPv6 {
		return pick(g, "fd00:244::/48", "fd00:244:0:1::/64", "fd00:244:0:2::/64", "fd00:77::/64", "2001:db8::99/128", "fd00:244:0:1::2/128",
			"2001:db8::/61", "fd00::/13")
	}
	return pick(g, "10.244.0.0/16", "10.244.1.0/24", "10.244.2.0/24", "10.77.0.0/24", "192.0.2.99/32", "10.244.1.2/32", "10.0.0.0/9", "192.0.2.0/25")
}

func (g *generator) match() string {
	in := g.hook == "prerouting" || g.hook == "input" || g.hook == "forward"
	out := g.hook == "forward" || g.hook == "output" || g.hook == "postrouting"
	for {
		switch g.IntN(15) {
		case 0, 1:
			return g.not() + "-s " + g.prefix()
		case 2, 3:
			return g.not() + "-d " + g.prefix()
		case 4:
			if in {
				return g.not() + "-i " + pick(g, "cni0", "eth0", "flannel.1", "cali+", "eth+", "c+")
			}
		case 5:
			if out {
				return g.not() + "-o " + pick(g, "cni0", "eth0", "flannel.1", "cali+", "eth+", "flannel.+")
			}
		case 6:
			return g.not() + "-p " + pick(g, "udp", "tcp")
		case 7:
			return "-p udp -m udp " + g.not() + pick(g, "--dport 443", "--dport 1:1023", "--dport 7000", "--sport 20000:40000")
		case 8:
			return "-p udp -m multiport " + g.not() + pick(g, "--dports 443,7000", "--dports 53,443", "--sports 1:1024")
		case 9:
			return "-m conntrack " + g.not() + "--ctstate " + pick(g, "NEW", "RELATED,ESTABLISHED", "INVALID", "NEW,UNTRACKED", "UNTRACKED")
		case 10:
			mask := pick(g, "", "/0x1", "/0x3", "/0x4000")
			return "-m mark " + g.not() + "--mark " + map[string]string{
				"": pick(g, "0x0", "0x1"), "/0x1": "0x1/0x1", "/0x3": "0x2/0x3", "/0x4000": "0x4000/0x4000",
			}[mask]
		case 11:
			return "-m addrtype " + g.not() + pick(g, "--dst-type LOCAL", "--src-type LOCAL", "--dst-type UNICAST")
		case 12:
			if g.backend != flannel.Nftables {
				if g.chance(40) {
					return "-m set " + g.not() + "--match-set " + "peers" + g.family.Short()[1:] + " " + pick(g, "src", "dst")
				}
				if g.hook == "prerouting" && g.table != "nat" && g.chance(30) {
					return "-m rpfilter" + pick(g, "", " --invert", " --validmark", " --loose --invert")
				}
				return pick(g, `-m comment --comment "x y"`, "-m connmark --mark 0x1/0x1", "-m connmark ! --mark 0x0/0x1",
					"-m statistic --mode random --probability 0.00000000000", "-m physdev --physdev-is-bridged")
			}
			return "-m set " + g.not() + "--match-set @peers " + pick(g, "src", "dst")
		case 13:
			if g.backend != flannel.Nftables && g.chance(10) {
				return pick(g, "-m statistic --mode random --probability 0.50000000000", "-m limit --limit 5/min",
					"-m conntrack --ctdir ORIGINAL")
			}
		case 14:
			if g.backend == flannel.Nftables {
				return "-m conntrack " + g.not() + "--ctstatus " + pick(g, "DNAT", "SNAT")
			}
			return "-m conntrack " + g.not() + "--ctstate " + pick(g, "DNAT", "SNAT", "NEW,DNAT")
		}
	}
}

// rejects tells where the kernel lets a rule answer.
func (g *generator) rejects() bool {
	return g.hook == "input" || g.hook == "forward" || g.hook == "output"
}

func (g *generator) address() string {
	if g.family == flannel.IPv6 {
		return pick(g, "2001:db8::99", "fd00:244:0:3::2", "fd00:244:0:1::2", "2001:db8::10")
	}
	return pick(g, "192.0.2.99", "10.244.3.2", "10.244.1.2", "192.0.2.10")
}

// translated is an address that nobody has, as no end takes a packet from its own.
func (g *generator) translated() string {
	if g.family == flannel.IPv6 {
		return pick(g, "2001:db8::77", "fd00:244:0:9::9")
	}
	return pick(g, "192.0.2.77", "10.244.9.9")
}

func (g *generator) target(base string, level int) string {
	for {
		switch n := g.IntN(14); {
		case n == 4 && g.inet, n == 7 && g.inet:
		case n < 2 && level < 2 && !(n == 1 && g.mapped):
			return pick(g, "-j ", "-j ", "-g ") + fmt.Sprintf("%s-%d", base, level+1+g.IntN(2-level))
		case n == 1 && g.mapped && g.chance(60):
			return "-j VMAP --map " + pick(g, "@fates src", "@fates dst", "@services dst,proto,dport", "@services src,proto,dport")
		case n == 2:
			return "-j ACCEPT"
		case n == 3:
			return "-j RETURN"
		case n == 4 && g.table != "nat" && g.chance(15):
			return "-j DROP"
		case n == 4 && g.table == "filter" && g.rejects() && g.chance(25):
			return "-j REJECT --reject-with " + map[flannel.Family]string{
				flannel.IPv4: "icmp-port-unreachable", flannel.IPv6: "icmp6-port-unreachable",
			}[g.family]
		case n == 5, n == 6 && g.table == "mangle":
			return "-j MARK --set-xmark " + pick(g, "0x1/0x1", "0x0/0x3", "0x4000/0x4000", "0x2/0xffffffff", "0x2/0x0")
		case n == 6 && g.table == "raw":
			return map[bool]string{true: "-j NOTRACK", false: "-j CT --notrack"}[g.backend == flannel.Nftables]
		case n == 7 && g.table == "nat" && (g.hook == "prerouting" || g.hook == "output") && g.chance(40):
			to := g.address()
			if g.chance(40) {
				to = map[flannel.Family]string{flannel.IPv4: to, flannel.IPv6: "[" + to + "]"}[g.family] + ":7000"
			}
			return "-j DNAT --to-destination " + to
		case n >= 7 && g.table == "nat" && g.hook == "postrouting":
			if g.inet {
				return "-j MASQUERADE"
			}
			return pick(g, "-j MASQUERADE", "-j MASQUERADE --random-fully", "-j MASQUERADE", "-j SNAT --to-source "+g.translated())
		case n == 8 && g.backend != flannel.Nftables:
			if g.table == "mangle" {
				return pick(g, "-j CONNMARK --set-xmark 0x1/0x1", "-j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff",
					"-j CONNMARK --save-mark --nfmask 0x3 --ctmask 0x3")
			}
			return "-j NFLOG --nflog-group 9"
		case n == 9 && g.table == "mangle" && g.backend != flannel.Nftables && g.chance(20):
			return map[flannel.Family]string{flannel.IPv4: "-j TTL --ttl-set ", flannel.IPv6: "-j HL --hl-set "}[g.family] + pick(g, "1", "9")
		}
	}
}

// native makes a table of nft with up to four base chains, at priorities of others' tables and between them.
func (g *generator) native(name string) native {
	n := native{id: flannel.TableID{Backend: flannel.Nftables, Family: g.family, Name: name}}
	for range 1 + g.IntN(2) {
		n.set = append(n.set, netip.MustParsePrefix(pick(g, map[flannel.Family][]string{
			flannel.IPv4: {"10.244.1.0/24", "10.77.0.0/24"}, flannel.IPv6: {"fd00:244:0:1::/64", "fd00:77::/64"},
		}[g.family]...)))
	}
	if len(n.set) == 2 && n.set[0] == n.set[1] {
		n.set = n.set[:1]
	}
	if g.mapped = g.chance(40); g.mapped {
		n.fates = map[netip.Prefix]string{}
		for range 1 + g.IntN(3) {
			n.fates[netip.MustParsePrefix(pick(g, map[flannel.Family][]string{
				flannel.IPv4: {"10.244.1.0/24", "10.77.0.0/24", "192.0.2.99/32", "10.244.2.2/32", "255.255.255.0/24"},
				flannel.IPv6: {"fd00:244:0:1::/64", "fd00:77::/64", "2001:db8::99/128", "fd00:244:0:2::2/128", "ffff::/16"},
			}[g.family]...))] = pick(g, "accept", "return", "continue", "goto last", "jump last", "jump last", "drop")
		}
		n.chains = append(n.chains, flannel.Chain{ID: flannel.ChainID{Backend: g.backend, Family: g.family, Table: name, Name: "last"}, Present: true})
		if g.chance(50) {
			n.chains[0].Entries = []flannel.Entry{{Rule: flannel.NewRule(flannel.Target{Kind: flannel.TargetAccept})}}
		}
	}
	if n.inet = g.chance(25); n.inet {
		g.inet = true
	}
	for i := range 1 + g.IntN(4) {
		base := g.base()
		g.hook, g.table = base.Hook, map[string]string{"nat": "nat", "filter": "filter"}[base.Type]
		if base.Type == "filter" && base.Priority < -200 {
			g.table = "raw"
		} else if base.Type == "filter" && base.Priority != 0 {
			g.table = "mangle"
		}
		for level := range 3 {
			c := flannel.Chain{ID: flannel.ChainID{Backend: g.backend, Family: g.family, Table: name, Name: fmt.Sprintf("c%d", i)}, Present: true}
			if level == 0 {
				c.Base = &base
			} else {
				c.ID.Name += fmt.Sprintf("-%d", level)
			}
			for _, text := range g.rules(fmt.Sprintf("c%d", i), level) {
				rule, err := flannel.ParseRule(text)
				if err != nil || rule.Opaque() {
					panic(fmt.Sprint(text, err))
				}
				c.Entries = append(c.Entries, flannel.Entry{Rule: rule})
			}
			n.chains = append(n.chains, c)
		}
	}
	return n
}

func (g *generator) base() flannel.BaseChain {
	b := flannel.BaseChain{Type: "filter", Policy: "accept"}
	b.Hook = pick(g, "prerouting", "input", "forward", "forward", "output", "postrouting", "postrouting")
	b.Priority = pick[int32](g, -300, -150, 0, 0, 10, 50)
	if b.Priority == -300 && b.Hook != "prerouting" && b.Hook != "output" {
		b.Priority = -10
	}
	switch {
	case (b.Hook == "postrouting" || b.Hook == "input") && g.chance(60):
		b.Type, b.Priority = "nat", pick[int32](g, 90, 100, 100, 110)
	case (b.Hook == "prerouting" || b.Hook == "output") && g.chance(40):
		b.Type, b.Priority = "nat", pick[int32](g, -110, -100, -90)
	case g.chance(5):
		b.Policy = "drop"
	}
	return b
}
