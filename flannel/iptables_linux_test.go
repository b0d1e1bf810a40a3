package flannel_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"flanwatch/flannel"
	"flanwatch/watcher/lab/labtest"
)

// written makes a rule that iptables takes: at most one match of each kind, any number of comments. (A name with a double
// quote in it is printed by iptables-save and not taken back.)
func written(rnd *rand.Rand, f flannel.Family) flannel.Rule {
	some := func() bool { return rnd.IntN(2) == 0 }
	from := func(list ...string) string { return list[rnd.IntN(len(list))] }
	var ms []flannel.Match
	add := func(m flannel.Match) {
		if some() {
			m.Not = m.Kind != flannel.MatchComment && some()
			ms = append(ms, m)
		}
	}
	add(flannel.Match{Kind: flannel.MatchSource, Prefix: address(rnd, f)})
	add(flannel.Match{Kind: flannel.MatchDestination, Prefix: address(rnd, f)})
	add(flannel.Match{Kind: flannel.MatchIn, Text: from("eth0", "veth+", `c\d`, "-x", "wlan0.1")})
	add(flannel.Match{Kind: flannel.MatchOut, Text: from("lo", "cali+", "flannel.1", "é")})
	add(flannel.Match{Kind: flannel.MatchProtocol, Text: from("tcp", "udp", "esp", "sctp")})
	add(flannel.Match{Kind: flannel.MatchMark, Value: rnd.Uint32(), Mask: ^uint32(0)})
	add(flannel.Match{Kind: flannel.MatchMark, Value: 0x4000, Mask: 0xff << rnd.IntN(24)})
	for range rnd.IntN(3) {
		add(flannel.Match{Kind: flannel.MatchComment, Text: comment(rnd)})
	}
	targets := []flannel.Target{
		{Kind: flannel.TargetNone},
		{Kind: flannel.TargetAccept},
		{Kind: flannel.TargetReturn},
		{Kind: flannel.TargetJump, Chain: "KUBE-X"},
		{Kind: flannel.TargetGoto, Chain: "KUBE-X"},
		{Kind: flannel.TargetMasquerade, Random: some(), RandomFully: some()},
	}
	return flannel.NewRule(targets[rnd.IntN(len(targets))], ms...)
}

func address(rnd *rand.Rand, f flannel.Family) netip.Prefix {
	a := netip.AddrFrom4([4]byte{10, byte(rnd.Int()), byte(rnd.Int()), byte(rnd.Int())})
	if f == flannel.IPv6 {
		a = netip.AddrFrom16([16]byte{0xfd, byte(rnd.Int()), 7: byte(rnd.Int()), 15: byte(rnd.Int())})
	}
	return netip.PrefixFrom(a, 1+rnd.IntN(f.Bits())).Masked()
}

func comment(rnd *rand.Rand) string {
	letters := []string{"a", "Z", "0", "_", "-", " ", `"`, "'", `\`, "!", "#", ":", ".", "/", "é", "\x1b", "\xff", "$", "`", "\t"}
	var b strings.Builder
	for range 1 + rnd.IntN(12) {
		b.WriteString(letters[rnd.IntN(len(letters))])
	}
	return b.String()
}

// TestIptablesTakesAndGivesTheTextsOfRules holds the property of the package against the programs themselves: a rule's
// text is taken by iptables-restore, and iptables-save gives it back byte for byte.
func TestIptablesTakesAndGivesTheTextsOfRules(t *testing.T) {
	for _, c := range []struct {
		tool    string
		backend flannel.Backend
		family  flannel.Family
	}{
		{"iptables-nft", flannel.IptablesNft, flannel.IPv4},
		{"ip6tables-nft", flannel.IptablesNft, flannel.IPv6},
		{"iptables-legacy", flannel.IptablesLegacy, flannel.IPv4},
		{"ip6tables-legacy", flannel.IptablesLegacy, flannel.IPv6},
	} {
		t.Run(c.tool, func(t *testing.T) {
			labtest.RequireTools(t, c.tool+"-restore", c.tool+"-save")
			ns := labtest.New(t)
			rnd := rand.New(rand.NewPCG(5, uint64(c.family)))
			var rules []flannel.Rule
			var save strings.Builder
			save.WriteString("*nat\n:KUBE-X - [0:0]\n:Y - [0:0]\n")
			for range 400 {
				r := written(rnd, c.family)
				rules = append(rules, r)
				fmt.Fprintf(&save, "-A Y %s\n", r)
			}
			save.WriteString("COMMIT\n")
			ns.Feed(save.String(), c.tool+"-restore")
			checkSaved(t, ns.Must(c.tool+"-save -c -t nat"), c.backend, c.family, rules)
		})
	}
}

func checkSaved(t *testing.T, save string, b flannel.Backend, f flannel.Family, rules []flannel.Rule) {
	t.Helper()
	rs, err := flannel.ParseSave(save, b, f)
	if err != nil {
		t.Fatal(err)
	}
	got := rs.Chain(flannel.ChainID{Backend: b, Family: f, Table: flannel.TableNat, Name: "Y"}).Entries
	if len(got) != len(rules) {
		t.Fatalf("%d rules of %d", len(got), len(rules))
	}
	for i, r := range rules {
		if !got[i].Rule.Equal(r) {
			t.Errorf("came back as %q, was %q", got[i].Rule, r)
		}
		if line := strings.TrimSpace("-A Y " + r.String()); !strings.Contains(save, "] "+line+"\n") {
			t.Errorf("iptables-save does not print %q", line)
		}
	}
}
