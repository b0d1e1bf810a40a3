package apply

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/remediate"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/lab/labtest"
	"flanwatch/watcher/legacy"
	"flanwatch/watcher/nft"
)

// How often the random tests draw. The figures are chosen so that a run takes a minute; before a release they are 200, 300
// and 200.
var (
	arrangements = flag.Int("arrangements", 6, "rulesets that are purged and brought back")
	kills        = flag.Int("kills", 10, "deaths on the way")
	rounds       = flag.Int("rounds", 6, "repairs beside flanneld's own")
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "rescue":
			if err := Rescue(os.Args[2:], os.Stdin, os.Stdout); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		case "purge-here":
			os.Exit(purgeHere(os.Args[2], os.Args[3] == "live"))
		}
	}
	labtest.Main(m)
}

var (
	networks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")}
	subnets  = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:0:1::/64")}
	all      = flannel.Options{RandomFully: true, Forward: true, Masq: true}
)

// eyes read the rules of the namespace that they were opened in.
type eyes struct {
	nft    *nft.Reader
	legacy *legacy.Reader
	live   bool
	native *bool // what net-conf.json says
}

// facts reads everything; Flannel runs, or does not, as the test says.
func (e *eyes) facts() (remediate.Facts, error) {
	now := flannel.Time{Wall: time.Now(), Boot: time.Hour, Session: "test"}
	var f remediate.Facts
	f.At = now
	f.Node.Networks = flannel.Know(networks, "/run/flannel/subnet.env", now)
	f.Node.Subnets = flannel.Know(subnets, "/run/flannel/subnet.env", now)
	f.Node.IPMasq, f.Node.RandomFully = flannel.Know(true, "flag", now), flannel.Know(true, "flag", now)
	f.Node.ForwardRules = flannel.Know(true, "flag", now)
	if e.native != nil {
		f.Node.NFTables = flannel.Know(*e.native, "net-conf.json", now)
	}
	f.Links = flannel.Know([]diagnose.Link{}, "netlink", now)
	f.Procs = flannel.Know([]diagnose.Process{}, "/proc", now)
	if e.live {
		f.Procs.Value = []diagnose.Process{{PID: 7, Kind: diagnose.ProcFlanneld, Comm: "flanneld", Started: now.Add(-30 * time.Minute)}}
	}
	return e.rules(f, true)
}

func (e *eyes) rules(f remediate.Facts, old bool) (remediate.Facts, error) {
	before := f.Facts.Rules[flannel.IptablesLegacy]
	f.Facts.Rules = map[flannel.Backend]flannel.Reading[flannel.Ruleset]{}
	iptables, native, err := e.nft.Read()
	if err != nil {
		return f, err
	}
	f.Facts.Rules[flannel.IptablesNft] = flannel.Know(iptables.Clone(), "nf_tables", f.At)
	f.Facts.Rules[flannel.Nftables] = flannel.Know(native.Clone(), "nf_tables", f.At)
	f.Facts.Rules[flannel.IptablesLegacy] = flannel.Miss[flannel.Ruleset](flannel.Absent, "not loaded", "ip_tables", f.At)
	if !old {
		f.Facts.Rules[flannel.IptablesLegacy] = before
		return f, nil
	}
	if e.legacy == nil {
		if e.legacy, err = legacy.Open(); err != nil {
			e.legacy = nil
			return f, nil
		}
	}
	tables, err := e.legacy.Read(f.At)
	if err != nil {
		return f, err
	}
	f.Facts.Rules[flannel.IptablesLegacy] = flannel.Know(tables.Clone(), "ip_tables", f.At)
	return f, nil
}

func openEyes() (*eyes, error) {
	r, err := nft.Open()
	return &eyes{nft: r}, err
}

