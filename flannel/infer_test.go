package flannel

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
)

// assess infers a ruleset and compares what was found: one line a trace, in words.
func assess(rs *Ruleset, networks, subnets []netip.Prefix) string {
	var lines []string
	for _, tr := range Infer(rs, networks, subnets) {
		line := fmt.Sprintf("%s %s", tr.Family, tr.Generation)
		if tr.Guessed {
			line += " guessed"
		}
		if !tr.Options.RandomFully {
			line += " plain"
		}
		for _, w := range Expected(tr.Networks, tr.Subnets, tr.Generation, tr.Options, rs.Backend, tr.Family) {
			line += fmt.Sprintf(", %s %s", w.ID.Name, Compare(rs, w).State)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

func TestDumpsOfRealFlannelAreRecognised(t *testing.T) {
	const chainsOK = ", FLANNEL-POSTRTG ok, FLANNEL-FWD ok"
	wants := map[string]string{
		"v0.18.1-running":       "ip v0.16.2, POSTROUTING ok, FORWARD ok",
		"v0.20.2-running":       "ip v0.20.2" + chainsOK,
		"v0.24.2-running":       "ip v0.21.0" + chainsOK,
		"v0.28.10-running":      "ip v0.21.0" + chainsOK,
		"v0.28.10-dual-running": "ip6 v0.21.0" + chainsOK,
		"v0.28.10-new-network":  "ip v0.21.0" + chainsOK,
		"v0.28.10-no-forward":   "ip v0.21.0, FLANNEL-POSTRTG ok",
		"v0.26.5-after-sigterm": "ip v0.21.0 guessed, FLANNEL-POSTRTG empty, FLANNEL-FWD empty",
		"v0.28.10-now-native":   "ip v0.21.0 guessed, FLANNEL-POSTRTG empty, FLANNEL-FWD ok",
		"odd":                   "",
		"foreign":               "",
	}
	files, err := os.ReadDir("testdata/save")
	if err != nil || len(files) != 2*len(wants) {
		t.Fatalf("%d dumps, %v", len(files), err)
	}
	for _, file := range files {
		name := file.Name()[:strings.LastIndex(strings.TrimSuffix(strings.TrimSuffix(file.Name(), ".txt"), ".ip"), ".")]
		name = strings.TrimSuffix(strings.TrimSuffix(name, ".nft"), ".legacy")
		if got := assess(loadSave(t, file.Name()), nets, subs); got != wants[name] {
			t.Errorf("%s:\n got %s\nwant %s", file.Name(), got, wants[name])
		}
	}
}

func TestNetworksAreReadOffTheRules(t *testing.T) {
	for file, want := range map[string]string{
		"v0.18.1-running.nft.ip.txt":        "[10.244.0.0/16] [10.244.1.0/24]",
		"v0.20.2-running.nft.ip.txt":        "[10.244.0.0/16] [10.244.1.0/24]",
		"v0.28.10-running.legacy.ip.txt":    "[10.244.0.0/16] [10.244.1.0/24]",
		"v0.28.10-dual-running.nft.ip6.txt": "[fd00:244::/48] [fd00:244:0:1::/64]",
		"v0.28.10-new-network.nft.ip.txt":   "[10.245.0.0/16] [10.245.1.0/24]",
		"v0.28.10-now-native.nft.ip.txt":    "[10.244.0.0/16] []",
		"v0.26.5-after-sigterm.nft.ip.txt":  "[] []",
		"odd.nft.ip.txt":                    "[] []",
	} {
		n, s := FromRules(loadSave(t, file))
		if got := fmt.Sprint(n, s); got != want {
			t.Errorf("%s: %s, want %s", file, got, want)
		}
	}
}

// whole is a ruleset that holds the wanted chains with their jumps, among foreign rules.
func whole(b Backend, lists ...[]Wanted) *Ruleset {
	rs := &Ruleset{Backend: b}
	for _, id := range Looked(b) {
		c := Chain{ID: id, Present: id.Name == ChainPostrouting || id.Name == ChainForward}
		if c.Present {
			c.Entries = entries([]Rule{NewRule(Target{Kind: TargetJump, Chain: "KUBE-" + id.Name})})
		}
		rs.Chains = append(rs.Chains, c)
	}
	for _, list := range lists {
		for _, w := range list {
			c := rs.Chain(w.ID)
			c.Present, c.Base = true, w.Base
			c.Entries = append(c.Entries, entries(w.Rules)...)
			if hooked(w) {
				base := rs.Chain(w.HookChain)
				base.Entries = append(base.Entries, Entry{Rule: w.Hook})
			}
		}
	}
	return rs
}

func TestEveryGenerationIsReadOffItsOwnRules(t *testing.T) {
	several := prefixes("10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16")
	for _, g := range Generations {
		for _, f := range Families {
			for _, o := range []Options{everything, {Masq: true, RandomFully: true}, {Masq: true, Forward: true}} {
				b := IptablesNft
				if g == GenV0250 {
					b = Nftables
				}
				rs := whole(b, Expected(nets, subs, g, o, b, f))
				want := Trace{Backend: b, Family: f, Generation: g, Options: o, Networks: Of(f, nets), Subnets: Of(f, subs)}
				switch { // shapes that two generations share go by the first tag that wrote them for the family
				case g == GenV080 && f == IPv6:
					want.Generation, want.Options.RandomFully = GenV0110, false
				case g == GenV080, g == GenV0110 && !o.RandomFully && f == IPv4:
					want.Generation, want.Options.RandomFully = GenV080, false
				}
				got := Infer(rs, nets, subs)
				if len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(want) {
					t.Errorf("%s %s %+v:\n got %+v\nwant %+v", g, f, o, got, want)
				}
				if text := assess(rs, nets, subs); strings.Count(text, " ok") != strings.Count(text, ",") {
					t.Errorf("%s %s %+v: %s", g, f, o, text)
				}
			}
		}
	}
	rs := whole(IptablesNft, Expected(several, prefixes("10.2.7.0/24"), GenV0210, everything, IptablesNft, IPv4))
	if n, s := FromRules(rs); !slices.Equal(n, several) || !slices.Equal(s, prefixes("10.2.7.0/24")) {
		t.Errorf("several networks read as %v and %v", n, s)
	}
}

func TestSeveralGenerationsAtOnceAreAllTold(t *testing.T) {
	expected := func(g Generation) []Wanted { return Expected(nets, subs, g, everything, IptablesNft, IPv4) }
	rs := whole(IptablesNft, expected(GenV0110), expected(GenV0162), expected(GenV0210))
	want := "ip v0.21.0, FLANNEL-POSTRTG ok, FLANNEL-FWD ok; ip v0.16.2, POSTROUTING ok, FORWARD ok; " +
		"ip v0.11.0, POSTROUTING ok, FORWARD ok"
	if got := assess(rs, nets, subs); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}

func TestOnePairOfSeveralNetworksLostIsExactlyThat(t *testing.T) {
	all, ss := prefixes("10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"), prefixes("10.2.7.0/24")
	for _, ns := range [][]netip.Prefix{all[:2], all} {
		want := Expected(ns, ss, GenV0210, everything, IptablesNft, IPv4)
		lost := slices.Clone(want)
		lost[0].Rules = slices.Delete(slices.Clone(want[0].Rules), 3, 5)
		rs := whole(IptablesNft, lost)
		for _, tr := range Infer(rs, ns, ss) {
			if tr.Generation != GenV0210 || !slices.Equal(tr.Networks, ns) || !slices.Equal(tr.Subnets, ss) {
				t.Errorf("%+v", tr)
			}
		}
		d := Compare(rs, want[0])
		var missing []string
		for _, l := range d.Rules {
			if l.Status != RuleOK {
				missing = append(missing, fmt.Sprint(l.Status, l.Want))
			}
		}
		if d.State != ChainPartial || !slices.Equal(missing, []string{"missing4", "missing5"}) {
			t.Errorf("%s: %v", d.State, missing)
		}
	}
}

func TestARuleOfTheOldNetworkBesideTheNewOnesIsOneExtra(t *testing.T) {
	want := Expected(nets, subs, GenV0210, everything, IptablesNft, IPv4)
	old := Expected(prefixes("10.9.0.0/16"), prefixes("10.9.1.0/24"), GenV0210, everything, IptablesNft, IPv4)
	mixed := slices.Clone(want)
	mixed[0].Rules = append(slices.Clone(want[0].Rules), old[0].Rules[4])
	rs := whole(IptablesNft, mixed)
	d := Compare(rs, want[0])
	if last := d.Rules[len(d.Rules)-1]; d.State != ChainDiffers || last.Status != RuleExtra || last.Found != 7 || len(d.Rules) != 7 {
		t.Errorf("%s: %s", d.State, outline(d))
	}
	if n, _ := FromRules(rs); !slices.Equal(n, prefixes("10.244.0.0/16", "10.9.0.0/16")) {
		t.Errorf("networks of the rules: %v", n)
	}
}

func TestHalfAChainOfTodayIsNoOldOne(t *testing.T) {
	w := Expected(nets, subs, GenV0210, everything, IptablesNft, IPv4)
	old := NewRule(returns, from(prefix("10.9.0.0/16")), to(prefix("10.9.0.0/16")))
	for name, rules := range map[string][]Rule{
		"the mark alone":                pick(w[0].Rules, 1),
		"without the exemptions":        pick(w[0].Rules, 1, 4, 5, 6),
		"without what masquerades":      pick(w[0].Rules, 1, 2, 3, 4),
		"with a rule of an old network": append(pick(w[0].Rules, 1, 2, 3, 4, 6), old),
	} {
		rs := whole(IptablesNft, []Wanted{{ID: w[0].ID, Rules: rules, Hook: w[0].Hook, HookChain: w[0].HookChain}})
		traces := Infer(rs, nets, subs)
		if len(traces) != 1 || traces[0].Generation != GenV0210 || traces[0].Guessed {
			t.Errorf("%s: %+v", name, traces)
		}
	}
}

// randomNode makes up to three networks of a family that do not overlap, and a subnet in one of them.
func randomNode(rnd *rand.Rand, f Family) (networks, subnets []netip.Prefix) {
	for i := range 1 + rnd.IntN(3) {
		a := netip.AddrFrom4([4]byte{10 + byte(i), byte(rnd.Int())})
		if f == IPv6 {
			a = netip.AddrFrom16([16]byte{0xfd, byte(i), byte(rnd.Int())})
		}
		networks = append(networks, netip.PrefixFrom(a, f.Bits()/4+rnd.IntN(f.Bits()/4)).Masked())
	}
	home := networks[rnd.IntN(len(networks))]
	return networks, []netip.Prefix{netip.PrefixFrom(home.Addr(), home.Bits()+rnd.IntN(8)).Masked()}
}

func TestNetworksOfAnyNodeAreReadOffItsRules(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	for range 2000 {
		f, g, b := Families[rnd.IntN(2)], Generations[2+rnd.IntN(5)], IptablesNft
		if g == GenV0250 {
			b = Nftables
		}
		networks, subnets := randomNode(rnd, f)
		if g != GenV0210 {
			networks = networks[:1]
			subnets = []netip.Prefix{netip.PrefixFrom(networks[0].Addr(), f.Bits()-1)}
		}
		rs := whole(b, Expected(networks, subnets, g, everything, b, f))
		n, s := FromRules(rs)
		if !slices.Equal(n, networks) || !slices.Equal(s, subnets) {
			t.Fatalf("%s %s: read %v and %v, want %v and %v", g, f, n, s, networks, subnets)
		}
		if text := assess(rs, nil, nil); strings.Count(text, " ok") != 2 || !strings.Contains(text, string(g)) {
			t.Fatalf("%s of %v, %v: %s", g, networks, subnets, text)
		}
	}
}

func TestRulesWithoutCommentCountInExactShapeOnly(t *testing.T) {
	old := Expected(nets, subs, GenV0110, everything, IptablesNft, IPv4)
	foreign := Expected(prefixes("10.9.0.0/16"), prefixes("10.9.1.0/24"), GenV0110, everything, IptablesNft, IPv4)
	part := func(rules ...Rule) []Wanted { return []Wanted{{ID: old[0].ID, Rules: rules}} }
	for name, c := range map[string]struct {
		have []Wanted
		want string
	}{
		"whole":                        {old, "ip v0.11.0, POSTROUTING ok, FORWARD ok"},
		"one lost":                     {part(pick(old[0].Rules, 1, 2, 4)...), "ip v0.11.0, POSTROUTING partial"},
		"of other networks":            {foreign, ""},
		"the forward rules alone":      {old[1:], ""},
		"without the sign":             {part(pick(old[0].Rules, 1, 3, 4)...), ""},
		"the sign alone":               {part(old[0].Rules[1]), ""},
		"the forward rules by a human": {part(pick(old[0].Rules, 1)...), ""},
	} {
		if got := assess(whole(IptablesNft, c.have), nets, subs); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	if got := assess(whole(IptablesNft, old), nil, nil); got != "" {
		t.Errorf("without knowing the networks: %s", got)
	}
}

func TestNothingOfFlannelGivesNoTrace(t *testing.T) {
	for _, b := range Backends {
		if got := Infer(whole(b), nets, subs); got != nil {
			t.Errorf("%s: %+v", b, got)
		}
	}
	if got := Infer(nil, nets, subs); got != nil {
		t.Errorf("%+v", got)
	}
}

func TestTheWayOfMostRulesTellsRandomFully(t *testing.T) {
	w := Expected(nets, subs, GenV0210, Options{Masq: true}, IptablesNft, IPv4)
	if got := Infer(whole(IptablesNft, w), nets, subs); got[0].Options != (Options{Masq: true}) {
		t.Errorf("%+v", got)
	}
	w[0].Rules = pick(w[0].Rules, 1, 2, 3, 4)
	if got := Infer(whole(IptablesNft, w), nets, subs); !got[0].Options.RandomFully {
		t.Errorf("no rule that masquerades: Flannel's default counts: %+v", got)
	}
}
