package diagnose

import (
	"slices"
	"strings"
	"testing"

	"flanwatch/flannel"
)

func TestAfterAMigrationTheLeftoversAreNamedWithTheNewOwner(t *testing.T) {
	f, rs := today()
	c := rs.Chain(masq4)
	for i := range c.Entries {
		c.Entries[i].Counted, c.Entries[i].Counter.Packets = true, 7
	}
	f.set(flannel.IptablesNft, *rs)
	f = f.without()
	f.Links = flannel.Know([]Link{{Name: "vxlan.calico", Type: "vxlan", Up: true}, {Name: "cali0123", Type: "veth", Up: true}}, "", now)
	a := Assess(f, History{})
	wantIDs(t, a, "warning leftover-chain", "warning leftover-chain")
	wantState(t, a, masq4, flannel.ChainLeftover)
	if !slices.Contains(a.Findings[0].Detail, "another network plugin is here: vxlan.calico, cali0123") {
		t.Errorf("detail %q", a.Findings[0].Detail)
	}
	if !slices.Contains(a.Findings[0].Detail, "it has masqueraded 14 connections") {
		t.Errorf("detail %q", a.Findings[0].Detail)
	}
	if a.Findings[0].Remedy != RemedyPurge {
		t.Error(told(a))
	}
}

func TestWhileNobodyKnowsWhetherFlannelRunsNothingIsPurged(t *testing.T) {
	f, rs := today()
	f.Procs = flannel.Miss[[]Process](flannel.Unreadable, "no", "", now)
	f.Node.ForwardRules = flannel.Know(false, "flags", now) // so that one chain is not due
	f.set(flannel.IptablesNft, *rs)
	a := Assess(f, History{})
	if a.Findings[0].ID != "leftover-chain" || a.Findings[0].Remedy != RemedyNone || a.Findings[0].Refused == "" {
		t.Error(told(a))
	}
}

func TestEmptyUnreferencedChainsAreCosmetic(t *testing.T) {
	f := facts(nil, nil).without()
	rs := ruleset(flannel.IptablesNft)
	rs.Chain(masq4).Present, rs.Chain(fwd4).Present = true, true
	f.set(flannel.IptablesNft, rs)
	a := Assess(f, History{})
	wantIDs(t, a, "info leftover-chain", "info leftover-chain")
	if !strings.Contains(a.Findings[0].Summary, "empty and unreferenced: harmless") {
		t.Error(told(a))
	}
	rs.Chain(masq4).Entries = []flannel.Entry{{Rule: rule(t, "-s 10.244.0.0/16 -j MASQUERADE")}}
	f.set(flannel.IptablesNft, rs)
	a = Assess(f, History{})
	wantIDs(t, a, "info leftover-chain", "info leftover-chain")
	if !strings.Contains(a.Findings[0].Summary, "1 rule that nothing jumps to") {
		t.Error(told(a))
	}
}

func TestOldRulesBesideTheChainsOfTodayWinAndAreTold(t *testing.T) {
	for _, g := range []flannel.Generation{flannel.GenV080, flannel.GenV0110, flannel.GenV0162} {
		f, rs := today()
		for _, w := range flannel.Expected(prefixList(network4), prefixList(subnet4), g, usual, flannel.IptablesNft, flannel.IPv4) {
			c := rs.Chain(w.ID)
			var old []flannel.Entry
			for _, r := range w.Rules {
				old = append(old, flannel.Entry{Rule: r})
			}
			c.Entries = append(old, c.Entries...)
		}
		f.set(flannel.IptablesNft, *rs)
		a := Assess(f, History{})
		wantIDs(t, a, "warning old-generation-rules", "warning old-generation-rules")
		wantState(t, a, masq4, flannel.ChainOK)
		wantState(t, a, baseOf(masq4), flannel.ChainLeftover)
		if !strings.Contains(a.Findings[0].Summary, "win") || a.Flannel.Generation != "v0.21.0" {
			t.Errorf("%s:\n%s", g, told(a))
		}
	}
}

