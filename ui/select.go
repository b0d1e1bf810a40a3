package ui

import (
	"slices"
	"time"

	"flanwatch/watcher/incident"
)

// selection remembers what is selected by its key, so that it stays with the thing when rows come, go or move. While the
// thing is away the row at its last place is selected, and the selection returns with it.
type selection[K comparable] struct {
	key K
	set bool
	at  int // its place when it was last seen
}

// index finds the selected one of n rows, -1 if there are none.
func (s *selection[K]) index(keys []K) int {
	if len(keys) == 0 {
		return -1
	}
	if s.set {
		if i := slices.Index(keys, s.key); i >= 0 {
			return i
		}
		return min(s.at, len(keys)-1)
	}
	return 0
}

// move selects the row by steps away, stopping at both ends.
func (s *selection[K]) move(keys []K, by int) {
	if len(keys) == 0 {
		return
	}
	s.at = min(max(s.index(keys)+by, 0), len(keys)-1)
	s.key, s.set = keys[s.at], true
}

// follow notes where the selected row is now.
func (s *selection[K]) follow(keys []K) {
	if i := slices.Index(keys, s.key); s.set && i >= 0 {
		s.at = i
	}
}

// eventKey tells events apart.
type eventKey struct {
	wall  time.Time
	kind  incident.EventKind
	chain string
	text  string
}

func keyOf(e *incident.Event) eventKey {
	return eventKey{e.Time.Wall, e.Kind, e.Chain.String(), e.Text}
}

// window gives the first of n rows to draw so that row at is among the h drawn.
func window(n, h, at int) int {
	if at < h/2 || n <= h {
		return 0
	}
	return min(at-h/2, n-h)
}
