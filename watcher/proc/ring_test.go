package proc

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"
)

func TestRingTellsWhatANumberMeantAtAMoment(t *testing.T) {
	r := newRing(8)
	r.exec(10, "flanneld", []string{"flanneld", "--ip-masq"})
	r.fork(20, 10, 100)
	r.exec(20, "iptables", []string{"iptables", "-F"})
	r.exit(20, 200)

	got, ok := r.lookup(20, 150)
	if !ok || got.Parent != 10 || got.Comm != "iptables" || !slices.Equal(got.Cmdline, []string{"iptables", "-F"}) || !got.Sure {
		t.Errorf("while it ran: %+v, %v", got, ok)
	}
	for name, c := range map[string]struct {
		pid  int
		at   time.Duration
		want bool
	}{
		"before it was forked":       {20, 99, false},
		"just after its end":         {20, 200 + late, true},
		"long after its end":         {20, 201 + late, false},
		"a parent known by its exec": {10, 1, true},
		"a number never seen":        {30, 150, false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, ok := r.lookup(c.pid, c.at); ok != c.want {
				t.Errorf("lookup = %v, want %v", ok, c.want)
			}
		})
	}
}

func TestRingKnowsANumberGivenAway(t *testing.T) {
	r := newRing(8)
	r.fork(20, 1, 100)
	r.exec(20, "first", []string{"first"})
	r.exit(20, 200)
	r.fork(20, 2, 300)
	if got, ok := r.lookup(20, 400); !ok || got.Parent != 2 || got.Comm == "first" {
		t.Errorf("the new process is %+v, %v", got, ok)
	}
	if got, ok := r.lookup(20, 150); ok {
		t.Errorf("the old process is confused with the new one: %+v", got)
	}
}

func TestRingForkIsItsParentsImage(t *testing.T) {
	r := newRing(8)
	r.exec(10, "sh", []string{"sh", "-c", "…"})
	r.fork(11, 10, 100)
	if got, ok := r.lookup(11, 100); !ok || got.Comm != "sh" {
		t.Errorf("lookup = %+v, %v", got, ok)
	}
}

func TestRingIsBounded(t *testing.T) {
	r := newRing(16)
	for i := range 10000 {
		r.fork(i%50+1, 1, time.Duration(i))
		r.exec(i%50+1, "x", nil)
		r.exit(i%50+1, time.Duration(i))
	}
	if len(r.byPID) > 16 || len(r.order) > 32 {
		t.Errorf("%d processes and %d places are remembered", len(r.byPID), len(r.order))
	}
	if _, ok := r.lookup(9999%50+1, 9999); !ok {
		t.Error("the newest process was forgotten")
	}
}

func TestRingIsUnsureAfterALoss(t *testing.T) {
	r := newRing(8)
	r.fork(20, 1, 100)
	r.lost()
	r.fork(21, 1, 200)
	if a, _ := r.lookup(20, 300); a.Sure {
		t.Error("what was known before the loss counts as sure")
	}
	if b, _ := r.lookup(21, 300); !b.Sure {
		t.Error("what was seen after the loss counts as unsure")
	}
}

// message builds a message of the proc connector.
func message(what eventKind, words ...uint32) []byte {
	order := binary.NativeEndian
	b := make([]byte, eventOffset+eventHeader+24)
	order.PutUint32(b[netlinkHeader:], connectorIndex)
	order.PutUint32(b[netlinkHeader+4:], connectorValue)
	order.PutUint32(b[eventOffset:], uint32(what))
	order.PutUint64(b[eventOffset+8:], 77)
	for i, w := range words {
		order.PutUint32(b[eventOffset+eventHeader+4*i:], w)
	}
	return b
}

func TestEvents(t *testing.T) {
	for name, c := range map[string]struct {
		message []byte
		want    event
		ok      bool
	}{
		"a process forks":              {message(eventFork, 10, 10, 20, 20), event{eventFork, 77, 20, 10}, true},
		"a thread of a process forks":  {message(eventFork, 12, 10, 20, 20), event{eventFork, 77, 20, 10}, true},
		"a thread begins":              {message(eventFork, 10, 10, 21, 20), event{}, false},
		"a process executes a program": {message(eventExec, 20, 20), event{eventExec, 77, 20, 0}, true},
		"a process ends":               {message(eventExit, 20, 20, 0, 0, 10, 10), event{eventExit, 77, 20, 0}, true},
		"a thread ends":                {message(eventExit, 21, 20, 0, 0, 10, 10), event{}, false},
		"the answer to subscribing":    {message(0), event{}, false},
		"a message cut short":          {message(eventFork, 10, 10, 20, 20)[:eventOffset+eventHeader+12], event{}, false},
		"another connector":            {make([]byte, 80), event{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := parseEvent(c.message)
			if ok != c.ok || ok && got != c.want {
				t.Errorf("parseEvent = %+v, %v; want %+v, %v", got, ok, c.want, c.ok)
			}
		})
	}
}

func FuzzEvent(f *testing.F) {
	f.Add(message(eventFork, 10, 10, 20, 20))
	f.Add(message(eventExit, 20, 20))
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, ok := parseEvent(b); ok && (e.pid < 0 || e.parent < 0) {
			t.Errorf("parseEvent(%x) = %+v", b, e)
		}
	})
}
