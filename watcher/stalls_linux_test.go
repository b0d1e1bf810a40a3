package watcher_test

import (
	"sync"
	"testing"
	"time"

	"flanwatch/watcher/legacy"
)

// stalls notes when this machine stood still: a thread that runs ahead of all ordinary ones, as the listener's does, was
// woken late. What the watcher has noted late then is no fault of its own.
type stalls struct {
	mu   sync.Mutex
	list []stall
}

// stall is a time of which a thread knows nothing, though it meant to.
type stall struct{ from, to time.Duration } // boot time

// stallStep is fine enough for the strictest limit, of 3 ms, that a window is held to.
const stallStep = time.Millisecond

func noteStalls(t *testing.T) *stalls {
	s := &stalls{}
	go func() {
		_ = legacy.Hurry() // where that is not allowed, the listener cannot either
		for last := bootTime(); t.Context().Err() == nil; {
			time.Sleep(stallStep)
			now := bootTime()
			if now-last > 2*stallStep {
				s.mu.Lock()
				s.list = append(s.list, stall{last, now})
				s.mu.Unlock()
			}
			last = now
		}
	}()
	return s
}

// longest gives the longest stall that began or ended between two times.
func (s *stalls) longest(from, to time.Duration) (longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.list {
		if x.to >= from && x.from <= to {
			longest = max(longest, x.to-x.from)
		}
	}
	return longest
}
