package incident

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// story plays n random steps on a node and hands out a picture after each.
func story(seed uint64, n int, each func(step int, v *View)) {
	r := rand.New(rand.NewPCG(seed, 7))
	w := newWorld(nil, flannel.Backends[r.IntN(3)])
	for step := range n {
		w.random(r)
		each(step, w.view())
	}
}

// random does one thing that can happen to a node or to its watcher, sane or not.
func (w *world) random(r *rand.Rand) {
	b := flannel.Backends[r.IntN(3)]
	rs := w.rules[b]
	c := &rs.Chains[r.IntN(len(rs.Chains))]
	w.wait(time.Duration(r.IntN(2000)) * time.Millisecond)
	switch r.IntN(20) {
	case 0, 1, 2, 3:
		for i := range c.Entries {
			c.Entries[i].Counter.Packets += uint64(r.IntN(1000))
		}
	case 4, 5, 6, 7:
		w.read(b)
	case 8:
		w.fail(b)
	case 9:
		w.flush(c.ID)
	case 10:
		w.refill(b)
	case 11:
		w.change(func() { *c = flannel.Chain{ID: c.ID} })
	case 12, 13:
		if w.last != nil {
			w.announce([]string{"iptables", "nft", "x\x1b[31m"}[r.IntN(3)])
		}
	case 14:
		w.procs()
	case 15:
		w.procs(w.flanneld(time.Duration(r.IntN(100)) * time.Second))
	case 16:
		for i := range c.Entries {
			c.Entries[i].Counter = flannel.Counter{Packets: uint64(r.IntN(10))}
		}
	case 17:
		w.nonsense(r)
	case 18:
		w.change(func() {
			if len(c.Entries) > 1 {
				c.Entries = slices.Delete(slices.Clone(c.Entries), 0, 1+r.IntN(len(c.Entries)-1))
			}
		})
	case 19:
		w.now.Wall = w.now.Wall.Add(-time.Hour)
	}
}

// nonsense hands over what no reader would.
func (w *world) nonsense(r *rand.Rand) {
	id := flannel.ChainID{Backend: flannel.Backend(r.IntN(5)), Family: flannel.Family(r.IntN(3)), Name: fmt.Sprint(r.IntN(4))}
	ch := ChainChange{
		Chain: id, Created: r.IntN(2) == 0, Deleted: r.IntN(2) == 0, Rules: r.IntN(4) - 1,
		Added: []RuleAdded{{Handle: r.Uint64N(30), After: r.Uint64N(30), Body: r.Uint64()}},
	}
	wild := &flannel.Ruleset{Chains: []flannel.Chain{{ID: id, Present: true, Entries: make([]flannel.Entry, r.IntN(3))}}}
	wild.Generation = r.Uint32()
	var none flannel.Reading[[]diagnose.Process]
	for _, o := range []*Observation{
		{},
		{Commit: &Commit{Backend: id.Backend, Generation: r.Uint32(), Changes: []ChainChange{ch}, Lost: r.IntN(4) == 0}},
		{Commit: &Commit{Backend: id.Backend, Generation: w.gen + 1, Changes: []ChainChange{ch}}},
		{Rules: &RulesRead{Backend: id.Backend, Ruleset: flannel.Know(*wild, "", w.now)}},
		{Rules: &RulesRead{Backend: id.Backend}},
		{Procs: &none},
		{Node: &flannel.Node{}},
		{Fault: &Fault{}},
		{Action: &Action{Kind: "purge", Result: ActionResult([]string{"verified", "refused", "started", "odd"}[r.IntN(4)]), Chains: []flannel.ChainID{id}}},
	} {
		if r.IntN(4) == 0 {
			o.Time = w.now
			if r.IntN(10) == 0 {
				o.Time = flannel.Time{}
			}
			w.s.Apply(o)
		}
	}
}

// stable is what never changes of an event once it is told; its author may be named later.
func stable(list []Event) []string {
	out := make([]string, len(list))
	for i, e := range list {
		out[i] = fmt.Sprint(e.Time, e.Kind, e.Severity, e.Chain, e.Text, e.Generation)
	}
	return out
}

func check(t *testing.T, seed uint64, steps int) {
	var events []string
	totals := map[flannel.ChainID]flannel.Counter{}
	number := 0
	story(seed, steps, func(step int, v *View) {
		now := stable(v.Events)
		if len(now) < len(events) || !slices.Equal(now[:len(events)], events) {
			t.Fatalf("seed %d step %d: events of before have changed", seed, step)
		}
		events = now
		for _, c := range v.Chains {
			if was := totals[c.ID]; c.Total.Packets < was.Packets || c.Total.Bytes < was.Bytes {
				t.Fatalf("seed %d step %d: total of %s fell from %v to %v", seed, step, c.ID, was, c.Total)
			}
			totals[c.ID] = c.Total
			if c.Rate.Packets < 0 || math.IsNaN(c.Rate.Packets) || math.IsInf(c.Rate.Packets, 0) || !c.Rate.Known && c.Rate.Packets != 0 {
				t.Fatalf("seed %d step %d: rate %+v", seed, step, c.Rate)
			}
			if n := len(c.Lane); n == 0 || c.Lane[n-1].State != c.State {
				t.Fatalf("seed %d step %d: lane %v ends beside %s", seed, step, c.Lane, c.State)
			}
		}
		for _, i := range v.Incidents {
			open := slices.ContainsFunc(i.Spells, func(sp Spell) bool { return sp.Open })
			if open != i.Open || len(i.Spells) == 0 || i.Kind == "" || i.Number > number+len(v.Incidents) {
				t.Fatalf("seed %d step %d: incident %+v", seed, step, i)
			}
			number = max(number, i.Number)
		}
	})
}

func TestAnySequenceOfObservationsFolds(t *testing.T) {
	for seed := range uint64(60) {
		check(t, seed, 120)
	}
}

func TestTheSameObservationsGiveTheSamePicture(t *testing.T) {
	for seed := range uint64(20) {
		var first, second []string
		story(seed, 80, func(_ int, v *View) { first = append(first, fmt.Sprintf("%+v", summary(v))) })
		story(seed, 80, func(_ int, v *View) { second = append(second, fmt.Sprintf("%+v", summary(v))) })
		if !slices.Equal(first, second) {
			t.Errorf("seed %d: two folds differ", seed)
		}
	}
}

func summary(v *View) []any {
	out := []any{v.Flannel, stable(v.Events), v.Findings, v.Bucket}
	for _, c := range v.Chains {
		out = append(out, c.ID, c.State, c.Rate, c.Total, c.Lane)
	}
	for _, i := range v.Incidents {
		out = append(out, i.Number, i.Kind, i.Start, i.End, i.Effects, i.Spells)
	}
	return out
}

func FuzzApply(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { check(t, seed, 60) })
}
