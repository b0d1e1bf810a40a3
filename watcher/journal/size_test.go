package journal

import (
	"errors"
	"io"
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
func night(w *world, span time.Duration) {
	w.node()
	w.procs()
	w.fill(flannel.IptablesNft)
	legacy := w.rules[flannel.IptablesLegacy]
	for end := w.now.Add(span); w.now.Sub(end) < 0; {
		w.now = w.now.Add(time.Second + time.Duration(w.rng.IntN(2_000_000)-1_000_000))
		w.now.Wall = w.now.Wall.Add(time.Duration(w.rng.IntN(200) - 100))
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
		w.now = w.now.Add(time.Duration(w.rng.IntN(3_000_000)))
		w.tell(incident.Observation{Rules: &incident.RulesRead{
			Backend: flannel.IptablesLegacy, Ruleset: flannel.Know(*legacy, "ip_tables", w.now),
		}})
		h := conntrack.Health{Source: conntrack.SourceNetlink, Max: conntrack.Counted(262144), Invalid: conntrack.Counted(7)}
		h.Count, h.Drop = conntrack.Counted(420+w.rng.Uint64N(20)), conntrack.Counted(3)
		table := flannel.Know(h, "ctnetlink", w.now)
		w.tell(incident.Observation{Table: &table})
		w.now = late
	}
}

func TestAnIdleDayStaysBelowTenMegabytes(t *testing.T) {
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
	night(w, 24*time.Hour)
	t.Logf("%d observations in %.2f MB", lines, float64(size)/1e6)
	if size > 10_000_000 {
		t.Errorf("a day takes %d bytes", size)
	}
}

func TestAnHourOpensWithinASecond(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hour.jsonl")
	e := NewEncoder(Header{Session: session})
	text, err := e.Begin(nil, flannel.Time{Wall: noon, Session: session}, nil)
	w := newWorld(1, func(o *incident.Observation) {
		if err == nil {
			text, _, err = e.Append(text, o)
		}
	})
	night(w, time.Hour)
	if err := errors.Join(err, os.WriteFile(path, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	rec, err := Load(path)
	took := time.Since(begin)
	if err != nil || rec.Count < 4*3590 {
		t.Fatalf("%v, %d observations", err, rec.Count)
	}
	t.Logf("%d observations of %d bytes in %v", rec.Count, len(text), took)
	if took > time.Second {
		t.Errorf("opening an hour takes %v", took)
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
	night(newWorld(1, func(o *incident.Observation) { text, _, _ = e.Append(text, o) }), time.Hour)
	path := fileOf(b, text)
	for b.Loop() {
		r, err := Open(path)
		for err == nil {
			_, err = r.Next()
		}
		if !errors.Is(err, io.EOF) {
			b.Fatal(err)
		}
		r.Close()
	}
}
