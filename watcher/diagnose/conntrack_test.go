package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/conntrack"
	"flanwatch/flannel"
)

// surveyed is a survey with flows of the kinds given.
func surveyed(kinds ...conntrack.Kind) conntrack.Survey {
	s := conntrack.Survey{Kinds: map[conntrack.Kind]conntrack.Tally{}}
	for _, k := range kinds {
		t := s.Kinds[k]
		t.Flows++
		s.Kinds[k] = t
		f := conntrack.Flow{Orig: conntrack.Tuple{Src: netip.MustParseAddr("10.244.1.5"), Dst: netip.MustParseAddr("192.0.2.80")}}
		f.Reply = conntrack.Tuple{Src: f.Orig.Dst, Dst: f.Orig.Src}
		s.Flows = append(s.Flows, conntrack.Sample{Flow: f, Kind: k, From: "192.168.60.12"})
	}
	return s
}

func TestWrongConnectionsAreFindingsWithTheirCure(t *testing.T) {
	for name, c := range map[string]struct {
		kinds []conntrack.Kind
		want  []string
		says  string
		cure  string
	}{
		"none":       {nil, nil, "", ""},
		"bare":       {[]conntrack.Kind{conntrack.Bare}, []string{"warning flows-bare"}, "1 connection of pods to the outside lives on", RemedyUnstick},
		"two bare":   {[]conntrack.Kind{conntrack.Bare, conntrack.Bare}, []string{"warning flows-bare"}, "2 connections of pods to the outside live on", RemedyUnstick},
		"translated": {[]conntrack.Kind{conntrack.Translated}, []string{"warning flows-translated"}, "another address than the pod's", RemedyUnstick},
		"stale":      {[]conntrack.Kind{conntrack.Stale}, []string{"warning stale-udp-flow"}, "a pod that is no more", RemedyUnstick},
		"arriving":   {[]conntrack.Kind{conntrack.Arriving}, []string{"info arriving-snat"}, "from 192.168.60.12", RemedyNone},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := today()
			f.Flows = flannel.Know(surveyed(c.kinds...), "netlink", now)
			a := Assess(f, History{})
			wantIDs(t, a, c.want...)
			if len(a.Findings) == 1 {
				got := a.Findings[0]
				if text := got.Summary + strings.Join(got.Detail, "\n"); !strings.Contains(text, c.says) || got.Remedy != c.cure {
					t.Errorf("remedy %s, want %s; no %q in\n%s", got.Remedy, c.cure, c.says, text)
				}
			}
		})
	}
}

func TestBareConnectionsAreNotToBeDroppedWhileTheyWouldComeBackBare(t *testing.T) {
	f, rs := today()
	rs.Chain(masq4).Entries = nil
	f.Flows = flannel.Know(surveyed(conntrack.Bare), "netlink", now)
	a := Assess(f, History{})
	i := slices.IndexFunc(a.Findings, func(f Finding) bool { return f.ID == "flows-bare" })
	if i < 0 || a.Findings[i].Remedy != RemedyNone || !strings.Contains(a.Findings[i].Refused, "chain-empty") {
		t.Errorf("%s", told(a))
	}
}

func TestTheTablesTroubleIsNamedOnceAndOnlyWhereItIsKnown(t *testing.T) {
	health := func(count uint64) conntrack.Health {
		return conntrack.Health{Source: "netlink", Count: conntrack.Counted(count), Max: conntrack.Counted(1000)}
	}
	trend := func(failed, drop, early, clash uint64) conntrack.Trend {
		return conntrack.Trend{
			Over: 10 * time.Second, InsertFailed: conntrack.Counted(failed), Drop: conntrack.Counted(drop),
			EarlyDrop: conntrack.Counted(early), ClashResolve: conntrack.Counted(clash),
		}
	}
	for name, c := range map[string]struct {
		h    conntrack.Health
		t    conntrack.Trend
		want []string
	}{
		"well":                {health(100), trend(0, 0, 0, 0), nil},
		"full":                {health(1000), trend(0, 9, 0, 0), []string{"critical conntrack-full"}},
		"full and quiet":      {health(1000), trend(0, 0, 0, 0), []string{"warning conntrack-full"}},
		"evicting":            {health(990), trend(0, 0, 7, 0), []string{"warning conntrack-evicting"}},
		"races":               {health(100), trend(9, 9, 0, 0), []string{"warning snat-port-race"}},
		"clashes":             {health(100), trend(0, 0, 0, 9), []string{"info conntrack-clash"}},
		"nothing known of it": {conntrack.Health{}, conntrack.Trend{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := today()
			f.Conntrack = flannel.Know(c.h, "netlink", now)
			wantIDs(t, Assess(f, History{Conntrack: c.t}), c.want...)
			f.Conntrack.State = flannel.Unreadable
			wantIDs(t, Assess(f, History{Conntrack: c.t}))
		})
	}
}

func TestTheRaceNamesTheFlagThatWouldEndIt(t *testing.T) {
	for random, want := range map[bool]string{true: "fully at random", false: "with --random-fully"} {
		o := usual
		o.RandomFully = random
		f := facts(prefixList(network4), prefixList(subnet4))
		f.Node.RandomFully = flannel.Know(random, "flag", now)
		rs := full(flannel.IptablesNft, flannel.GenV0210, o, prefixList(network4), prefixList(subnet4))
		f.set(flannel.IptablesNft, rs)
		f.Conntrack = flannel.Know(conntrack.Health{Count: conntrack.Counted(1), Max: conntrack.Counted(1000)}, "netlink", now)
		a := Assess(f, History{Conntrack: conntrack.Trend{
			Over: time.Second, InsertFailed: conntrack.Counted(9), Drop: conntrack.Counted(9),
		}})
		wantIDs(t, a, "warning snat-port-race")
		if len(a.Findings) == 1 && !strings.Contains(strings.Join(a.Findings[0].Detail, "\n"), want) {
			t.Errorf("random-fully %v: no %q in %q", random, want, a.Findings[0].Detail)
		}
	}
}

func TestMasqueradingIsDueOnlyWhereFlannelLives(t *testing.T) {
	f, _ := today()
	if due := Assess(f, History{}).Masquerade; !due[flannel.IPv4] {
		t.Errorf("live: %v", due)
	}
	told := f
	told.Node.IPMasq = flannel.Know(false, "subnet.env", now)
	if due := Assess(told, History{}).Masquerade; due[flannel.IPv4] {
		t.Errorf("told not to: %v", due)
	}
	unknown := f
	unknown.Node.IPMasq = flannel.Miss[bool](flannel.Absent, "", "", now)
	if due := Assess(unknown, History{}).Masquerade; !due[flannel.IPv4] || due[flannel.IPv6] {
		t.Errorf("not known, with rules for IPv4 alone: %v", due)
	}
	gone := f.without()
	gone.Links = flannel.Know([]Link{{Name: "vxlan.calico", Type: "vxlan", Up: true}}, "netlink", now)
	if a := Assess(gone, History{}); a.Flannel.State != FlannelLeftover || a.Masquerade[flannel.IPv4] {
		t.Errorf("%s: %v", a.Flannel.State, a.Masquerade)
	}
}
