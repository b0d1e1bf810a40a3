package journal

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// night is a node on which little happens: Flannel's rules of both families in iptables-nft, of which some count now and
// then, empty legacy tables and no native ones, and the table of connections, all read once a second.
func night(w *world, span time.Duration, beside func(*world)) {
	w.node()
	w.procs()
	w.fill(flannel.IptablesNft)
	legacy := w.rules[flannel.IptablesLegacy]
	for end := w.now.Add(span); w.now.Sub(end) < 0; {
		w.now = w.now.Add(time.Second + time.Duration(w.rng.IntN(2000)-1000)*time.Microsecond)
		w.now.Wall = w.now.Wall.Add(time.Duration(w.rng.IntN(2)) * time.Microsecond)
		for i := range w.rules[flannel.IptablesNft].Chains {
			entries := w.rules[flannel.IptablesNft].Chains[i].Entries
			for j := range entries {
				if w.rng.IntN(12) == 0 {
					packets := 1 + w.rng.Uint64N(40)
					entries[j].Counter.Packets += packets
					entries[j].Counter.Bytes += packets * (60 + w.rng.Uint64N(1000))
				}
			}
		}
		w.read(flannel.IptablesNft)
		w.read(flannel.Nftables)
		late := w.now
		w.now = w.now.Add(time.Duration(w.rng.IntN(3_000)) * time.Microsecond)
		w.tell(incident.Observation{Rules: &incident.RulesRead{
			Backend: flannel.IptablesLegacy, Ruleset: flannel.Know(*legacy, "ip_tables", w.now),
		}})
		h := conntrack.Health{Source: conntrack.SourceNetlink, Max: conntrack.Counted(262144), Invalid: conntrack.Counted(7)}
		h.Count, h.Drop = conntrack.Counted(420+w.rng.Uint64N(20)), conntrack.Counted(3)
		table := flannel.Know(h, "ctnetlink", w.now)
		w.tell(incident.Observation{Table: &table})
		beside(w)
		w.now = late
	}
}

// tries tells of attempts to connect, ten a second, of which all succeed.
func tries(w *world) {
	us := func(n int) time.Duration { return time.Duration(n) * time.Microsecond }
	last := 40_000 + w.rng.IntN(200)
	p := incident.Probe{Target: "tcp://198.51.100.1:443", From: "kube-system/web-7d4b9c6f5-x2x7p", Count: 10 + w.rng.IntN(2)}
	p.Took, p.Max, p.First, p.Last = us(180+w.rng.IntN(60)), us(400+w.rng.IntN(900)), us(last+1_000_000+w.rng.IntN(900)), us(last)
	w.tell(incident.Observation{Probe: &p})
}

// surveys tells, every five seconds, of a look at the connections, as while somebody reads their list: forty pods talk to
// the outside and to each other, and some connections are stuck.
func surveys(w *world) {
	if w.now.Boot/time.Second%5 != 0 {
		return
	}
	s := conntrack.Survey{
		Took: time.Duration(400+w.rng.IntN(90)) * time.Microsecond, Entries: 420 + w.rng.Uint64N(20), Pods: 300 + w.rng.Uint64N(20),
		Kinds:      map[conntrack.Kind]conntrack.Tally{conntrack.Bare: {Flows: 3}, conntrack.Translated: {}},
		States:     map[string]int{"tcp ESTABLISHED": 200 + w.rng.IntN(9), "tcp TIME_WAIT": 60 + w.rng.IntN(30), "udp ASSURED": 40},
		Masquerade: map[flannel.Family]bool{flannel.IPv4: true},
	}
	for i := range 20 {
		pod, out := netip.AddrFrom4([4]byte{10, 244, 3, byte(i)}), netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})
		s.Sources = append(s.Sources, conntrack.Talker{Addr: pod, Pod: fmt.Sprintf("shop/cart-7d4b9c6f5-%05d", i), Entries: 40 - uint64(i) + w.rng.Uint64N(2)})
		s.Destinations = append(s.Destinations, conntrack.Talker{Addr: out, Entries: 40 - uint64(i) + w.rng.Uint64N(2)})
	}
	for i := range 3 {
		f := conntrack.Flow{Orig: conntrack.Tuple{Src: s.Sources[i].Addr, Dst: s.Destinations[i].Addr, Proto: conntrack.TCP, SPort: uint16(40000 + i), DPort: 443}}
		s.Flows = append(s.Flows, conntrack.Sample{Flow: f, Kind: conntrack.Bare, Pod: s.Sources[i].Pod, Seen: flannel.Time{Wall: noon, Session: session}})
	}
	r := flannel.Know(s, "ctnetlink", w.now)
	w.tell(incident.Observation{Flows: &r})
}

