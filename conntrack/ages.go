package conntrack

import (
	"slices"
	"sync"
	"time"

	"flanwatch/flannel"
)

const (
	// maxAges bounds how many connections an Ages remembers; beyond it the oldest births are forgotten first.
	maxAges = 20_000
	// cohortSpan is how far apart births are that are counted together.
	cohortSpan = 250 * time.Millisecond
	// maxCohorts bounds the cohorts; beyond it the oldest two become one.
	maxCohorts = 256
)

// Births is what announcements of new connections told of those that are bare, however many there are.
type Births struct {
	Since     flannel.Time `json:"since,omitzero"`      // since when they are heard, zero while nobody listens
	Lost      uint64       `json:"lost,omitempty"`      // how often some were missed
	Forgotten uint64       `json:"forgotten,omitempty"` // births that are no longer remembered, so that Alive is too low
	Cohorts   []Cohort     `json:"cohorts,omitempty"`   // oldest first
}

// Cohort counts the bare connections that were born within a short span of time.
type Cohort struct {
	From    flannel.Time `json:"from"` // birth of the first
	To      flannel.Time `json:"to"`   // birth of the last
	Born    uint64       `json:"born"`
	Alive   uint64       `json:"alive"`   // of these, in the table when it was looked at
	Replied uint64       `json:"replied"` // of those alive
}

// Ages remembers when connections were born, as far as their birth was announced, and since when they have been seen. The
// kernel's entries carry no time unless somebody switched that on. It is safe for concurrent use: births are announced while
// the table is read.
type Ages struct {
	mu     sync.Mutex
	born   map[Key]flannel.Time
	order  []Key // of born, oldest first
	seen   map[Key]flannel.Time
	births Births
}

// NewAges knows of no connection.
func NewAges() *Ages { return &Ages{born: map[Key]flannel.Time{}, seen: map[Key]flannel.Time{}} }

// Listen notes since when births are announced, Deaf that they are no longer.
func (a *Ages) Listen(at flannel.Time) { a.locked(func() { a.births.Since = at }) }

// Deaf notes that births are no longer announced.
func (a *Ages) Deaf() { a.locked(func() { a.births.Since = flannel.Time{} }) }

// Lost notes that announcements were missed.
func (a *Ages) Lost() { a.locked(func() { a.births.Lost++ }) }

func (a *Ages) locked(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// Born takes the announcement of a new connection that was judged to be of a kind.
func (a *Ages) Born(f *Flow, kind Kind, at flannel.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := f.Key()
	if _, ok := a.born[k]; ok {
		return
	}
	if len(a.order) >= maxAges {
		delete(a.born, a.order[0])
		a.order = a.order[1:]
		a.births.Forgotten++
	}
	a.born[k] = at
	a.order = append(a.order, k)
	if kind == Bare {
		a.births.add(at)
	}
}

// add counts one birth. Births come in the order of time.
func (b *Births) add(at flannel.Time) {
	if n := len(b.Cohorts); n > 0 && at.Sub(b.Cohorts[n-1].From) < cohortSpan {
		c := &b.Cohorts[n-1]
		c.To = at
		c.Born++
		return
	}
	if len(b.Cohorts) >= maxCohorts {
		first, second := b.Cohorts[0], &b.Cohorts[1]
		second.From = first.From
		second.Born, second.Alive, second.Replied = second.Born+first.Born, second.Alive+first.Alive, second.Replied+first.Replied
		b.Cohorts = slices.Delete(b.Cohorts, 0, 1)
	}
	b.Cohorts = append(b.Cohorts, Cohort{From: at, To: at, Born: 1})
}

// cohort finds the cohort of a birth, nil if it is of none.
func (b *Births) cohort(at flannel.Time) *Cohort {
	i, _ := slices.BinarySearchFunc(b.Cohorts, at, func(c Cohort, at flannel.Time) int { return int(c.To.Sub(at)) })
	if i < len(b.Cohorts) && at.Sub(b.Cohorts[i].From) >= 0 {
		return &b.Cohorts[i]
	}
	return nil
}

// begin starts to count anew which connections are alive.
func (a *Ages) begin() {
	a.locked(func() {
		for i := range a.births.Cohorts {
			a.births.Cohorts[i].Alive, a.births.Cohorts[i].Replied = 0, 0
		}
	})
}

// alive notes that a bare connection is in the table.
func (a *Ages) alive(f *Flow) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.born[f.Key()]
	if !ok {
		return
	}
	if c := a.births.cohort(at); c != nil {
		c.Alive++
		if f.Replied() {
			c.Replied++
		}
	}
}

// Mark fills in the times of a survey made at the given moment, and what births told, and forgets since when those have been
// seen that are gone.
func (a *Ages) Mark(s *Survey, at flannel.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	seen := make(map[Key]flannel.Time, len(s.Flows))
	for i := range s.Flows {
		sample := &s.Flows[i]
		k := sample.Flow.Key()
		first, ok := a.seen[k]
		if !ok {
			first = at
		}
		seen[k] = first
		sample.Seen = first
		if born, ok := a.born[k]; ok {
			sample.Born = born
		}
	}
	a.seen = seen
	s.Births = a.births
	s.Births.Cohorts = slices.Clone(a.births.Cohorts)
}
