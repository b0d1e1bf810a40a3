package diagnose

import (
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
)

const hour = time.Hour

func TestFilesThatAreDamagedOrIgnoredAreToldWithTheirLine(t *testing.T) {
	f, _ := today()
	f.Node.Problems = []flannel.Problem{{File: "/run/flannel/subnet.env", Line: 2, What: "FLANNEL_SUBNET has no value"}}
	f.Problems = []flannel.Problem{{File: "/run/flannel/subnet.env", What: "file is empty\x1b[31m"}}
	f.Node.Ignored = []flannel.Problem{{File: "net-conf.json", Line: 7, What: "TrafficManager"}}
	a := Assess(f, History{})
	wantIDs(t, a, "warning config-damaged", "warning config-damaged", "info config-key-ignored")
	if a.Findings[1].Object != "/run/flannel/subnet.env:2" || a.Findings[2].Object != "net-conf.json:7" {
		t.Error(told(a))
	}
	if strings.Contains(told(a), "\x1b") {
		t.Error("an escape byte reaches the terminal")
	}
}

func TestSourcesThatDisagreeAreListed(t *testing.T) {
	f, _ := today()
	f.Node.Others = []flannel.Source{{Name: "address of cni0", Subnets: prefixList("10.244.7.0/24")}}
	a := Assess(f, History{})
	wantIDs(t, a, "info subnet-mismatch")
	detail := strings.Join(a.Findings[0].Detail, "\n")
	if !strings.Contains(detail, "subnet.env: 10.244.0.0/16") || !strings.Contains(detail, "cni0: subnet 10.244.7.0/24") {
		t.Error(detail)
	}
}

func TestWhatCannotBeReadIsSaidAndNeverMissing(t *testing.T) {
	f, _ := today()
	f.Rules[flannel.IptablesNft] = flannel.Miss[flannel.Ruleset](flannel.Unreadable, "needs CAP_NET_ADMIN", "netlink", now)
	before := Flannel{Dialect: DialectIptables, Backends: []flannel.Backend{flannel.IptablesNft}}
	a := Assess(f, History{Since: map[flannel.ChainID]flannel.Time{masq4: {}, fwd4: {}}, Flannel: before})
	wantIDs(t, a, "info table-unreadable")
	wantState(t, a, masq4, flannel.ChainUnreadable)
	wantState(t, a, fwd4, flannel.ChainUnreadable)

	wantIDs(t, Assess(f, History{}), "info table-unreadable")

	// An empty chain in another backend may be a leftover beside the rules that nobody could read.
	legacy := full(flannel.IptablesLegacy, flannel.GenV0210, flannel.Options{Masq: true}, prefixList(network4), prefixList(subnet4))
	legacy.Chain(flannel.MasqChain(flannel.IptablesLegacy, flannel.IPv4)).Entries = nil
	f.set(flannel.IptablesLegacy, legacy)
	wantIDs(t, Assess(f, History{}), "warning chain-empty", "info table-unreadable")
}

func TestACrashLoopIsTold(t *testing.T) {
	f, _ := today()
	h := History{FlannelStarts: []flannel.Time{now.Add(-time.Minute), now.Add(-30 * time.Second), now.Add(-time.Second)}}
	a := Assess(f, h)
	wantIDs(t, a, "warning flannel-crash-looping")
	if !strings.Contains(a.Findings[0].Summary, "3 times") {
		t.Error(told(a))
	}
}

func TestAMomentOfAnotherDayIsToldWithItsDate(t *testing.T) {
	if got := clock(now.Add(-hour), now); got != "11:04:31" {
		t.Errorf("an hour ago is %q", got)
	}
	if got := clock(now.Add(-30*hour), now); got != "2026-11-29 06:04:31" {
		t.Errorf("thirty hours ago is %q", got)
	}
}

func TestSeveritiesRankFromTheWorst(t *testing.T) {
	if Critical.Rank() >= Warning.Rank() || Warning.Rank() >= Info.Rank() {
		t.Error("critical, warning, info is the order")
	}
}