// TestAnIdleDayStaysBelowTenMegabytes writes two hours of one, in which everything is written anew that is at times, and the
// whole day with FLANWATCH_FULL=1.
func TestAnIdleDayStaysBelowTenMegabytes(t *testing.T) {
	length := 2 * time.Hour
	if os.Getenv("FLANWATCH_FULL") == "1" {
		length = 24 * time.Hour
	}
	for name, beside := range map[string]func(*world){
		"on an idle node":             func(*world) {},
		"while connections are tried": tries,
		"while the list of connections is open for a third of it": func(w *world) {
			if w.now.Sub(flannel.Time{Wall: noon, Boot: 6 * time.Hour, Session: session}) < length/3 {
				surveys(w)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { idleDay(t, length, beside) })
	}
}

func idleDay(t *testing.T, length time.Duration, beside func(*world)) {
	t.Helper()
	e := NewEncoder(Header{Session: session})
	var size, lines int
	var buffer []byte
	w := newWorld(1, func(o *incident.Observation) {
		var err error
		if buffer, _, err = e.Append(buffer[:0], o); err != nil {
			t.Fatal(err)
		}
		size += len(buffer)
		lines++
	})
	night(w, length, beside)
	day := float64(size) * float64(24*time.Hour) / float64(length)
	t.Logf("%d observations in %v, %.2f MB a day", lines, length, day/1e6)
	if day > 10e6 {
		t.Errorf("a day takes %.0f bytes", day)
	}
}

func TestAnHourOpensWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hour.jsonl")
	e := NewEncoder(Header{Session: session})
	text, err := e.Begin(nil, flannel.Time{Wall: noon, Session: session}, nil)
	w := newWorld(1, func(o *incident.Observation) {
		if err == nil {
			text, _, err = e.Append(text, o)
		}
	})
	night(w, time.Hour, func(*world) {})
	if err := errors.Join(err, os.WriteFile(path, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	rec, err := Load(path)
	if err != nil || rec.Count < 4*3590 {
		t.Fatalf("%v, %d observations", err, rec.Count)
	}
}

func BenchmarkAppendQuietReading(b *testing.B) {
	e := NewEncoder(Header{Session: session})
	var buffer []byte
	w := newWorld(1, func(o *incident.Observation) { buffer, _, _ = e.Append(buffer[:0], o) })
	w.fill(flannel.IptablesNft)
	b.ReportAllocs()
	for b.Loop() {
		w.now = w.now.Add(time.Millisecond)
		w.read(flannel.IptablesNft)
	}
}

func BenchmarkReadQuietHour(b *testing.B) {
	e := NewEncoder(Header{Session: session})
	text, _ := e.Begin(nil, flannel.Time{Wall: noon, Session: session}, nil)
	night(newWorld(1, func(o *incident.Observation) { text, _, _ = e.Append(text, o) }), time.Hour, func(*world) {})
	path := fileOf(b, text)
	for b.Loop() {
		if _, err := Load(path); err != nil {
			b.Fatal(err)
		}
	}
}