// node is a namespace with an applier in it.
type node struct {
	*labtest.Namespace
	t testing.TB
	*eyes
	state   string
	applier *Applier
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{Namespace: labtest.New(t), t: t, state: t.TempDir() + "/state"}
	if err := n.Do(func() (err error) {
		n.eyes, err = openEyes()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	n.applier = n.newApplier()
	return n
}

func (n *node) newApplier() *Applier {
	return &Applier{
		Facts: n.eyes.facts, Rules: n.eyes.rules, Store: NewStore(n.state), Root: "/", LockWait: 300 * time.Millisecond,
		Rescue: Command("rescue"), Tools: n.tools(),
	}
}

var foundTools *Tools

func (n *node) tools() *Tools {
	if foundTools == nil {
		foundTools = FindTools(context.Background(), "/")
	}
	return foundTools
}

func purge(f remediate.Facts) (remediate.Plan, []remediate.Refusal) {
	return remediate.Purge(f, remediate.Choice{})
}

func reapply(f remediate.Facts) (remediate.Plan, []remediate.Refusal) {
	return remediate.Reapply(f, remediate.Choice{})
}

func undoOf(r remediate.Receipt) Maker {
	return func(f remediate.Facts) (remediate.Plan, []remediate.Refusal) {
		return remediate.Undo(r, f, remediate.Choice{})
	}
}

// plan makes a plan that must not be refused.
func (n *node) plan(make Maker) remediate.Plan {
	n.t.Helper()
	var p remediate.Plan
	var refused []remediate.Refusal
	if err := n.Do(func() error {
		f, err := n.eyes.facts()
		if err == nil {
			p, refused = make(f)
		}
		return err
	}); err != nil {
		n.t.Fatal(err)
	}
	if len(refused) > 0 {
		n.t.Fatalf("refused: %+v", refused)
	}
	return p
}

// apply carries a plan out.
func (n *node) apply(make Maker) (remediate.Receipt, error) {
	n.t.Helper()
	return n.applyID(n.plan(make).ID, make)
}

func (n *node) applyID(id string, make Maker) (r remediate.Receipt, err error) {
	n.t.Helper()
	err = n.Do(func() error {
		var err error
		r, err = n.applier.Apply(context.Background(), id, make)
		return err
	})
	return r, err
}

// must carries a plan out and wants it verified.
func (n *node) must(make Maker) remediate.Receipt {
	n.t.Helper()
	r, err := n.apply(make)
	if err != nil {
		n.t.Fatal(err)
	}
	if r.Result != remediate.ResultVerified {
		n.t.Fatalf("result %s: %s", r.Result, r.Why)
	}
	return r
}

func (n *node) generation() (g uint32) {
	n.t.Helper()
	if err := n.Do(func() error {
		r, _, err := n.nft.Read()
		if err == nil {
			g = r.Generation
		}
		return err
	}); err != nil {
		n.t.Fatal(err)
	}
	return g
}

// programs are the four iptables of a node.
var programs = []struct {
	name string
	b    flannel.Backend
	f    flannel.Family
}{
	{"iptables-nft", flannel.IptablesNft, flannel.IPv4},
	{"ip6tables-nft", flannel.IptablesNft, flannel.IPv6},
	{"iptables-legacy", flannel.IptablesLegacy, flannel.IPv4},
	{"ip6tables-legacy", flannel.IptablesLegacy, flannel.IPv6},
}

// save is iptables-save of both backends and families: with counters, or without them and with nft's listing, where the
// counters of a rule that came back are those it went with.
func (n *node) save(exact bool) string {
	n.t.Helper()
	var b strings.Builder
	for _, p := range programs {
		args := ""
		if exact {
			args = " -c"
		}
		fmt.Fprintf(&b, "== %s\n", p.name)
		table := ""
		for line := range strings.Lines(n.Shell(p.name + "-save" + args + " 2>/dev/null")) {
			if strings.HasPrefix(line, "*") {
				table = strings.TrimSpace(line)
			}
			if strings.HasPrefix(line, "#") {
				continue
			}
			if strings.HasPrefix(line, ":") && !exact { // policy counters move with our own traffic
				line, _, _ = strings.Cut(line, "[")
				line += "\n"
			}
			b.WriteString(table + " " + line)
		}
	}
	if !exact {
		b.WriteString(n.Must("nft list ruleset"))
	}
	return b.String()
}

// arrangement is a random ruleset with Flannel's rules of every generation in it.
type arrangement struct {
	*rand.Rand
	foreign int // rules of others in each of the four programs
}

// save gives the text of one program's restore, and the lines of it that are Flannel's.
func (a arrangement) save(b flannel.Backend, f flannel.Family) (text string, ours []string) {
	var out strings.Builder
	for _, table := range []string{flannel.TableNat, flannel.TableFilter} {
		base := flannel.ChainPostrouting
		if table == flannel.TableFilter {
			base = flannel.ChainForward
		}
		lines := a.foreignBase(table, base, f)
		inner := a.foreignInner(f)
		flannels := a.flannels(b, f, table)
		for _, l := range flannels.base {
			at := a.IntN(len(lines) + 1)
			lines = append(lines[:at], append([]string{l}, lines[at:]...)...)
		}
		fmt.Fprintf(&out, "*%s\n:%s ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:cali-%s - [0:0]\n:DOCKER-USER - [0:0]\n", table, base, base)
		for _, c := range flannels.chains {
			fmt.Fprintf(&out, ":%s - [0:0]\n", c)
		}
		for _, l := range append(append(lines, inner...), flannels.own...) {
			fmt.Fprintf(&out, "[%d:%d] %s\n", a.IntN(1000), a.IntN(100000), l)
		}
		out.WriteString("COMMIT\n")
		ours = append(append(ours, flannels.base...), flannels.own...)
	}
	return out.String(), ours
}

type flannels struct{ base, own, chains []string }

// flannels gives Flannel's lines in one table: chains of a random generation, jumps once or several times, and the rules of
// older generations in the base chain.
func (a arrangement) flannels(b flannel.Backend, f flannel.Family, table string) flannels {
	var out flannels
	gens := []flannel.Generation{flannel.GenV0110, flannel.GenV0162}
	own := []flannel.Generation{flannel.GenV0200, flannel.GenV0202, flannel.GenV0210}
	gens = append(gens, own[a.IntN(len(own))])
	for _, g := range gens {
		for _, w := range flannel.Expected(networks, subnets, g, all, b, f) {
			if w.ID.Table != table {
				continue
			}
			for _, r := range w.Rules {
				line := fmt.Sprintf("-A %s %s", w.ID.Name, r)
				if w.Shared {
					out.base = append(out.base, line)
				} else {
					out.own = append(out.own, line)
				}
			}
			if !w.Shared {
				out.chains = append(out.chains, w.ID.Name)
				for range 1 + a.IntN(2) {
					out.base = append(out.base, fmt.Sprintf("-A %s %s", w.HookChain.Name, w.Hook))
				}
			}
		}
	}
	return out
}

func (a arrangement) net(f flannel.Family) string {
	if f == flannel.IPv6 {
		return fmt.Sprintf("fd%02x:%x::/64", a.IntN(256), a.IntN(65536))
	}
	return fmt.Sprintf("172.%d.%d.0/24", 16+a.IntN(16), a.IntN(256))
}

func (a arrangement) foreignBase(table, base string, f flannel.Family) []string {
	var out []string
	for range a.foreign / 4 {
		switch k := a.IntN(5); {
		case k == 0:
			out = append(out, fmt.Sprintf(`-A %s -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`, base))
		case k == 1:
			out = append(out, fmt.Sprintf(`-A %s -m comment --comment "cali:%x" -j cali-%s`, base, a.Uint64(), base))
		case k == 2 && table == flannel.TableNat:
			out = append(out, fmt.Sprintf("-A %s -s %s ! -o docker%d -j MASQUERADE", base, a.net(f), a.IntN(9)))
		case k == 3:
			out = append(out, fmt.Sprintf("-A %s -m conntrack --ctstate RELATED,ESTABLISHED -j DOCKER-USER", base))
		default:
			out = append(out, fmt.Sprintf("-A %s -s %s -j RETURN", base, a.net(f)))
		}
	}
	return out
}

func (a arrangement) foreignInner(f flannel.Family) []string {
	var out []string
	for i := range a.foreign / 4 {
		dst := strings.Replace(a.net(f), "/64", "/128", 1)
		dst = strings.Replace(dst, ".0/24", fmt.Sprintf(".%d/32", 1+a.IntN(254)), 1)
		out = append(out, fmt.Sprintf(`-A KUBE-SERVICES -d %s -p tcp -m comment --comment "default/svc-%d cluster IP" -m tcp --dport %d -j RETURN`,
			dst, i, 1+a.IntN(60000)))
	}
	return out
}

// nativeTables are Flannel's own tables as nft prints them.
const nativeTables = `table ip flannel-ipv4 {
	comment "rules for flannel-ipv4"
	chain postrtg {
		comment "chain to manage traffic masquerading by flannel"
		type nat hook postrouting priority 100; policy accept;
		meta mark 0x00004000 return
		ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return
		ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return
		ip saddr != 10.244.1.0/24 ip daddr 10.244.0.0/16 return
		ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
		ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random
	}
	chain forward {
		comment "chain to accept flannel traffic"
		type filter hook forward priority 0; policy accept;
		ip saddr 10.244.0.0/16 accept
		ip daddr 10.244.0.0/16 accept
	}
}
table ip6 flannel-ipv6 {
	comment "rules for flannel-ipv6"
}
`

// arrange fills the namespace, and gives the lines that are Flannel's.
func (n *node) arrange(a arrangement, native bool) map[string]bool {
	n.t.Helper()
	ours := map[string]bool{}
	for _, p := range programs {
		text, lines := a.save(p.b, p.f)
		args := []string{"--counters"}
		n.Feed(text, p.name+"-restore", args...)
		for _, l := range lines {
			ours[l] = true
		}
	}
	if native {
		n.Feed(nativeTables, "nft", "-f", "-")
	}
	return ours
}
