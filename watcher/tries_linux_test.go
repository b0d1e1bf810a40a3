package watcher

import (
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

func TestSuccessfulAttemptsAreToldTogetherAndFailuresAtOnce(t *testing.T) {
	var got []incident.Probe
	last := flannel.Time{}
	sink := func(o *incident.Observation) {
		if o.Time.Sub(last) < 0 {
			t.Errorf("told at %v after %v", o.Time, last)
		}
		last = o.Time
		got = append(got, *o.Probe)
	}
	var tr tries
	now := flannel.Time{Wall: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Boot: time.Hour, Session: "boot/1"}
	try := func(n int, why string) {
		for range n {
			now = now.Add(100 * time.Millisecond)
			tr.add(incident.Probe{Target: "tcp://198.51.100.1:80", From: "pod", Took: 200 * time.Microsecond, Why: why}, now, sink)
		}
	}
	try(calmAfter, "")
	if len(got) != calmAfter {
		t.Fatalf("%d observations of the first %d attempts", len(got), calmAfter)
	}
	try(11, "")
	if run := got[len(got)-1]; len(got) != calmAfter+1 || run.Count != 11 || run.First-run.Last != time.Second || run.Max == 0 {
		t.Errorf("after a second %+v", run)
	}
	try(3, "")
	try(1, "no answer")
	if n := len(got); got[n-1].Why == "" || got[n-2].Count != 3 || n != calmAfter+3 {
		t.Errorf("at a failure %+v", got[calmAfter+1:])
	}
	try(1, "")
	if last := got[len(got)-1]; last.Count != 0 || last.Why != "" {
		t.Errorf("behind a failure %+v", last)
	}
	attempts := 0
	for _, p := range got {
		attempts += max(1, p.Count)
	}
	if attempts != calmAfter+11+3+1+1 {
		t.Errorf("%d attempts told", attempts)
	}
}
