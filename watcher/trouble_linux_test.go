package watcher

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/legacy"
	"flanwatch/watcher/nft"
)

// collect is a sink that keeps rules and faults.
type collect struct {
	rules  []incident.RulesRead
	faults []incident.Fault
	others int
}

func (c *collect) sink(o *incident.Observation) {
	switch {
	case o.Rules != nil:
		c.rules = append(c.rules, *o.Rules)
	case o.Fault != nil:
		c.faults = append(c.faults, *o.Fault)
	default:
		c.others++
	}
}

func TestWhatCannotBeReadIsAnObservationThatSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		state flannel.ReadState
	}{
		"nf_tables is not there": {fmt.Errorf("open nf_tables: %w", nft.ErrNotPresent), flannel.Absent},
		"a privilege is missing": {fmt.Errorf("open nf_tables: %w", nft.ErrPrivilege), flannel.Unreadable},
		"the kernel refuses":     {errors.New("no buffer space available"), flannel.Unreadable},
	} {
		t.Run(name, func(t *testing.T) {
			opened := 0
			r := nftRules{open: func() (*nft.Reader, error) { opened++; return nil, c.err }}
			var got collect
			at := flannel.Time{Boot: time.Hour}
			clock := func() flannel.Time { return at }
			r.read(clock, got.sink)
			at = at.Add(retry / 2)
			r.read(clock, got.sink) // too early to try again
			at = at.Add(retry)
			r.read(clock, got.sink)
			if opened != 2 || len(got.rules) != 4 {
				t.Fatalf("tried %d times, observed %d readings", opened, len(got.rules))
			}
			for i, b := range []flannel.Backend{flannel.IptablesNft, flannel.Nftables} {
				if read := got.rules[i]; read.Backend != b || read.Ruleset.State != c.state || read.Ruleset.Why == "" {
					t.Errorf("%+v", read)
				}
			}
		})
	}
}

func TestLegacyTablesThatAreNotThereAreAbsent(t *testing.T) {
	var got collect
	var w Watcher
	w.legacyNews(legacyNews{err: fmt.Errorf("open iptables-legacy: %w", legacy.ErrNotLoaded)}, got.sink)
	w.legacyNews(legacyNews{err: legacy.ErrPrivilege}, got.sink)
	if len(got.rules) != 2 || got.rules[0].Ruleset.State != flannel.Absent || got.rules[1].Ruleset.State != flannel.Unreadable {
		t.Errorf("%+v", got.rules)
	}
}

func TestDeafnessIsAFaultUntilSomethingIsHeard(t *testing.T) {
	var got collect
	w := Watcher{clock: newClock()}
	w.nft.open = func() (*nft.Reader, error) { return nil, nft.ErrNotPresent }
	w.commit(announced{err: errors.New("netlink receive: no such device")}, got.sink)
	w.commit(announced{commit: &incident.Commit{Generation: 7}}, got.sink)
	w.commit(announced{commit: &incident.Commit{Generation: 8}}, got.sink)
	if len(got.faults) != 2 || got.faults[0].Why == "" || got.faults[1].Why != "" || got.others != 2 {
		t.Errorf("faults %+v, %d commits", got.faults, got.others)
	}
	w.commits(announced{}, nil, got.sink) // listening begins: read at once
	if len(got.rules) != 2 {
		t.Errorf("%d readings when listening began", len(got.rules))
	}
}

func TestBeatsThatWereMissedAreDropped(t *testing.T) {
	start := time.Now()
	if got := next(start, start.Add(300*time.Millisecond), time.Second); got != start.Add(time.Second) {
		t.Errorf("the beat is not kept: %v", got.Sub(start))
	}
	if got := next(start, start.Add(5*time.Second), time.Second); got != start.Add(6*time.Second) {
		t.Errorf("after a pause the next beat is at %v", got.Sub(start))
	}
}

func TestOurOwnNamespaceIsNeverGone(t *testing.T) {
	w, err := Open(Options{Root: "/", Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if why := w.ns.gone(); why != "" {
		t.Error(why)
	}
	if why := w.Elsewhere(); why != "" {
		t.Errorf("this machine's own namespace is taken for another: %s", why)
	}
	if now := w.Now(); now.IsZero() || now.Session == "" {
		t.Errorf("now is %+v", now)
	}
}
