package incident

import (
	"math"
	"slices"
	"testing"
	"time"

	"flanwatch/flannel"
)

// nft, old are short for the backends that count.
const (
	nft = flannel.IptablesNft
	old = flannel.IptablesLegacy
)

func TestAHealthyNodeIsQuiet(t *testing.T) {
	for _, b := range flannel.Backends {
		w := newWorld(t, b)
		for range 5 {
			w.wait(time.Second).read(b)
		}
		v := w.view()
		if len(v.Events)+len(v.Findings)+len(v.Incidents)+len(v.Faults) > 0 {
			t.Errorf("%s: %+v %+v", b, v.Events, v.Findings)
		}
		if v.Flannel.State != "live" || len(v.Chains) != 2 || v.Chains[0].State != flannel.ChainOK {
			t.Errorf("%s: %+v", b, v.Flannel)
		}
	}
}

func TestARateIsTheGrowthOverTheTimeBetweenReceipts(t *testing.T) {
	w := newWorld(t, nft)
	w.count(masq, 1000).wait(time.Second).read(nft)
	if c := w.chain(masq); !c.Rate.Known || c.Rate.Packets != 6000 || c.Rate.Bytes != 600000 {
		t.Errorf("rate %+v", c.Rate)
	}
	w.count(masq, 10).wait(2 * time.Second).read(nft)
	c := w.chain(masq)
	if c.Rate.Packets != 30 || c.Total.Packets != 6060 || c.Rules[0].Rate.Packets != 5 || c.Rules[0].Counter.Packets != 1010 {
		t.Errorf("rate %+v, total %+v, rule %+v", c.Rate, c.Total, c.Rules[0])
	}
}

func TestARateIsUnknownOnTheFirstReadingAndAcrossGaps(t *testing.T) {
	known := func(w *world, want bool, when string) {
		t.Helper()
		if c := w.chain(masq); c.Rate.Known != want || c.Rules[0].Rate.Known != want {
			t.Errorf("%s: known %v and %v, want %v", when, c.Rate.Known, c.Rules[0].Rate.Known, want)
		}
	}
	w := newWorld(t, nft)
	known(w, false, "first reading")
	w.count(masq, 1).wait(time.Second).read(nft)
	known(w, true, "second reading")
	w.wait(time.Second).fail(nft)
	if c := w.chain(masq); c.Rate.Known || c.State != flannel.ChainUnreadable {
		t.Errorf("failed reading: %+v", c)
	}
	w.count(masq, 1).wait(time.Second).read(nft)
	known(w, false, "first reading after a failed one")
	w.wait(time.Second).read(nft)
	known(w, true, "and the next")

	w.flush(masq).wait(time.Second).read(nft)
	if c := w.chain(masq); c.Rate.Known || c.State != flannel.ChainEmpty || !c.Counted {
		t.Errorf("empty: %+v", c)
	}
	w.refill(nft).count(masq, 7).wait(time.Second).read(nft)
	known(w, false, "first reading after an empty one")
	w.count(masq, 7).wait(time.Second).read(nft)
	if c := w.chain(masq); !c.Rate.Known || c.Rate.Packets != 42 {
		t.Errorf("after a gap: %+v", c.Rate)
	}
}

func TestTotalsGoOnThroughRecreatedRules(t *testing.T) {
	w := newWorld(t, nft)
	w.count(masq, 100).wait(time.Second).read(nft)
	w.refill(nft).count(masq, 1).wait(time.Second).read(nft) // one commit: never empty
	c := w.chain(masq)
	if c.Total.Packets != 606 || !c.Rate.Known || c.Rate.Packets != 6 {
		t.Errorf("total %+v rate %+v", c.Total, c.Rate)
	}
	w.wantEvents(EventRestarted, EventRestarted)
	w.count(masq, 50).flush(masq).wait(time.Second).read(nft)
	if c := w.chain(masq); c.Total.Packets != 606 {
		t.Errorf("a chain without rules: total %+v", c.Total)
	}
}

func TestAnAnnouncedRemovalBringsTheLastCounts(t *testing.T) {
	w := newWorld(t, nft)
	w.count(masq, 100).wait(time.Second).read(nft)
	w.count(masq, 30).wait(500 * time.Millisecond).flush(masq).announce("iptables")
	c := w.chain(masq)
	if c.Total.Packets != 6*130 || c.State != flannel.ChainEmpty || c.Rate.Known {
		t.Errorf("total %+v, %s, rate %+v", c.Total, c.State, c.Rate)
	}
	if got := c.History.Window(1, 2, 1); got[0] != 600 || got[1] != 360 {
		t.Errorf("history up to the moment %v", got)
	}
}

