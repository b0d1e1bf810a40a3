package incident

import (
	"testing"
	"time"

	"flanwatch/flannel"
)

var lookID = flannel.ChainID{Backend: flannel.IptablesNft, Family: flannel.IPv4, Table: "mangle", Name: "POSTROUTING"}

// looking folds one reading of an opened chain with the packets of its rules, by handle.
func looking(s *State, id flannel.ChainID, seconds float64, packets map[uint64]uint64, handles ...uint64) *OpenedView {
	at := flannel.Time{Boot: time.Duration(seconds * float64(time.Second)), Session: "s"}
	var c Opened
	for _, h := range handles {
		c.Entries = append(c.Entries, flannel.Entry{
			Handle: h, Body: h, Counted: true, Counter: flannel.Counter{Packets: packets[h], Bytes: 100 * packets[h]},
		})
	}
	s.Apply(&Observation{Time: at, Opened: &OpenedRead{ID: id, Chain: flannel.Know(c, "", at)}})
	return s.View(at).Opened
}

func TestAnOpenedChainHasRatesFromItsSecondReadingOn(t *testing.T) {
	s := NewState()
	v := looking(s, lookID, 1, map[uint64]uint64{1: 50, 2: 7}, 1, 2)
	if v.Rules[0].Rate.Known || v.Rules[0].Counter.Packets != 50 {
		t.Errorf("first reading: %+v", v.Rules[0])
	}
	v = looking(s, lookID, 3, map[uint64]uint64{1: 70, 2: 7}, 1, 2)
	if r := v.Rules[0].Rate; !r.Known || r.Packets != 10 || r.Bytes != 1000 {
		t.Errorf("rate %+v", r)
	}
	if r := v.Rules[1].Rate; !r.Known || r.Packets != 0 {
		t.Errorf("idle rate %+v", r)
	}
}

func TestARuleThatIsNewInAnOpenedChainHasNoRateAtFirst(t *testing.T) {
	s := NewState()
	looking(s, lookID, 1, map[uint64]uint64{1: 50}, 1)
	v := looking(s, lookID, 2, map[uint64]uint64{1: 60, 2: 90000}, 2, 1)
	for _, r := range v.Rules {
		if r.Rate.Known {
			t.Errorf("%+v", r)
		}
	}
	v = looking(s, lookID, 3, map[uint64]uint64{1: 70, 2: 90005}, 2, 1)
	if v.Rules[0].Rate.Packets != 5 || v.Rules[1].Rate.Packets != 10 {
		t.Errorf("%+v", v.Rules)
	}
}

func TestAnotherChainThatIsOpenedInheritsNothing(t *testing.T) {
	s := NewState()
	looking(s, lookID, 1, map[uint64]uint64{1: 50}, 1)
	other := lookID
	other.Family = flannel.IPv6
	if v := looking(s, other, 2, map[uint64]uint64{1: 60}, 1); v.ID != other || v.Rules[0].Rate.Known {
		t.Errorf("%+v", v)
	}
}

func TestADipOfALegacyCounterIsNotShown(t *testing.T) {
	id := lookID
	id.Backend = flannel.IptablesLegacy
	s := NewState()
	base := func(seconds float64, packets uint64) flannel.Counter {
		at := flannel.Time{Boot: time.Duration(seconds * float64(time.Second)), Session: "s"}
		list := Bases{Chains: []Base{{ID: id, Counted: true, Counter: flannel.Counter{Packets: packets, Bytes: packets}}}}
		s.Apply(&Observation{Time: at, Bases: &BasesRead{Backend: id.Backend, Bases: flannel.Know(list, "", at)}})
		return s.View(at).Bases[0].Chains[0].Counter
	}
	for i, packets := range []uint64{100, 0, 101} {
		at := 1 + 0.3*float64(i)
		want := max(packets, 100)
		if v := looking(s, id, at, map[uint64]uint64{1: packets}, 1); v.Rules[0].Counter.Packets != want {
			t.Errorf("reading %d: rule %d, want %d", i, v.Rules[0].Counter.Packets, want)
		}
		if got := base(at, packets).Packets; got != want {
			t.Errorf("reading %d: policy %d, want %d", i, got, want)
		}
	}
}

func TestAFailureKeepsWhatWasKnownWithoutSpeeds(t *testing.T) {
	s := NewState()
	looking(s, lookID, 1, map[uint64]uint64{1: 50}, 1)
	looking(s, lookID, 2, map[uint64]uint64{1: 60}, 1)
	at := flannel.Time{Boot: 3 * time.Second, Session: "s"}
	s.Apply(&Observation{Time: at, Opened: &OpenedRead{ID: lookID, Chain: flannel.Miss[Opened](flannel.Unreadable, "no", "", at)}})
	v := s.View(at).Opened
	if v.State != flannel.Unreadable || v.Why != "no" || v.Rules[0].Rate.Known || v.Rules[0].Counter.Packets != 60 {
		t.Errorf("%+v", v)
	}
	if v := looking(s, lookID, 4, map[uint64]uint64{1: 70}, 1); v.Rules[0].Rate.Known {
		t.Errorf("a speed spans the failure: %+v", v)
	}
}

func TestTheEndOfALookIsForgotten(t *testing.T) {
	s := NewState()
	looking(s, lookID, 1, map[uint64]uint64{1: 50}, 1)
	at := flannel.Time{Boot: 2 * time.Second, Session: "s"}
	s.Apply(&Observation{Time: at, Bases: &BasesRead{Backend: flannel.Nftables, Bases: flannel.Know(Bases{}, "", at)}})
	if v := s.View(at); len(v.Bases) != 1 || v.Opened == nil {
		t.Errorf("%+v", v)
	}
	s.Apply(&Observation{Time: at, Opened: &OpenedRead{ID: lookID}})
	s.Apply(&Observation{Time: at, Bases: &BasesRead{Backend: flannel.Nftables}})
	if v := s.View(at); len(v.Bases) != 0 || v.Opened != nil {
		t.Errorf("%+v", v)
	}
}

func TestAViewOfALookNeverChanges(t *testing.T) {
	s := NewState()
	v := looking(s, lookID, 1, map[uint64]uint64{1: 50}, 1)
	looking(s, lookID, 2, map[uint64]uint64{1: 60}, 1)
	if v.Rules[0].Counter.Packets != 50 {
		t.Errorf("%+v", v.Rules[0])
	}
}
