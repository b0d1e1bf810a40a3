package conntrack

import (
	"testing"
	"time"

	"flanwatch/flannel"
)

func when(s float64) flannel.Time {
	return flannel.Time{Boot: time.Duration(s * float64(time.Second)), Session: "test"}
}

func TestAgesTellBirthsThatWereHeardOfAndSinceWhenTheOthersAreSeen(t *testing.T) {
	a := NewAges()
	born, old := bareFlow, translatedFlow
	born.ID, old.ID = 1, 2
	a.Born(&born, Bare, when(10))
	a.Born(&born, Bare, when(11)) // again, after a loss: the first counts
	for look := 12.0; look < 15; look++ {
		s := &Survey{Flows: []Sample{{Flow: born}, {Flow: old}}}
		a.Mark(s, when(look))
		if s.Flows[0].Born != when(10) || !s.Flows[1].Born.IsZero() || s.Flows[1].Seen != when(12) {
			t.Errorf("at %v: %+v", look, s.Flows)
		}
	}
	a.Mark(&Survey{}, when(15))
	s := &Survey{Flows: []Sample{{Flow: old}}}
	a.Mark(s, when(16))
	if s.Flows[0].Seen != when(16) {
		t.Errorf("one that was gone meanwhile is seen since %v", s.Flows[0].Seen)
	}
	for i := range maxAges + 10 {
		f := bareFlow
		f.ID = uint32(100 + i)
		a.Born(&f, Bare, when(20))
	}
	if len(a.born) != maxAges || len(a.order) != maxAges {
		t.Errorf("%d births are remembered", len(a.born))
	}
}

// numbered gives the flow with an ID and a port of its own.
func numbered(f Flow, n int) Flow {
	f.ID, f.Orig.SPort = uint32(n), uint16(n)
	return f
}

func TestBirthsAreCountedBeyondWhatIsListedAndHeldAgainstTheTable(t *testing.T) {
	a := NewAges()
	a.Listen(when(1))
	const early, late = 1500, 300
	for i := range early + late {
		f, at := numbered(bareFlow, i+1), when(10+float64(i)/1e5)
		if i >= early {
			at = when(20)
		}
		a.Born(&f, Bare, at)
	}
	other := numbered(translatedFlow, 9999)
	a.Born(&other, Translated, when(21))
	for range 2 { // a second look begins to count anew
		s := NewSurveyor(usual(), a)
		for i := early - 1200; i < early+1; i++ {
			f := numbered(bareFlow, i+1)
			f.Status = 0
			if i < early-1000 {
				f.Status = SeenReply
			}
			s.Add(&f)
		}
		unheard := numbered(bareFlow, 30_000)
		s.Add(&unheard)
		v := s.Done(0)
		a.Mark(v, when(30))
		b := v.Births
		if b.Since != when(1) || len(b.Cohorts) != 2 || b.Cohorts[0].Born != early || b.Cohorts[1].Born != late {
			t.Fatalf("%+v", b)
		}
		if b.Cohorts[0].Alive != 1200 || b.Cohorts[0].Replied != 200 || b.Cohorts[1].Alive != 1 || b.Cohorts[1].Replied != 0 {
			t.Errorf("alive %+v", b.Cohorts)
		}
	}
	a.Deaf()
	a.Lost()
	s := &Survey{}
	a.Mark(s, when(31))
	if !s.Births.Since.IsZero() || s.Births.Lost != 1 {
		t.Errorf("%+v", s.Births)
	}
}

func TestCohortsAreBoundedAndLoseNoBirth(t *testing.T) {
	a := NewAges()
	for i := range 3 * maxCohorts {
		f := numbered(bareFlow, i+1)
		a.Born(&f, Bare, when(float64(i)))
	}
	s := NewSurveyor(usual(), a)
	for i := range 3 * maxCohorts {
		f := numbered(bareFlow, i+1)
		s.Add(&f)
	}
	v := s.Done(0)
	a.Mark(v, when(1e4))
	var born, alive uint64
	for _, c := range v.Births.Cohorts {
		born, alive = born+c.Born, alive+c.Alive
	}
	if len(v.Births.Cohorts) != maxCohorts || born != 3*maxCohorts || alive != born {
		t.Errorf("%d cohorts of %d, %d alive", len(v.Births.Cohorts), born, alive)
	}
}