func TestACounterBelowTheLastOneIsARestart(t *testing.T) {
	w := newWorld(t, nft)
	w.count(masq, 100).wait(time.Second).read(nft)
	c := w.rules[nft].Chain(masq)
	for i := range c.Entries {
		c.Entries[i].Counter = flannel.Counter{Packets: 3}
	}
	w.wait(time.Second).read(nft)
	if got := w.chain(masq); got.Total.Packets != 618 || got.Rate.Packets != 18 {
		t.Errorf("total %+v rate %+v", got.Total, got.Rate)
	}
	w.wantEvents(EventRestarted)
}

func TestALegacyDipIsNoRestart(t *testing.T) {
	w := newWorld(t, old)
	w.count(legacy, 100).wait(time.Second).read(old)
	before := w.chain(legacy)
	c := w.rules[old].Chain(legacy)
	was := c.Entries
	c.Entries = slices.Clone(was)
	for i := range c.Entries {
		c.Entries[i].Counter = flannel.Counter{Packets: 1}
	}
	w.wait(100 * time.Millisecond).read(old)
	if got := w.chain(legacy); got.Total != before.Total || got.Rate != before.Rate {
		t.Errorf("while it dips: total %+v rate %+v", got.Total, got.Rate)
	}
	c.Entries = was
	w.count(legacy, 10).wait(900 * time.Millisecond).read(old)
	if got := w.chain(legacy); got.Total.Packets != 660 || got.Rate.Packets != 60 {
		t.Errorf("after it: total %+v rate %+v", got.Total, got.Rate)
	}
	w.wantEvents()

	for i := range c.Entries {
		c.Entries[i].Counter = flannel.Counter{Packets: 5}
	}
	w.wait(time.Second).read(old)
	w.wait(1100 * time.Millisecond).read(old)
	if got := w.chain(legacy); got.Total.Packets != 690 {
		t.Errorf("after a restart: total %+v", got.Total)
	}
	w.wantEvents(EventRestarted)
}

