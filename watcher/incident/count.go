package incident

import (
	"time"

	"flanwatch/flannel"
)

// minSpan is the shortest time over which a speed is told: a change triggers a read at once, and a packet within three
// milliseconds is not 300 a second. Half of the shortest interval of polling.
const minSpan = 50 * time.Millisecond

// maxJitter is how far behind a reading an announcement that waited its turn may lie.
const maxJitter = time.Second

// tally counts one rule as long as it keeps its handle and its body.
type tally struct {
	handle, body uint64
	counts       bool // belongs to the chain's sum
	hold         Hold
	seen         flannel.Counter // counted so far, restarts included
	marked       flannel.Counter // seen at the chain's mark
	rate         Rate
}

// meter adds up the tallies of a chain and turns them into speeds. Totals never fall; speeds are never negative and unknown
// where the span since the last good reading holds a gap.
type meter struct {
	rules   []tally
	legacy  bool
	counted bool
	good    bool // the last reading showed rules
	total   flannel.Counter
	sums    map[uint64]flannel.Counter // by a rule's body: what total is made of, whatever handles its copies had
	mark    flannel.Time               // start of the span that the next speed covers
	marked  flannel.Counter            // total at the mark
	rate    Rate
	history history
}

// take adds the values of the entries, which must be those of the rules of m, tells the speeds, and says whether counters
// were restarted. The time start is that from which the history's buckets are counted.
func (m *meter) take(entries []flannel.Entry, start, at flannel.Time) bool {
	var restarted, pending bool
	for i := range m.rules {
		if !entries[i].Counted {
			continue
		}
		g := m.add(i, entries[i].Counter, at)
		restarted = restarted || g.Reset
		pending = pending || g.Pending
	}
	switch {
	case !m.counted || len(m.rules) == 0:
		m.pause()
	case !m.good:
		m.setMark(at)
		m.good = true
	case !pending:
		m.measure(start, at)
	}
	return restarted
}

// add takes the value of one rule.
func (m *meter) add(i int, v flannel.Counter, at flannel.Time) Growth {
	t := &m.rules[i]
	g := t.hold.Next(v, at)
	if g.Pending && !m.legacy {
		g = t.hold.restart(v) // nf_tables never dips
	}
	t.seen = plus(t.seen, g.Delta)
	if t.counts {
		m.total = plus(m.total, g.Delta)
		m.sum(t.body, g.Delta)
	}
	return g
}

// maxSums bounds the rules whose sums are kept: Flannel has at most eight in a chain, and somebody may write others for ever.
const maxSums = 64

func (m *meter) sum(body uint64, delta flannel.Counter) {
	old, known := m.sums[body]
	switch {
	case !known && len(m.sums) >= maxSums:
		return
	case m.sums == nil:
		m.sums = map[uint64]flannel.Counter{}
	}
	m.sums[body] = plus(old, delta)
}

// measure tells the speeds since the mark.
func (m *meter) measure(start, at flannel.Time) {
	span := at.Sub(m.mark)
	if at.Session != m.mark.Session || span < -maxJitter {
		m.pause()
		m.setMark(at)
		m.good = true
		return
	}
	if span < minSpan {
		return
	}
	m.rate = speed(minus(m.total, m.marked), span)
	for i := range m.rules {
		t := &m.rules[i]
		t.rate = speed(minus(t.seen, t.marked), span)
	}
	m.history.add(m.mark.Sub(start), at.Sub(start), m.rate.Packets)
	m.setMark(at)
}

func (m *meter) setMark(at flannel.Time) {
	m.mark, m.marked = at, m.total
	for i := range m.rules {
		m.rules[i].marked = m.rules[i].seen
	}
}

// pause says that nothing is known until the next reading: it will give no speed.
func (m *meter) pause() {
	m.good = false
	m.rate = Rate{}
	for i := range m.rules {
		m.rules[i].rate = Rate{}
	}
}

// follow fits the tallies to a new list of entries: rules that kept handle and body go on, all others begin. counts tells
// for each position whether it belongs to the chain's sum. It gives the number of rules that are new.
func (m *meter) follow(entries []flannel.Entry, counts func(int) bool) int {
	fresh := 0
	type key struct{ handle, body uint64 }
	old := make(map[key][]int, len(m.rules))
	for i, t := range m.rules {
		k := key{t.handle, t.body}
		old[k] = append(old[k], i)
	}
	rules := make([]tally, len(entries))
	for i, e := range entries {
		k := key{e.Handle, e.Body}
		if same := old[k]; len(same) > 0 {
			rules[i] = m.rules[same[0]]
			old[k] = same[1:]
		} else {
			rules[i] = tally{handle: e.Handle, body: e.Body}
			fresh++
		}
		rules[i].counts = counts(i)
	}
	m.rules = rules
	if len(entries) > 0 {
		m.counted = anyCounted(entries)
	}
	return fresh
}

func anyCounted(entries []flannel.Entry) bool {
	for i := range entries {
		if entries[i].Counted {
			return true
		}
	}
	return false
}

func speed(c flannel.Counter, span time.Duration) Rate {
	s := span.Seconds()
	return Rate{Known: true, Packets: float64(c.Packets) / s, Bytes: float64(c.Bytes) / s}
}
