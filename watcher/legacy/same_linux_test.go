package legacy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"flanwatch/flannel"
	"flanwatch/watcher/lab/labtest"
)

// tools are the programs of one family.
type tools struct {
	family   flannel.Family
	iptables string
}

var both = []tools{
	{flannel.IPv4, "iptables-legacy"},
	{flannel.IPv6, "ip6tables-legacy"},
}

// saved gives the rules of a chain as the save tool prints them: "[packets:bytes] text".
func saved(n *labtest.Namespace, tool, table, chain string) []string {
	var out []string
	for line := range strings.Lines(n.Must(tool + "-save -c -t " + table)) {
		counts, rest, ok := strings.Cut(strings.TrimSpace(line), " -A "+chain)
		if ok && (rest == "" || rest[0] == ' ') {
			out = append(out, strings.TrimSpace(counts+rest))
		}
	}
	return out
}

// counted gives the rules of a chain in the same form.
func counted(c *flannel.Chain) []string {
	var out []string
	for _, e := range c.Entries {
		out = append(out, strings.TrimSpace(fmt.Sprintf("[%d:%d] %s", e.Counter.Packets, e.Counter.Bytes, e.Rule)))
	}
	return out
}

func compare(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s\n got:\n\t%s\nwant:\n\t%s", what, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// shapes are rules that iptables-save prints back word for word, %[1]s and %[2]s being networks of the family.
var shapes = []string{
	`-s %[1]s -d %[2]s -j ACCEPT`,
	`! -s %[1]s ! -d %[2]s -j DROP`,
	`-i eth0 -o eth1 -j RETURN`,
	`! -i cni+ ! -o veth+ -j ACCEPT`,
	`-i a -o abcdefghijklmno -j ACCEPT`,
	`-i abcdefghijklmn+ -j ACCEPT`,
	`-p tcp -j ACCEPT`,
	`! -p udp -j ACCEPT`,
	`-p esp -j ACCEPT`,
	`-p sctp -j ACCEPT`,
	`-p 200 -j ACCEPT`,
	`-m mark --mark 0x4000/0x4000 -j RETURN`,
	`-m mark ! --mark 0x1 -j RETURN`,
	`-m comment --comment "two words, a \" and a \\" -j RETURN`,
	`-m comment --comment plain -j RETURN`,
	`-m comment --comment first -m comment --comment second -j RETURN`,
	`-s %[1]s -m comment --comment "only counts"`,
	``,
	`-s %[1]s -i eth0 -p udp -m comment --comment "a bit of all" -m mark --mark 0x1/0xff -j other`,
	`-g other`,
	`-j other`,
}

func TestRulesAndCountersAreThoseOfIptablesSave(t *testing.T) {
	labtest.RequireTools(t, "iptables-legacy-save", "ip6tables-legacy-save")
	nets := map[flannel.Family][2]string{flannel.IPv4: {"10.244.0.0/16", "10.244.1.7/32"}, flannel.IPv6: {"fd00:244::/56", "fd00:244:0:1::7/128"}}
	for _, tool := range both {
		t.Run(tool.iptables, func(t *testing.T) {
			n := labtest.New(t)
			var text strings.Builder
			text.WriteString("*filter\n:FORWARD DROP [0:0]\n:FLANNEL-FWD - [0:0]\n:other - [0:0]\n-A FORWARD -j FLANNEL-FWD\n")
			for i, s := range shapes {
				if strings.Contains(s, "%") {
					s = fmt.Sprintf(s, nets[tool.family][0], nets[tool.family][1])
				}
				fmt.Fprintf(&text, "[%d:%d] -A FLANNEL-FWD %s\n", i, i*1_000_000_007, s)
			}
			text.WriteString("COMMIT\n")
			n.Feed(text.String(), tool.iptables+"-restore", "-c")
			rs := read(t, open(t, n))
			want := saved(n, tool.iptables, "filter", "FLANNEL-FWD")
			if len(want) != len(shapes) {
				t.Errorf("iptables-save printed %d of %d rules", len(want), len(shapes))
			}
			compare(t, "FLANNEL-FWD", counted(rs.Chain(id(tool.family, "filter", "FLANNEL-FWD"))), want)
			if got := rs.Chain(id(tool.family, "filter", "FORWARD")).Base.Policy; got != "drop" {
				t.Errorf("policy of FORWARD is %q", got)
			}
		})
	}
}

// foreign are rules that Flannel never writes and that read as iptables-save prints them. The tables are nat for
// targets that translate, else filter.
var foreign = []string{
	`-p tcp -m tcp --dport 80 -j ACCEPT`,
	`-p tcp -m tcp ! --sport 1024:65535 --tcp-flags FIN,SYN,RST,ACK SYN -j ACCEPT`,
	`-p udp -m udp --sport 53 ! --dport 1:100 -j ACCEPT`,
	`-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`,
	`-m conntrack ! --ctstate NEW,DNAT -j ACCEPT`,
	`-m addrtype ! --src-type LOCAL --dst-type UNICAST,MULTICAST --limit-iface-in -j ACCEPT`,
	`-j MARK --set-xmark 0x4000/0x4000`,
	`-p tcp -j REJECT --reject-with tcp-reset`,
	`-p tcp -j DNAT --to-destination ADDR:8080`,
	`-p tcp -j DNAT --to-destination ADDR --random --persistent`,
	`-p udp -j MASQUERADE --to-ports 1024-2048 --random`,
	`-j SNAT --to-source ADDR`,
	`-p tcp -m multiport ! --dports 80,90:95 -j LOG --log-prefix "a b "`,
	`-m state --state NEW -m connmark ! --mark 0x1/0x3 -j NFLOG --nflog-group 3`,
	`-m statistic --mode random --probability 0.50000000000 -m physdev --physdev-is-bridged -j ACCEPT`,
	`-m statistic --mode nth --every 3 --packet 1 -j ACCEPT`,
}

func TestForeignRulesAreUnderstood(t *testing.T) {
	labtest.RequireTools(t, "iptables-legacy-save", "ip6tables-legacy-save")
	for _, tool := range both {
		t.Run(tool.iptables, func(t *testing.T) {
			n := labtest.New(t)
			addr := map[flannel.Family]string{flannel.IPv4: "10.0.0.1", flannel.IPv6: "fd00::1"}[tool.family]
			withPort := strings.TrimSuffix(netip.AddrPortFrom(netip.MustParseAddr(addr), 0).String(), "0")
			filter, nat := "*filter\n", "*nat\n:FLANNEL-POSTRTG - [0:0]\n"
			for _, s := range foreign {
				s = strings.ReplaceAll(strings.ReplaceAll(s, "ADDR:", withPort), "ADDR", addr)
				switch {
				case strings.Contains(s, "-j DNAT"): // in a chain that nothing leads to, else the kernel refuses it
					nat += "-A FLANNEL-POSTRTG " + s + "\n"
				case strings.Contains(s, "--to-"):
					nat += "-A POSTROUTING " + s + "\n"
				default:
					filter += "-A FORWARD " + s + "\n"
				}
			}
			n.Feed(filter+"COMMIT\n"+nat+"COMMIT\n", tool.iptables+"-restore")
			rs := read(t, open(t, n))
			for _, c := range rs.Chains {
				if !c.Present {
					continue
				}
				compare(t, c.ID.String(), counted(&c), saved(n, tool.iptables, c.ID.Table, c.ID.Name))
				for _, e := range c.Entries {
					if e.Rule.Opaque() {
						t.Errorf("not understood: %s", e.Rule)
					}
				}
			}
		})
	}
}

// restoreText is the input for iptables-restore that makes chains as wanted.
func restoreText(wanted []flannel.Wanted) string {
	var b strings.Builder
	for _, w := range wanted {
		fmt.Fprintf(&b, "*%s\n", w.ID.Table)
		if w.HookChain != (flannel.ChainID{}) {
			fmt.Fprintf(&b, ":%s - [0:0]\n-A %s %s\n", w.ID.Name, w.HookChain.Name, w.Hook)
		}
		for _, r := range w.Rules {
			fmt.Fprintf(&b, "-A %s %s\n", w.ID.Name, r)
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

func TestEveryGenerationReadsAsExpected(t *testing.T) {
	labtest.RequireTools(t, "iptables-legacy-save", "ip6tables-legacy-save")
	prefixes := func(list ...string) []netip.Prefix {
		var out []netip.Prefix
		for _, s := range list {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	networks := prefixes("10.244.0.0/16", "10.96.0.0/13", "fd00:244::/56", "fd00:245::/56")
	subnets := prefixes("10.244.1.0/24", "fd00:244:0:1::/64")
	n := labtest.New(t)
	n.Must("iptables-legacy -S") // ip_tables has to have a table for its list to be made
	r := open(t, n)
	for _, tool := range both {
		for _, g := range flannel.Generations {
			for _, o := range []flannel.Options{{Masq: true, Forward: true}, {Masq: true, Forward: true, RandomFully: true}} {
				name := fmt.Sprintf("%s %s fully=%v", tool.family, g, o.RandomFully)
				wanted := flannel.Expected(networks, subnets, g, o, flannel.IptablesLegacy, tool.family)
				if len(wanted) == 0 {
					continue
				}
				n.Feed(restoreText(wanted), tool.iptables+"-restore")
				rs := read(t, r)
				for _, w := range wanted {
					c := rs.Chain(w.ID)
					compare(t, name+" "+w.ID.String(), counted(c), saved(n, tool.iptables, w.ID.Table, w.ID.Name))
					if len(c.Entries) != len(w.Rules) {
						t.Errorf("%s: %d rules, want %d", name, len(c.Entries), len(w.Rules))
						continue
					}
					for i, e := range c.Entries {
						if !e.Rule.Equal(w.Rules[i]) {
							t.Errorf("%s %s rule %d\n got %#v\nwant %#v", name, w.ID, i+1, e.Rule, w.Rules[i])
						}
					}
					if w.HookChain != (flannel.ChainID{}) {
						compare(t, name+" hook", texts(t, rs, w.HookChain), []string{w.Hook.String()})
					}
				}
			}
		}
	}
}