func TestHold(t *testing.T) {
	at := flannel.Time{Boot: time.Hour, Session: session}
	var h Hold
	h.Start(flannel.Counter{Packets: 100, Bytes: 1000})
	for _, c := range []struct {
		name string
		ms   int
		v    flannel.Counter
		want Growth
	}{
		{"growth", 0, flannel.Counter{Packets: 110, Bytes: 1100}, Growth{Delta: flannel.Counter{Packets: 10, Bytes: 100}}},
		{"a fall decides nothing", 10, flannel.Counter{}, Growth{Pending: true}},
		{"nor does a second one", 500, flannel.Counter{Packets: 2}, Growth{Pending: true}},
		{"it came back", 600, flannel.Counter{Packets: 113, Bytes: 1100}, Growth{Delta: flannel.Counter{Packets: 3}}},
		{"bytes alone fall", 700, flannel.Counter{Packets: 113, Bytes: 3}, Growth{Pending: true}},
		{
			"still down after a second", 1701,
			flannel.Counter{Packets: 113, Bytes: 9},
			Growth{Delta: flannel.Counter{Packets: 113, Bytes: 9}, Reset: true},
		},
		{"and on from there", 1800, flannel.Counter{Packets: 114, Bytes: 9}, Growth{Delta: flannel.Counter{Packets: 1}}},
	} {
		if got := h.Next(c.v, at.Add(time.Duration(c.ms)*time.Millisecond)); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestNativeRulesHaveNoCountersAndNoRate(t *testing.T) {
	w := newWorld(t, flannel.Nftables)
	w.wait(time.Second).read(flannel.Nftables)
	c := w.chain(native)
	if c.Counted || c.Rate.Known || c.Rules[0].Counted || !math.IsNaN(c.History.Window(0, 1, 1)[0]) {
		t.Errorf("%+v", c)
	}
}

func TestASpeedIsNotToldOverAnInstant(t *testing.T) {
	w := newWorld(t, nft)
	w.count(masq, 10).wait(time.Second).read(nft)
	w.count(masq, 1).wait(3 * time.Millisecond).read(nft)
	if got := w.chain(masq).Rate.Packets; got != 60 {
		t.Errorf("rate %v over three milliseconds, want that of before", got)
	}
}

func TestANewSessionOrAClockThatGoesBackIsAGap(t *testing.T) {
	w := newWorld(t, nft)
	w.count(masq, 10).wait(time.Second).read(nft)
	w.now.Boot -= 10 * time.Second
	w.count(masq, 10).read(nft)
	if w.chain(masq).Rate.Known {
		t.Error("a rate over negative time")
	}
	w.now.Session, w.now.Boot = "boot/2", time.Minute
	w.now.Wall = w.now.Wall.Add(time.Minute)
	w.count(masq, 10).read(nft)
	if w.chain(masq).Rate.Known {
		t.Error("a rate across sessions")
	}
}

func TestAHistoryIsBoundedAndSharesWhatViewsHold(t *testing.T) {
	var h history
	h.add(0, 10*time.Second, 5)
	held := h.Series
	h.add(10*time.Second, 20*time.Second, 7)
	h.add(25*time.Second, 26*time.Second, 9)
	if got := held.Window(12, 5, 1); got[0] != 5 || got[1] != 5 || !math.IsNaN(got[2]) {
		t.Errorf("a copy changed: %v", got)
	}
	if got := h.Window(25, 8, 1); got[0] != 7 || !math.IsNaN(got[2]) || !math.IsNaN(got[6]) || got[7] != 9 {
		t.Errorf("with a gap: %v", got)
	}
	if got := h.Window(25, 2, 10); math.Abs(got[0]-6.2) > 1e-6 || math.Abs(got[1]-7.4) > 1e-6 {
		t.Errorf("means of ten: %v", got)
	}
	for s := range 4 * kept {
		at := 30*time.Second + time.Duration(s)*time.Second
		h.add(at, at+time.Second, float64(s))
	}
	if len(h.points) > 2*kept || cap(h.points) > 2*kept {
		t.Errorf("%d points, room for %d", len(h.points), cap(h.points))
	}
	now := int64(30 + 4*kept - 1)
	if got := h.Window(now, kept, 1); got[0] != 3*kept || got[kept-1] != 4*kept-1 {
		t.Errorf("the last hour reads %v … %v", got[0], got[kept-1])
	}
	h.add(100*time.Hour, 100*time.Hour+2*time.Second, 1)
	if got := h.Window(360001, 3, 1); !math.IsNaN(got[0]) || got[1] != 1 {
		t.Errorf("after a long gap: %v", got)
	}
}

func TestTheNewestBucketIsThatOfTheLastReadUnlessReadsAreOverdue(t *testing.T) {
	w := newWorld(t, nft)
	w.count(masq, 10).wait(1500 * time.Millisecond).read(nft)
	if got := w.wait(700 * time.Millisecond).view().Bucket; got != 1 {
		t.Errorf("bucket %d between reads, want 1", got)
	}
	if got := w.wait(5 * time.Second).view().Bucket; got != 7 {
		t.Errorf("bucket %d without reads, want 7", got)
	}
}

func TestCountersAloneCostNoAllocation(t *testing.T) {
	w := newWorld(t, nft)
	w.wait(time.Second).read(nft)
	o := &Observation{Rules: &RulesRead{nft, flannel.Know(*w.rules[nft], "kernel", w.now)}}
	entries := o.Rules.Ruleset.Value.Chain(masq).Entries
	allocs := testing.AllocsPerRun(2000, func() {
		w.now = w.now.Add(time.Second)
		o.Time = w.now
		for i := range entries {
			entries[i].Counter.Packets += 5
		}
		w.s.Apply(o)
	})
	if allocs != 0 {
		t.Errorf("%v allocations an observation", allocs)
	}
}

func BenchmarkApplyCounters(b *testing.B) {
	w := newWorld(nil, nft)
	o := &Observation{Rules: &RulesRead{nft, flannel.Know(*w.rules[nft], "kernel", w.now)}}
	entries := o.Rules.Ruleset.Value.Chain(masq).Entries
	b.ReportAllocs()
	for b.Loop() {
		w.now = w.now.Add(100 * time.Millisecond)
		o.Time = w.now
		entries[0].Counter.Packets++
		w.s.Apply(o)
	}
}

func BenchmarkView(b *testing.B) {
	w := newWorld(nil, nft)
	for range 5000 {
		w.count(masq, 1).wait(time.Second).read(nft)
	}
	b.ReportAllocs()
	for b.Loop() {
		w.view()
	}
}
