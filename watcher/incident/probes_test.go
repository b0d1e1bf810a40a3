package incident

import (
	"slices"
	"testing"
	"time"
)

// try hands an attempt to the state that began some time ago.
func (w *world) try(ago, took time.Duration, why string) *world {
	p := &Probe{Target: "tcp://192.0.2.80:80", From: "10.244.1.5", Took: took, Why: why}
	w.s.Apply(&Observation{Time: w.now.Add(took - ago), Probe: p})
	return w
}

func TestAttemptsFromPodsTellWhatAnIncidentDid(t *testing.T) {
	w := newWorld(t, nft)
	w.try(0, 2*time.Millisecond, "")
	w.wait(time.Second).flush(masq).announce("iptables")
	for range 41 { // each is given up a second after it began
		w.wait(100 * time.Millisecond)
		w.try(0, time.Second, "no answer")
	}
	w.refill(nft).announce("iptables-restor")
	w.wait(100*time.Millisecond).try(0, 4*time.Millisecond, "")
	v := w.view()
	inc := v.Incidents[0]
	if inc.Probe == nil || inc.Probe.Attempts != 41 || inc.Probe.Failed != 41 {
		t.Fatalf("felt as %+v", inc.Probe)
	}
	if want := "pods could not connect for 4.1 s, 41 of 41 attempts"; !slices.Contains(inc.Effects, want) {
		t.Errorf("effects %q, want %q", inc.Effects, want)
	}
	if p := v.Probe; p.Attempts != 43 || p.Successes != 2 || p.Median != 4*time.Millisecond || p.Max != 4*time.Millisecond {
		t.Errorf("shown as %+v", p)
	}
}

func TestAFailureThatEndsAfterALaterSuccessDoesNotLastLonger(t *testing.T) {
	w := newWorld(t, nft)
	w.flush(masq).announce("iptables")
	w.wait(400 * time.Millisecond).refill(nft).announce("iptables-restor")
	w.wait(100*time.Millisecond).try(0, time.Millisecond, "")
	w.wait(900*time.Millisecond).try(1300*time.Millisecond, time.Second, "no answer")
	w.wait(100*time.Millisecond).try(1200*time.Millisecond, time.Second, "no answer")
	v := w.view()
	if p := v.Incidents[0].Probe; p == nil || p.Failed != 2 || p.Failing != 400*time.Millisecond {
		t.Errorf("felt as %+v", p)
	}
	if !v.Probe.Failing.IsZero() {
		t.Errorf("said to fail since %v", v.Probe.Failing)
	}
}

func TestConnectionsThatWereNotHurtAreSaidToo(t *testing.T) {
	w := newWorld(t, nft)
	w.flush(fwd).announce("iptables")
	w.wait(50*time.Millisecond).try(0, time.Millisecond, "")
	w.wait(50 * time.Millisecond).refill(nft).announce("iptables-restor")
	if want := "a pod could connect all the time, 1 of 1 attempts"; !slices.Contains(w.view().Incidents[0].Effects, want) {
		t.Errorf("effects %q", w.view().Incidents[0].Effects)
	}
}

func TestNothingIsSaidOfAttemptsThatWereNotMade(t *testing.T) {
	w := newWorld(t, nft)
	w.flush(masq).announce("iptables").wait(time.Millisecond).refill(nft).announce("iptables-restor")
	w.wait(time.Second).try(0, time.Millisecond, "")
	if v := w.view(); v.Incidents[0].Probe != nil || v.Probe.Attempts != 1 {
		t.Errorf("%+v, %+v", v.Incidents[0].Probe, v.Probe)
	}
}

func TestAttemptsToldTogetherCountByWhenTheyBegan(t *testing.T) {
	w := newWorld(t, nft)
	w.wait(time.Second).flush(masq).announce("iptables").read(nft)
	w.wait(300 * time.Millisecond).refill(nft).announce("iptables-restor").read(nft)
	w.wait(600 * time.Millisecond)
	w.s.Apply(&Observation{Time: w.now, Probe: &Probe{
		Target: "tcp://198.51.100.1:80", From: "pod", Took: time.Millisecond, Max: 4 * time.Millisecond,
		Count: 11, First: 1050 * time.Millisecond, Last: 50 * time.Millisecond,
	}})
	v := w.view()
	if v.Probe.Attempts != 11 || v.Probe.Successes != 11 || v.Probe.Median != time.Millisecond || v.Probe.Max != 4*time.Millisecond {
		t.Errorf("%+v", v.Probe)
	}
	if e := v.Incidents[0].Probe; e == nil || e.Attempts != 3 || e.Failed != 0 {
		t.Errorf("in the incident %+v", e)
	}
}
