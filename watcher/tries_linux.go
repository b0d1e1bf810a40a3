package watcher

import (
	"slices"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

const (
	// calmAfter is how many successful attempts in a row are told one by one before they are told together.
	calmAfter = 20
	// together is the span of attempts that are told at once: as often as the screen is drawn at rest.
	together = time.Second
)

// tries gathers successful attempts to connect while all is well, since ten a second would fill a journal with good news.
// What fails is told at once, and so is what follows it.
type tries struct {
	calm        int // successful attempts in a row
	took        []time.Duration
	first, last flannel.Time // when the first and the last of them began
}

// add takes an attempt that was over at a time, and tells what there is to tell.
func (t *tries) add(p incident.Probe, at flannel.Time, sink Sink) {
	if p.Why != "" {
		t.calm = 0
	} else {
		t.calm++
	}
	if t.calm <= calmAfter {
		t.tell(p, at, sink)
		sink(&incident.Observation{Time: at, Probe: &p})
		return
	}
	began := at.Add(-p.Took)
	if len(t.took) == 0 {
		t.first = began
	}
	t.last = began
	t.took = append(t.took, p.Took)
	if t.last.Sub(t.first) >= together {
		t.tell(p, at, sink)
	}
}

// tell tells of the attempts that were gathered, which had the target of p.
func (t *tries) tell(p incident.Probe, now flannel.Time, sink Sink) {
	n := len(t.took)
	if n == 0 {
		return
	}
	slices.Sort(t.took)
	p.Why, p.Took = "", t.took[n/2]
	if n > 1 {
		p.Count, p.Max, p.First, p.Last = n, t.took[n-1], now.Sub(t.first), now.Sub(t.last)
	} else {
		now = t.last.Add(p.Took)
	}
	t.took = t.took[:0]
	sink(&incident.Observation{Time: now, Probe: &p})
}
