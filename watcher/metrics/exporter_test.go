package metrics

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

var (
	nat    = flannel.ChainID{Backend: flannel.IptablesNft, Family: flannel.IPv4, Table: "nat", Name: "FLANNEL-POSTRTG"}
	native = flannel.ChainID{Backend: flannel.Nftables, Family: flannel.IPv6, Table: "flannel-ipv6", Name: "forward"}
)

// at is a moment so long after the start of the tests' world.
func at(d time.Duration) flannel.Time {
	return flannel.Time{Wall: time.Unix(1_700_000_000, 0).Add(d), Boot: time.Hour + d, Session: "a"}
}

// text gives what a scraper would read.
func text(t *testing.T, e *Exporter) string {
	t.Helper()
	f, err := OpenTextfile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Write(e); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(f.path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func want(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains(text, "\n"+l+"\n") {
			t.Errorf("no line %s", l)
		}
	}
}

func healthy() *incident.View {
	return &incident.View{
		Now:     at(0),
		Flannel: diagnose.Flannel{State: diagnose.FlannelLive, Dialect: "iptables", Backends: []flannel.Backend{flannel.IptablesNft}, Generation: "v0.21.0"},
		Chains: []incident.ChainView{{ID: nat, Wanted: 2, Counted: true, Rules: []incident.RuleView{
			{RuleDiff: flannel.RuleDiff{Status: flannel.RuleOK, Want: 1, Found: 1, Times: 1}, Counted: true, Total: flannel.Counter{Packets: 7, Bytes: 420}},
			{RuleDiff: flannel.RuleDiff{Status: flannel.RuleOK, Want: 2, Found: 2, Times: 1}, Counted: true, Total: flannel.Counter{Packets: 3, Bytes: 180}},
		}}},
	}
}

func TestAHealthyNodeIsAllZeroesAndNothingIsUnknown(t *testing.T) {
	e := New(Build{"v1.2.3", "abc"}, true)
	e.Update(healthy(), Journal{Size: 4096})
	got := text(t, e)
	want(t, got,
		`flanwatch_flannel_info{counters="yes",generation="v0.21.0",mode="iptables-nft"} 1`,
		`flanwatch_finding_active{check="masquerade",finding="chain-empty"} 0`,
		`flanwatch_check_unknown{check="masquerade"} 0`,
		`flanwatch_reader_up{reader="nft"} 1`,
		`flanwatch_rules_expected{backend="iptables-nft",chain="FLANNEL-POSTRTG",family="ip"} 2`,
		`flanwatch_rules_matched{backend="iptables-nft",chain="FLANNEL-POSTRTG",family="ip"} 2`,
		`flanwatch_rules_unexpected{backend="iptables-nft",chain="FLANNEL-POSTRTG",family="ip"} 0`,
		`flanwatch_rule_packets_total{backend="iptables-nft",chain="FLANNEL-POSTRTG",family="ip",rule="none"} 7`,
		`flanwatch_rule_packets_total{backend="iptables-nft",chain="FLANNEL-POSTRTG",family="ip",rule="none_2"} 3`,
		`flanwatch_gaps_total{cause="flush",table="nat"} 0`,
		`flanwatch_last_gap_timestamp_seconds{table="nat"} 0`,
		`flanwatch_journal_size_bytes 4096`,
		`flanwatch_journal_last_write_timestamp_seconds 1.7e+09`,
		`flanwatch_events_total{source="xtables_lock"} 0`)
	for line := range strings.Lines(got) {
		if strings.HasPrefix(line, "flanwatch_finding_active") && !strings.HasSuffix(line, " 0\n") {
			t.Errorf("active: %s", line)
		}
	}
	if strings.Contains(got, "flanwatch_problem_flows") {
		t.Error("connections were never looked at, and are told of")
	}
}

func TestWhatCannotBeReadIsUnknownAndNotHealthy(t *testing.T) {
	v := healthy()
	v.Backends = []incident.BackendView{{Backend: flannel.IptablesNft, State: flannel.Unreadable}}
	v.Table.Health.State = flannel.Unreadable
	v.Findings = []diagnose.Finding{{ID: "chain-empty", Severity: diagnose.Critical, Chain: nat}}
	e := New(Build{}, false)
	e.Update(v, Journal{})
	got := text(t, e)
	want(t, got,
		`flanwatch_reader_up{reader="nft"} 0`, `flanwatch_reader_up{reader="legacy"} 1`, `flanwatch_reader_up{reader="conntrack"} 0`,
		`flanwatch_check_unknown{check="masquerade"} 1`, `flanwatch_check_unknown{check="conntrack"} 1`, `flanwatch_check_unknown{check="readers"} 0`,
		`flanwatch_finding_active{check="masquerade",finding="chain-empty"} 1`)
	for _, absent := range []string{`finding="chain-missing"`, `finding="conntrack-full"`} {
		if strings.Contains(got, absent) {
			t.Errorf("%s is told of, though it could not be evaluated", absent)
		}
	}
}

// incidents of which the first had ended before the exporter began.
func incidents() []incident.Incident {
	one := func(number int, kind incident.Kind, id flannel.ChainID, from, length time.Duration) incident.Incident {
		return incident.Incident{Number: number, Kind: kind, Spells: []incident.Spell{{Chain: id, From: at(from), To: at(from + length)}}}
	}
	return []incident.Incident{
		one(1, incident.KindFlushed, nat, 0, time.Second),
		one(2, incident.KindStartup, nat, time.Minute, 50*time.Millisecond),
		one(3, incident.KindTableGone, native, 2*time.Minute, 30*time.Second),
	}
}

func TestGapsThatEndedWhileItLookedOnAreCountedOnce(t *testing.T) {
	e := New(Build{}, false)
	v, all := healthy(), incidents()
	v.Incidents = all[:1]
	e.Update(v, Journal{})
	for range 3 { // an open incident is not counted until it ends, and then once
		open := all[1]
		open.Open, open.Spells = true, []incident.Spell{{Chain: nat, From: at(time.Minute), Open: true}}
		v.Incidents = []incident.Incident{all[0], open}
		e.Update(v, Journal{})
	}
	for range 3 {
		v.Incidents = all
		e.Update(v, Journal{})
	}
	want(t, text(t, e),
		`flanwatch_gaps_total{cause="flannel_restart",table="nat"} 1`,
		`flanwatch_gaps_total{cause="flush",table="nat"} 0`,
		`flanwatch_gaps_total{cause="flush",table="filter"} 1`,
		`flanwatch_gap_duration_seconds_bucket{table="nat",le="0.1"} 1`,
		`flanwatch_gap_duration_seconds_sum{table="nat"} 0.05`,
		`flanwatch_gap_duration_seconds_bucket{table="filter",le="10"} 0`,
		`flanwatch_gap_duration_seconds_bucket{table="filter",le="60"} 1`,
		`flanwatch_gap_duration_seconds_count{table="filter"} 1`,
		`flanwatch_last_gap_timestamp_seconds{table="nat"} 1.70000006e+09`)
}

func TestChangesAreCountedByProgram(t *testing.T) {
	e := New(Build{}, false)
	for comm, times := range map[string]int{"flanneld": 2, "iptables-restor": 1, "ip6tables-resto": 1, "xtables-nft-mul": 1, "\x1b]0;evil": 3, "worse": 1} {
		for range times {
			k := &incident.Commit{Backend: flannel.IptablesNft, Who: incident.Who{Comm: comm}, Changes: []incident.ChainChange{{Chain: nat}, {Chain: nat}}}
			e.Observe(&incident.Observation{Commit: k})
		}
	}
	e.Observe(&incident.Observation{Commit: &incident.Commit{Backend: flannel.IptablesLegacy, Lost: true}})
	const labels = `backend="iptables-nft",family="ip",program="%s",table="nat"} %d`
	want(t, text(t, e),
		fmt.Sprintf(`flanwatch_ruleset_changes_total{`+labels, "flanneld", 2),
		fmt.Sprintf(`flanwatch_ruleset_changes_total{`+labels, "iptables-restore", 2),
		fmt.Sprintf(`flanwatch_ruleset_changes_total{`+labels, "iptables", 1),
		fmt.Sprintf(`flanwatch_ruleset_changes_total{`+labels, "other", 4),
		`flanwatch_events_total{source="nft"} 9`, `flanwatch_events_total{source="xtables_lock"} 1`,
		`flanwatch_events_lost_total{source="xtables_lock"} 1`)
}

func TestAFailingJournalIsCountedWhenItBeginsToFail(t *testing.T) {
	e := New(Build{}, false)
	full := errors.New("no space left on device")
	for _, trouble := range []error{nil, full, full, nil, full} {
		e.Update(healthy(), Journal{Size: 1, Trouble: trouble})
	}
	want(t, text(t, e), `flanwatch_journal_write_failures_total 2`)
}

// A dual-stack node with 200 chains of hostile names and a hundred programs makes no more series than any other.
func TestSeriesAreBounded(t *testing.T) {
	e := New(Build{}, false)
	v := healthy()
	v.Chains = nil
	for _, f := range flannel.Families {
		for _, name := range []string{"FLANNEL-POSTRTG", "FLANNEL-FWD"} {
			table := map[string]string{"FLANNEL-POSTRTG": "nat", "FLANNEL-FWD": "filter"}[name]
			v.Chains = append(v.Chains, incident.ChainView{ID: flannel.ChainID{Backend: flannel.IptablesNft, Family: f, Table: table, Name: name}})
		}
	}
	for i := range 200 {
		name := fmt.Sprintf("FLANNEL-\x1b\"\n%d", i)
		v.Chains = append(v.Chains, incident.ChainView{ID: flannel.ChainID{Backend: flannel.IptablesLegacy, Family: flannel.IPv4, Table: "nat", Name: name}})
		v.Findings = append(v.Findings, diagnose.Finding{ID: "rule-extra", Object: name})
		e.Observe(&incident.Observation{Commit: &incident.Commit{Who: incident.Who{Comm: name}, Changes: []incident.ChainChange{{Chain: nat}}}})
	}
	v.Table.Flows = flannel.Reading[conntrack.Survey]{State: flannel.Known}
	e.Update(v, Journal{})
	series := 0
	for line := range strings.Lines(text(t, e)) {
		if !strings.HasPrefix(line, "#") {
			series++
		}
	}
	t.Logf("%d series", series)
	if series > 150 {
		t.Errorf("%d series", series)
	}
}

func TestTheTextfileIsReadableForAllAndGoesWithTheRecorder(t *testing.T) {
	dir := t.TempDir()
	f, err := OpenTextfile(dir)
	if err != nil {
		t.Fatal(err)
	}
	e := New(Build{}, false)
	if err := f.Write(e); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "flanwatch.prom"))
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := errors.Join(f.Remove(), f.Remove()); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if _, err := OpenTextfile(filepath.Join(dir, "nowhere")); err == nil {
		t.Error("a folder that is not there is accepted")
	}
}
