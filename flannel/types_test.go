package flannel

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestNamesOfIdentitiesGoThroughJSON(t *testing.T) {
	for _, b := range Backends {
		for _, f := range Families {
			for _, s := range []ReadState{Unread, Known, Absent, Unreadable} {
				type all struct {
					ID    ChainID
					Table TableID
					State ReadState
				}
				in := all{ChainID{b, f, "nat", "X"}, TableID{b, f, "nat"}, s}
				data, err := json.Marshal(in)
				var out all
				if err == nil {
					err = json.Unmarshal(data, &out)
				}
				if err != nil || in != out {
					t.Errorf("%s: %+v %v", data, out, err)
				}
			}
		}
	}
}

func TestUnknownNamesAreRefused(t *testing.T) {
	var id ChainID
	for _, data := range []string{`{"backend":"ipchains"}`, `{"family":"ipx"}`} {
		if err := json.Unmarshal([]byte(data), &id); err == nil {
			t.Errorf("%s was taken", data)
		}
	}
	if _, err := json.Marshal(ChainID{}); err == nil {
		t.Error("an identity without backend was written")
	}
	if got := Backend(9).String() + " " + Family(9).String(); got != "backend(9) family(9)" {
		t.Error(got)
	}
}

func TestIdentitiesReadAsWritten(t *testing.T) {
	id := MasqChain(IptablesNft, IPv4)
	if got := id.String(); got != "iptables-nft ip nat FLANNEL-POSTRTG" {
		t.Error(got)
	}
	if got := id.Short() + ", " + MasqChain(Nftables, IPv6).Short(); got != "v4 nat FLANNEL-POSTRTG, v6 flannel-ipv6 postrtg" {
		t.Error(got)
	}
	if IPv4.Bits() != 32 || IPv6.Bits() != 128 {
		t.Error("bits")
	}
}

func TestChainsSortNatBeforeFilter(t *testing.T) {
	ids := Looked(IptablesNft)
	var got []string
	for _, id := range ids[:4] {
		got = append(got, id.Table+" "+id.Name)
	}
	if want := "[nat FLANNEL-POSTRTG nat POSTROUTING filter FLANNEL-FWD filter FORWARD]"; fmt.Sprint(got) != want {
		t.Errorf("%v", got)
	}
}

func TestTimesCompareByTheBootClockWithinASession(t *testing.T) {
	wall := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a := Time{Wall: wall, Boot: time.Minute, Session: "a"}
	b := Time{Wall: wall.Add(time.Hour), Boot: time.Minute + time.Second, Session: "a"}
	if got := b.Sub(a); got != time.Second {
		t.Errorf("a step of the wall clock counted: %s", got)
	}
	b.Session = "b"
	if got := b.Sub(a); got != time.Hour {
		t.Errorf("boot clocks of two sessions compared: %s", got)
	}
	if c := a.Add(time.Second); c.Sub(a) != time.Second || c.Wall.Sub(a.Wall) != time.Second {
		t.Errorf("%+v", c)
	}
	if !(Time{}).IsZero() || a.IsZero() {
		t.Error("zero")
	}
}

func TestAReadingKnowsWhyItIsMissing(t *testing.T) {
	at := Time{Boot: 1}
	if v, ok := Know(3, "file", at).Get(); v != 3 || !ok {
		t.Error(v, ok)
	}
	r := Miss[int](Unreadable, "no privilege", "file", at)
	if _, ok := r.Get(); ok || r.Why != "no privilege" || r.State.String() != "unreadable" {
		t.Errorf("%+v", r)
	}
}

func TestACloneOfARulesetKeepsItsCounters(t *testing.T) {
	rs := loadSave(t, "v0.28.10-running.nft.ip.txt")
	id := MasqChain(IptablesNft, IPv4)
	kept := rs.Clone()
	rs.Chain(id).Entries[0].Counter.Packets = 99
	rs.Chain(id).Present = false
	if c := kept.Chain(id); c.Entries[0].Counter.Packets == 99 || !c.Present {
		t.Error("the clone changed with its original")
	}
	if !slices.Equal(Of(IPv6, nets), nets[1:]) {
		t.Error("families")
	}
}
