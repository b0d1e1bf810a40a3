package conntrack

import "flanwatch/flannel"

// maxAges bounds how many connections an Ages remembers; beyond it the oldest births are forgotten first.
const maxAges = 20_000

// Ages remembers when connections were born, as far as their birth was announced, and since when they have been seen. The
// kernel's entries carry no time unless somebody switched that on.
type Ages struct {
	born  map[Key]flannel.Time
	order []Key // of born, oldest first
	seen  map[Key]flannel.Time
}

// NewAges knows of no connection.
func NewAges() *Ages { return &Ages{born: map[Key]flannel.Time{}, seen: map[Key]flannel.Time{}} }

// Born takes the announcement of a new connection.
func (a *Ages) Born(f *Flow, at flannel.Time) {
	k := f.Key()
	if _, ok := a.born[k]; ok {
		return
	}
	if len(a.order) >= maxAges {
		delete(a.born, a.order[0])
		a.order = a.order[1:]
	}
	a.born[k] = at
	a.order = append(a.order, k)
}

// Mark fills in the times of a survey made at the given moment, and forgets since when those have been seen that are gone.
func (a *Ages) Mark(s *Survey, at flannel.Time) {
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
}
