package journal

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// decoded reads all lines of a journal.
func decoded(t testing.TB, text []byte) []incident.Observation {
	t.Helper()
	d := NewDecoder()
	var out []incident.Observation
	for i, line := range bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n")) {
		o, err := d.Line(line)
		if err != nil {
			t.Fatalf("line %d: %v\n%s", i+1, err, line)
		}
		if o != nil {
			out = append(out, cloned(o))
		}
	}
	if d.Skipped != 0 || d.Unknown() != 0 {
		t.Errorf("%d lines skipped, %d keys unknown", d.Skipped, d.Unknown())
	}
	return out
}

func TestEveryObservationComesBackAsItWas(t *testing.T) {
	for seed := range uint64(9) {
		seen, text, _ := written(t, seed, 150)
		back := decoded(t, text)
		if len(back) != len(seen) {
			t.Fatalf("seed %d: %d observations, want %d", seed, len(back), len(seen))
		}
		for i := range seen {
			if diff := cmp.Diff(seen[i], back[i], sameAll); diff != "" {
				t.Fatalf("seed %d, observation %d (%s): -written +read\n%s", seed, i, describe(&seen[i]), diff)
			}
		}
	}
}

func TestReplayLeadsToTheStateOfTheLiveStream(t *testing.T) {
	for seed := range uint64(9) {
		_, text, want := written(t, seed, 200)
		s := incident.NewState()
		for _, o := range decoded(t, text) {
			s.Apply(&o)
		}
		if diff := cmp.Diff(want, s.View(want.Now), sameAll); diff != "" {
			t.Fatalf("seed %d: -live +replay\n%s", seed, diff)
		}
	}
}

func TestAReadingInWhichNothingChangedTakesAFewBytes(t *testing.T) {
	e := NewEncoder(Header{Session: session})
	var last []byte
	w := newWorld(1, func(o *incident.Observation) {
		var err error
		if last, _, err = e.Append(last[:0], o); err != nil {
			t.Fatal(err)
		}
	})
	w.fill(flannel.IptablesNft)
	w.read(flannel.IptablesNft)
	w.read(flannel.Nftables)
	w.now = w.now.Add(1000000000)
	w.read(flannel.IptablesNft)
	if want := "[11,1000000]\n"; string(last) != want {
		t.Errorf("a second later: %q, want %q", last, want)
	}
	w.read(flannel.Nftables)
	if want := "[13]\n"; string(last) != want {
		t.Errorf("at the same moment: %q, want %q", last, want)
	}
	w.now = w.now.Add(1001)
	w.read(flannel.Nftables)
	if want := "[3,1001]\n"; string(last) != want {
		t.Errorf("a time that is no whole number of microseconds: %q, want %q", last, want)
	}
	w.rules[flannel.IptablesNft].Chain(flannel.MasqChain(flannel.IptablesNft, flannel.IPv4)).Entries[1].Counter.Packets = 3
	w.read(flannel.IptablesNft)
	if want := "[11,0,0,0,"; !bytes.HasPrefix(last, []byte(want)) || !bytes.HasSuffix(last, []byte(",3]\n")) {
		t.Errorf("three packets later: %q", last)
	}
}

func TestUnknownKeysAreCountedAndOtherwiseIgnored(t *testing.T) {
	c := newCodec()
	var x entry
	if err := c.read([]byte(`{"time":"2026-11-30T12:00:00Z 5 s","fault":{"reader":"nft","new":{"a":[1]}},"newer":null}`), &x); err != nil {
		t.Fatal(err)
	}
	if c.unknown != 2 || x.Fault.Reader != "nft" || x.Time.Session != "s" {
		t.Errorf("%d unknown keys, read %+v", c.unknown, x)
	}
}

func TestFieldsHaveNamesInLowerCamelCase(t *testing.T) {
	type sample struct {
		PID, IPMasq6, NFTables, ID, Comm, MTU int
		Tagged                                int `json:"other,omitempty"`
		Hidden                                int `json:"-"`
	}
	var got []string
	c := newCodec()
	for _, f := range c.of(reflect.TypeFor[sample]()) {
		got = append(got, f.name)
	}
	want := []string{"pid", "ipMasq6", "nfTables", "id", "comm", "mtu", "other", "hidden"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
