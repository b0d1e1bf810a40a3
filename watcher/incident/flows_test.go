package incident

import (
	"testing"
	"time"

	"flanwatch/conntrack"
	"flanwatch/flannel"
)

// gapAt is an incident of the masquerade chain from one second to another of the session, open if the end is 0.
func gapAt(n int, from, to float64) Incident {
	id := flannel.MasqChain(flannel.IptablesNft, flannel.IPv4)
	i := Incident{Number: n, Start: second(from), End: second(to), Open: to == 0, touched: second(from)}
	i.Spells = []Spell{{Chain: id, State: flannel.ChainEmpty, From: i.Start, To: i.End, Open: i.Open}}
	return i
}

func second(s float64) flannel.Time {
	return flannel.Time{Boot: time.Duration(s * float64(time.Second)), Wall: time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))), Session: "s"}
}

func lookAt(s float64, bare uint64, cohorts ...conntrack.Cohort) *flannel.Reading[conntrack.Survey] {
	v := conntrack.Survey{
		Kinds:  map[conntrack.Kind]conntrack.Tally{conntrack.Bare: {Flows: bare}},
		Births: conntrack.Births{Since: second(1), Cohorts: cohorts},
	}
	r := flannel.Know(v, "test", second(s))
	return &r
}

func TestABareConnectionIsOfTheLastGapThatItCanHaveBegunIn(t *testing.T) {
	forward := gapAt(3, 1, 0)
	forward.Spells[0].Chain = flannel.ForwardChain(flannel.IptablesNft, flannel.IPv4)
	list := []Incident{gapAt(1, 10, 20), gapAt(2, 30, 0), forward}
	for at, want := range map[float64]int{5: 0, 9.95: 1, 10: 1, 19: 1, 20.05: 1, 25: 0, 30: 2, 500: 2} {
		if got := BornIn(list, second(at)); got != want {
			t.Errorf("born at %v: in %d, want %d", at, got, want)
		}
	}
	if got := BornIn(list, flannel.Time{}); got != 0 {
		t.Errorf("an unknown birth is in %d", got)
	}
}

func TestLooksTellWhatBeganInEachGapAndWhatIsLeftOfIt(t *testing.T) {
	s := NewState()
	s.incidents = []Incident{gapAt(1, 10, 20), gapAt(2, 30, 0)}
	first := conntrack.Cohort{From: second(11), To: second(11.2), Born: 40, Alive: 30, Replied: 3}
	later := conntrack.Cohort{From: second(15), To: second(15), Born: 10, Alive: 10}
	second1 := conntrack.Cohort{From: second(31), To: second(31.1), Born: 5, Alive: 5}
	s.Apply(&Observation{Time: second(16), Flows: lookAt(16, 41, first, later)})
	first.Alive, first.Replied, later.Alive = 12, 1, 2
	s.Apply(&Observation{Time: second(32), Flows: lookAt(32, 20, first, later, second1)})

	e := s.incidents[0].Flows
	if e == nil || e.Born != 50 || e.Alive != 14 || e.Replied != 1 || e.Others != 1 || e.Peak != 50 || e.First != second(11) {
		t.Fatalf("the first gap: %+v", e)
	}
	var curve []uint64
	for _, p := range e.Curve {
		curve = append(curve, p.Bare)
	}
	if len(curve) != 5 || curve[0] != 0 || curve[1] != 40 || curve[2] != 50 || curve[3] != 40 || curve[4] != 14 {
		t.Errorf("its curve is %v", curve)
	}
	if e := s.incidents[1].Flows; e.Born != 5 || e.Alive != 5 || e.First != second(31) {
		t.Errorf("the second gap: %+v", e)
	}
	s.Apply(&Observation{Time: second(33), Flows: &flannel.Reading[conntrack.Survey]{State: flannel.Unreadable, Why: "refused", At: second(33)}})
	if got := s.incidents[0].Flows; got.Alive != 14 || got.Looked != second(32) {
		t.Errorf("a look that failed changed it to %+v", got)
	}
}

func TestConnectionsAreLookedAtOnlyAsLongAsAGapLeftSomething(t *testing.T) {
	s := NewState()
	if w := s.WantsFlows(second(1), false); w != nil {
		t.Errorf("with no incident: %+v", w)
	}
	if w := s.WantsFlows(second(1), true); w == nil || !w.Listen || !w.Often {
		t.Errorf("with the list open: %+v", w)
	}
	s.incidents = []Incident{gapAt(1, 10, 0)}
	if w := s.WantsFlows(second(11), false); w == nil || !w.Listen || w.Often {
		t.Errorf("in the gap: %+v", w)
	}
	s.incidents[0].Open, s.incidents[0].End = false, second(20)
	if w := s.WantsFlows(second(20), false); w == nil || w.Listen {
		t.Errorf("just after it: %+v", w)
	}
	left := conntrack.Cohort{From: second(11), To: second(11), Born: 1, Alive: 1}
	s.Apply(&Observation{Time: second(21), Flows: lookAt(21, 1, left)})
	if w := s.WantsFlows(second(60), false); w == nil || w.Listen {
		t.Errorf("while one is left: %+v", w)
	}
	if w := s.WantsFlows(second(20+31*60), false); w != nil {
		t.Errorf("half an hour later: %+v", w)
	}
	left.Alive = 0
	s.Apply(&Observation{Time: second(70), Flows: lookAt(70, 0, left)})
	if w := s.WantsFlows(second(71), false); w != nil {
		t.Errorf("when none is left: %+v", w)
	}
}