func TestRulesInBothIptablesBackendsAreASplit(t *testing.T) {
	f, rs := today()
	legacy := full(flannel.IptablesLegacy, flannel.GenV0210, usual, prefixList(network4), prefixList(subnet4))
	f.set(flannel.IptablesLegacy, legacy)
	a := Assess(f, History{})
	wantIDs(t, a, "warning backend-split")
	if !slices.Equal(a.Flannel.Backends, []flannel.Backend{flannel.IptablesNft, flannel.IptablesLegacy}) || len(a.Chains) != 4 {
		t.Error(told(a))
	}
	wantIDs(t, Assess(f.without(), History{}),
		"warning leftover-chain", "warning leftover-chain", "warning leftover-chain", "warning leftover-chain")

	// An empty chain in the other backend is left over, not half of a split.
	rs.Chain(masq4).Entries, rs.Chain(fwd4).Entries = nil, nil
	f.set(flannel.IptablesNft, *rs)
	a = Assess(f, History{})
	wantIDs(t, a, "info leftover-chain", "info leftover-chain")
	if !strings.HasPrefix(a.Findings[0].Summary, "iptables-nft v4 nat FLANNEL-POSTRTG is left over, empty, with its jump") {
		t.Error(told(a))
	}
}

func TestResidueOfAModeSwitchIsNoOutage(t *testing.T) {
	f, rs := today()
	rs.Chain(masq4).Entries = nil
	f.set(flannel.IptablesNft, *rs)
	native := full(flannel.Nftables, flannel.GenV0250, usual, prefixList(network4), prefixList(subnet4))
	native.Tables = append(native.Tables, flannel.TableID{Backend: flannel.Nftables, Family: flannel.IPv6, Name: "flannel-ipv6"})
	f.set(flannel.Nftables, native)
	a := Assess(f, History{})
	wantIDs(t, a, "info leftover-chain", "info leftover-chain")
	wantState(t, a, masq4, flannel.ChainLeftover)
	if a.Flannel.Dialect != DialectNftables || a.Findings[0].Remedy != RemedyPurge {
		t.Error(told(a))
	}

	// Before v0.27.0 a start cleans nothing: with rules on both sides only net-conf.json tells.
	rs2 := full(flannel.IptablesNft, flannel.GenV0210, usual, prefixList(network4), prefixList(subnet4))
	f.set(flannel.IptablesNft, rs2)
	wantIDs(t, Assess(f, History{}), "warning backend-split")
	newer := flanneldOf(hour)
	newer.Version = "v0.28.10"
	f.Procs = flannel.Know([]Process{newer}, "/proc", now)
	wantIDs(t, Assess(f, History{}), "warning leftover-chain", "info leftover-chain")
	f.Procs = flannel.Know([]Process{flanneldOf(hour)}, "/proc", now)
	f.Node.NFTables = flannel.Know(false, "net-conf.json", now)
	wantIDs(t, Assess(f, History{}), "warning leftover-table", "info leftover-table")
}

func TestAFamilyThatFlannelNoLongerServesIsLeftOver(t *testing.T) {
	both, subnets := prefixList(network4, network6), prefixList(subnet4, subnet6)
	f := facts(prefixList(network4), prefixList(subnet4)) // subnet.env names IPv4 alone
	f.set(flannel.IptablesNft, full(flannel.IptablesNft, flannel.GenV0210, usual, both, subnets))
	wantIDs(t, Assess(f, History{}), "warning leftover-chain", "info leftover-chain")

	f.Node.Networks.Source = "address of cni0" // which proves nothing about IPv6
	wantIDs(t, Assess(f, History{}))
}

func TestWithoutIPMasqNoMasqueradingIsDue(t *testing.T) {
	f, rs := today()
	f.Node.IPMasq = flannel.Know(false, "subnet.env", now)
	*rs.Chain(masq4) = flannel.Chain{ID: masq4}
	rs.Chain(baseOf(masq4)).Entries = nil
	f.set(flannel.IptablesNft, *rs)
	wantIDs(t, Assess(f, History{}))
}
