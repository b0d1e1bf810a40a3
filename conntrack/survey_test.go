package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

func surveyOf(flows ...Flow) *Survey {
	s := NewSurveyor(usual(), nil)
	for i := range flows {
		flows[i].ID = uint32(i + 1)
		s.Add(&flows[i])
	}
	return s.Done(time.Millisecond)
}

var (
	bareFlow       = flow(TCP, "10.244.1.5", "192.0.2.80", "192.0.2.80", "10.244.1.5", SeenReply)
	translatedFlow = flow(UDP, "10.244.1.6", "10.244.2.7", "10.244.2.7", "192.168.60.11", 0)
	arrivingFlow   = flow(TCP, "10.244.2.0", "10.244.1.5", "10.244.1.5", "10.244.2.0", 0)
	staleFlow      = flow(UDP, "10.244.1.6", "10.96.0.1", "10.244.1.99", "10.244.1.6", 0)
	healthyFlow    = flow(TCP, "10.244.1.5", "192.0.2.80", "192.0.2.80", "192.168.60.11", SeenReply|Assured)
	foreignFlow    = flow(UDP, "192.168.60.11", "192.0.2.80", "192.0.2.80", "192.168.60.11", 0)
)

func TestASurveyCountsAllAndListsWhatIsWrong(t *testing.T) {
	s := surveyOf(healthyFlow, staleFlow, arrivingFlow, translatedFlow, bareFlow, foreignFlow)
	if s.Entries != 6 || s.Pods != 5 || len(s.Flows) != 4 {
		t.Fatalf("%+v", s)
	}
	var got []string
	for _, f := range s.Flows {
		got = append(got, fmt.Sprintf("%s pod %q from %q", f.Kind, f.Pod, f.From))
	}
	want := []string{
		`bare pod "shop/cart-0" from ""`, `translated pod "" from ""`,
		`arriving pod "shop/cart-0" from "192.168.60.12"`, `stale pod "" from ""`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if k := s.Kinds[Bare]; k != (Tally{1, 1}) {
		t.Errorf("bare %+v", k)
	}
	if s.Sources[0] != (Talker{netip.MustParseAddr("10.244.1.5"), "shop/cart-0", 2}) || len(s.Sources) != 3 {
		t.Errorf("sources %+v", s.Sources)
	}
	if s.States["udp UNREPLIED"] != 3 || s.States["tcp NONE"] != 3 {
		t.Errorf("states %v", s.States)
	}
}

func TestBeyondItsBoundASurveyCountsAndDoesNotList(t *testing.T) {
	s := NewSurveyor(usual(), nil)
	for i := range MaxFlows + 500 {
		f := bareFlow
		f.Orig.SPort, f.ID = uint16(i), uint32(i)
		s.Add(&f)
	}
	v := s.Done(0)
	if len(v.Flows) != MaxFlows || v.Kinds[Bare].Flows != MaxFlows+500 {
		t.Errorf("%d listed, %d counted", len(v.Flows), v.Kinds[Bare].Flows)
	}
}

func TestAHealthyEntryCostsNoAllocation(t *testing.T) {
	s := NewSurveyor(usual(), nil)
	f := healthyFlow
	if n := testing.AllocsPerRun(1000, func() { s.Add(&f) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestTopTalkersAreExactAmongFewAndSurviveAmongMany(t *testing.T) {
	var few, many tops
	for i := range 250 {
		a := netip.AddrFrom4([4]byte{10, 244, 1, byte(i)})
		for range i + 1 {
			few.add(a)
		}
	}
	for i, x := range few.list(nil) {
		if x.Entries != uint64(250-i) {
			t.Errorf("place %d has %d entries, want %d", i, x.Entries, 250-i)
		}
	}
	heavy := netip.MustParseAddr("10.244.1.5")
	for i := range 200_000 {
		many.add(netip.AddrFrom4([4]byte{192, byte(i >> 16), byte(i >> 8), byte(i)}))
		if i%20 == 0 {
			many.add(heavy)
		}
	}
	top := many.list(nil)[0]
	if top.Addr != heavy || top.Entries > 10_000 || top.Entries < 9_900 {
		t.Errorf("the heaviest is %+v, want %v with up to 10000", top, heavy)
	}
}

func TestLooksAreFarEnoughApart(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: 5 * time.Second, 100 * time.Millisecond: 5 * time.Second, 163 * time.Millisecond: 8150 * time.Millisecond,
	} {
		if got := Interval(took); got != want {
			t.Errorf("after %v: %v, want %v", took, got, want)
		}
	}
}

func TestAPlanIsOfTheListedFlowsAndItsIDOfTheirBodies(t *testing.T) {
	s := surveyOf(healthyFlow, staleFlow, arrivingFlow, translatedFlow, bareFlow)
	all := Unstick(s, Kinds...)
	if len(all.Flows) != 3 || len(all.ID) != 12 {
		t.Fatalf("%+v", all)
	}
	for _, f := range all.Flows {
		if f.Kind == Arriving {
			t.Error("one that arrives translated cannot be cured here")
		}
	}
	if p := Unstick(surveyOf(healthyFlow, staleFlow, arrivingFlow, translatedFlow, bareFlow), Kinds...); p.ID != all.ID {
		t.Error("the same flows give another ID")
	}
	others := map[string]string{all.ID: "all"}
	for name, p := range map[string]Plan{
		"fewer kinds": Unstick(s, Bare),
		"another ID":  Unstick(surveyOf(staleFlow, bareFlow, translatedFlow), Kinds...),
		"nothing":     Unstick(&Survey{}, Kinds...),
	} {
		if was, twice := others[p.ID]; twice {
			t.Errorf("%s has the ID of %s", name, was)
		}
		others[p.ID] = name
	}
	effect := all.Effect()
	if len(effect) != 5 || effect[4] != "this cannot be undone: the kernel makes new entries, never the same ones" {
		t.Errorf("%q", effect)
	}
}

func TestACloneSharesNothing(t *testing.T) {
	s := surveyOf(bareFlow)
	c := s.Clone()
	c.Flows[0].Kind, c.Kinds[Bare], c.Sources[0].Entries = Stale, Tally{}, 0
	c.States["udp"] = 1
	if s.Flows[0].Kind != Bare || s.Kinds[Bare].Flows != 1 || s.Sources[0].Entries != 1 || s.States["udp"] != 0 {
		t.Errorf("%+v", s)
	}
}
