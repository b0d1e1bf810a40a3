package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
)

// edit changes the healthy node of today: what a test does to its rules, then what is found.
type edit struct {
	name string
	do   func(f *Facts, rs *flannel.Ruleset)
	want []string // severity and id
	says string   // part of the first summary
	give string   // remedy of the first finding
}

func (c edit) run(t *testing.T) {
	f, rs := today()
	c.do(&f, rs)
	f.set(flannel.IptablesNft, *rs)
	a := Assess(f, History{})
	wantIDs(t, a, c.want...)
	if len(a.Findings) == 0 || t.Failed() {
		return
	}
	first := a.Findings[0]
	if !strings.Contains(first.Summary, c.says) {
		t.Errorf("summary %q does not say %q", first.Summary, c.says)
	}
	if c.give != "" && first.Remedy != c.give {
		t.Errorf("remedy %s, want %s (%s)", first.Remedy, c.give, first.Refused)
	}
	if len(first.Detail) == 0 {
		t.Error("a finding without evidence")
	}
}

func rule(t *testing.T, text string) flannel.Rule {
	t.Helper()
	r, err := flannel.ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestWhatIsWrongWithAChainBecomesAFinding(t *testing.T) {
	masq := func(rs *flannel.Ruleset) *[]flannel.Entry { return &rs.Chain(masq4).Entries }
	add := func(text string) func(*Facts, *flannel.Ruleset) {
		return func(_ *Facts, rs *flannel.Ruleset) {
			*masq(rs) = append(*masq(rs), flannel.Entry{Rule: rule(t, text)})
		}
	}
	drop := func(i int) func(*Facts, *flannel.Ruleset) {
		return func(_ *Facts, rs *flannel.Ruleset) { *masq(rs) = slices.Delete(*masq(rs), i, i+1) }
	}
	swap := func(i, j int) func(*Facts, *flannel.Ruleset) {
		return func(_ *Facts, rs *flannel.Ruleset) { (*masq(rs))[i], (*masq(rs))[j] = (*masq(rs))[j], (*masq(rs))[i] }
	}
	noPolicy := func(rs *flannel.Ruleset) { rs.Chain(baseOf(fwd4)).Base = &flannel.BaseChain{Policy: "drop"} }

	for _, c := range []edit{
		{"in health nothing", func(*Facts, *flannel.Ruleset) {}, nil, "", ""},
		{
			"emptied", func(_ *Facts, rs *flannel.Ruleset) { *masq(rs) = nil },
			[]string{"critical chain-empty"},
			"v4 nat FLANNEL-POSTRTG is empty: new connections of pods", RemedyReapply,
		},
		{"emptied while flanneld starts", func(f *Facts, rs *flannel.Ruleset) {
			*masq(rs) = nil
			f.Procs = flannel.Know([]Process{flanneldOf(time.Second)}, "", now)
		}, []string{"critical chain-empty"}, "is empty", RemedyNone},
		{"emptied, and nobody may look at processes", func(f *Facts, rs *flannel.Ruleset) {
			*masq(rs) = nil
			f.Procs = flannel.Miss[[]Process](flannel.Unreadable, "no", "", now)
		}, []string{"warning chain-empty"}, "is empty", RemedyNone},
		{
			"forwarding emptied", func(_ *Facts, rs *flannel.Ruleset) { rs.Chain(fwd4).Entries = nil },
			[]string{"warning chain-empty"},
			"passes only while", RemedyReapply,
		},
		{"forwarding emptied below a policy that drops", func(_ *Facts, rs *flannel.Ruleset) {
			rs.Chain(fwd4).Entries = nil
			noPolicy(rs)
		}, []string{"critical chain-empty"}, "dropped by FORWARD's policy", RemedyReapply},
		{"deleted with its jump", func(_ *Facts, rs *flannel.Ruleset) {
			*rs.Chain(masq4) = flannel.Chain{ID: masq4}
			rs.Chain(baseOf(masq4)).Entries = nil
		}, []string{"critical chain-missing"}, "is missing", RemedyReapply},
		{
			"unreferenced", func(_ *Facts, rs *flannel.Ruleset) { rs.Chain(baseOf(masq4)).Entries = nil },
			[]string{"critical hook-missing"},
			"Nothing leads to v4 nat FLANNEL-POSTRTG", RemedyReapply,
		},
		{"a jump for some packets only", func(_ *Facts, rs *flannel.Ruleset) {
			rs.Chain(baseOf(masq4)).Entries[0].Rule = rule(t, "-s 10.0.0.0/8 -j FLANNEL-POSTRTG")
		}, []string{"warning hook-missing"}, "Only some packets", RemedyReapply},
		{"two jumps", func(_ *Facts, rs *flannel.Ruleset) {
			base := rs.Chain(baseOf(masq4))
			base.Entries = append(base.Entries, base.Entries[0])
		}, []string{"info rule-duplicate"}, "×2", RemedyReapply},
		{"without the rule that masquerades pods", drop(4), []string{"critical rule-missing"}, "1 of 6 rules of", RemedyReapply},
		{"without a rule that spares", drop(1), []string{"warning rule-missing"}, "this node's address", RemedyReapply},
		{"without the last rule", drop(5), []string{"warning rule-missing"}, "keeps its source", RemedyReapply},
		{"two that spare swapped", swap(1, 2), []string{"info rule-order"}, "makes no difference", RemedyReapply},
		{"masquerading before sparing", swap(1, 4), []string{"warning rule-order"}, "before the rule that spares", RemedyReapply},
		{
			"a rule of somebody else", add("-p tcp -j ACCEPT"),
			[]string{"warning rule-extra"},
			"1 rule that Flannel did not write", RemedyNone,
		},
		{
			"a rule that nobody understands", add("-m statistic --mode nth --every 2 --packet 0 -j ACCEPT"),
			[]string{"warning rule-extra"},
			"did not write", RemedyNone,
		},
		{
			"both variants", add(`-s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE`),
			[]string{"warning rule-variant"},
			"masquerades twice over", RemedyReapply,
		},
		{"the other variant than flanneld was told", func(f *Facts, _ *flannel.Ruleset) {
			f.Node.RandomFully = flannel.Know(false, "flags", now)
		}, []string{"warning rule-variant"}, "which flanneld was told not to", RemedyReapply},
		{
			"one copy", add(`-s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully`),
			[]string{"info rule-duplicate"},
			"1 needless copy", RemedyReapply,
		},
		{"thousands of copies", func(_ *Facts, rs *flannel.Ruleset) {
			c := rs.Chain(fwd4)
			for range 2257 {
				c.Entries = append(c.Entries, c.Entries[0])
			}
		}, []string{"warning rule-duplicate"}, "2257 needless copies", RemedyReapply},
	} {
		t.Run(c.name, c.run)
	}
}

func TestManyCopiesAreOneLine(t *testing.T) {
	f, rs := today()
	c := rs.Chain(fwd4)
	for range 2258 {
		c.Entries = append(c.Entries, c.Entries[0])
	}
	f.set(flannel.IptablesNft, *rs)
	detail := Assess(f, History{}).Findings[0].Detail
	if !strings.HasSuffix(detail[0], "-j ACCEPT ×2258") || len(detail) > 3 {
		t.Errorf("detail %q", detail)
	}
}

func TestAChainEmptyForLessThanASecondMayBeAStart(t *testing.T) {
	f, rs := today()
	rs.Chain(masq4).Entries = nil
	f.set(flannel.IptablesNft, *rs)
	since := func(d time.Duration) History {
		return History{Since: map[flannel.ChainID]flannel.Time{masq4: now.Add(-d)}}
	}
	wantIDs(t, Assess(f, since(300*time.Millisecond)), "warning chain-empty")
	a := Assess(f, since(4*time.Second))
	wantIDs(t, a, "critical chain-empty")
	if a.Findings[0].Since != now.Add(-4*time.Second) {
		t.Errorf("since %v", a.Findings[0].Since)
	}
	wantIDs(t, Assess(f, History{Since: map[flannel.ChainID]flannel.Time{masq4: {}}}), "critical chain-empty")
}

func TestForwardRulesAreDueOnlyWhereFlanneldWritesThem(t *testing.T) {
	without := func() (Facts, *flannel.Ruleset) {
		f, rs := today()
		*rs.Chain(fwd4) = flannel.Chain{ID: fwd4}
		rs.Chain(baseOf(fwd4)).Entries = nil
		f.set(flannel.IptablesNft, *rs)
		return f, rs
	}
	f, _ := without()
	wantIDs(t, Assess(f, History{})) // the flags are not known, so its absence is not known to be wrong

	f.Node.ForwardRules = flannel.Know(false, "flags of flanneld", now)
	wantIDs(t, Assess(f, History{}))

	f.Node.ForwardRules = flannel.Know(true, "flags of flanneld", now)
	wantIDs(t, Assess(f, History{}), "warning chain-missing")

	f, _ = without()
	wantIDs(t, Assess(f, History{Since: map[flannel.ChainID]flannel.Time{fwd4: {}}}), "warning chain-missing")

	f, _ = today()
	f.Node.ForwardRules = flannel.Know(false, "flags of flanneld", now)
	a := Assess(f, History{})
	wantIDs(t, a, "info leftover-chain") // written by an earlier flanneld
	wantState(t, a, fwd4, flannel.ChainLeftover)
}

func TestK3sMasqueradesIPv6OnlyIfTold(t *testing.T) {
	both, subnets := prefixList(network4, network6), prefixList(subnet4, subnet6)
	rs := full(flannel.IptablesNft, flannel.GenV0210, usual, both, subnets)
	masq6 := flannel.MasqChain(flannel.IptablesNft, flannel.IPv6)
	*rs.Chain(masq6) = flannel.Chain{ID: masq6}
	rs.Chain(baseOf(masq6)).Entries = nil
	f := facts(both, subnets)
	f.set(flannel.IptablesNft, rs)
	wantIDs(t, Assess(f, History{}), "critical chain-missing") // flanneld itself masquerades both

	f.Node.IPMasq6 = flannel.Know(true, "subnet.env", now) // which k3s writes for IPv4's sake
	f.Procs = flannel.Know([]Process{k3s("server")}, "/proc", now)
	wantIDs(t, Assess(f, History{}), "warning ipv6-no-masquerade") // pods' addresses are private
	f.Procs = flannel.Know([]Process{k3s("server", "--flannel-ipv6-masq")}, "/proc", now)
	wantIDs(t, Assess(f, History{}), "critical chain-missing")
}

func TestEveryGenerationIsHealthyInEveryBackend(t *testing.T) {
	for _, nets := range [][2][]netip.Prefix{
		{prefixList(network4), prefixList(subnet4)},
		{prefixList(network6), prefixList(subnet6)},
		{prefixList(network4, network6), prefixList(subnet4, subnet6)},
	} {
		for _, g := range flannel.Generations {
			for _, b := range flannel.Backends {
				for _, random := range []bool{true, false} {
					if (g == flannel.GenV0250) != (b == flannel.Nftables) || g == flannel.GenV080 && random || g == flannel.GenV0110 && !random {
						continue
					}
					if g == flannel.GenV080 && nets[0][0].Addr().Is6() {
						continue // IPv6 came later
					}
					o := usual
					o.RandomFully = random
					f := facts(nets[0], nets[1])
					f.set(b, full(b, g, o, nets[0], nets[1]))
					a := Assess(f, History{})
					if len(a.Findings) > 0 || a.Flannel.Generation != string(g) || !slices.Equal(a.Flannel.Backends, []flannel.Backend{b}) {
						t.Errorf("%s in %s, random %v, %v:\n%s", g, b, random, nets[0], told(a))
					}
				}
			}
		}
	}
}

func TestSeveralNetworksAreHealthyAndOneMissingPairIsExactlyThat(t *testing.T) {
	for _, more := range [][]string{{"10.245.0.0/16"}, {"10.245.0.0/16", "10.246.0.0/16"}} {
		nets := prefixList(append([]string{network4}, more...)...)
		rs := full(flannel.IptablesNft, flannel.GenV0210, usual, nets, prefixList(subnet4))
		f := facts(nets, prefixList(subnet4))
		f.set(flannel.IptablesNft, rs)
		wantIDs(t, Assess(f, History{}))

		c := rs.Chain(masq4)
		c.Entries = slices.Delete(c.Entries, 3, 5) // the pair that spares the second network
		f.set(flannel.IptablesNft, rs)
		a := Assess(f, History{})
		wantIDs(t, a, "warning rule-missing")
		if !strings.Contains(a.Findings[0].Summary, "2 of") {
			t.Error(told(a))
		}
	}
}

func TestRulesForAnotherSubnetAreAMismatchAndNothingElse(t *testing.T) {
	for _, c := range []struct{ network, subnet string }{{network4, "10.244.9.0/24"}, {"10.99.0.0/16", "10.99.1.0/24"}} {
		f, _ := today()
		f.Node.Networks.Value, f.Node.Subnets.Value = prefixList(c.network), prefixList(c.subnet)
		a := Assess(f, History{})
		for _, found := range a.Findings {
			if found.ID != "subnet-mismatch" || found.Severity != Warning {
				t.Errorf("%s:\n%s", c.subnet, told(a))
			}
		}
		if len(a.Findings) == 0 || !strings.Contains(a.Findings[0].Summary, "10.244.0.0/16 with subnet 10.244.1.0/24") {
			t.Error(told(a))
		}
	}
}

func TestNetworksComeFromTheRulesWhereNoFileTellsThem(t *testing.T) {
	f, rs := today()
	f.Node.Networks = flannel.Miss[[]netip.Prefix](flannel.Absent, "no source tells it", "", now)
	f.Node.Subnets = f.Node.Networks
	wantIDs(t, Assess(f, History{}))

	c := rs.Chain(masq4)
	c.Entries = c.Entries[:5]
	f.set(flannel.IptablesNft, *rs)
	a := Assess(f, History{})
	wantIDs(t, a, "warning rule-missing")
	if a.Findings[0].Refused == "" ||
		!slices.Contains(a.Findings[0].Detail, "the pod networks are taken from the rules themselves") {
		t.Error(told(a), a.Findings[0].Detail)
	}

	c.Entries, rs.Chain(fwd4).Entries = nil, nil // and now nothing tells them
	f.set(flannel.IptablesNft, *rs)
	a = Assess(f, History{})
	wantIDs(t, a, "critical chain-empty", "warning chain-empty")
	if a.Findings[0].Remedy != RemedyNone {
		t.Error("a repair is offered for rules that nobody knows")
	}
}

func TestANativeChainInTheWrongPlaceIsTold(t *testing.T) {
	rs := full(flannel.Nftables, flannel.GenV0250, usual, prefixList(network4), prefixList(subnet4))
	f := facts(prefixList(network4), prefixList(subnet4))
	c := rs.Chain(flannel.MasqChain(flannel.Nftables, flannel.IPv4))
	base := *c.Base
	base.Priority = 300
	c.Base = &base
	f.set(flannel.Nftables, rs)
	wantIDs(t, Assess(f, History{}), "warning base-differs")
	c.Base = nil
	f.set(flannel.Nftables, rs)
	wantIDs(t, Assess(f, History{}), "critical hook-missing")
	*c = flannel.Chain{ID: c.ID}
	f.set(flannel.Nftables, rs)
	wantIDs(t, Assess(f, History{}), "critical chain-missing")
}
