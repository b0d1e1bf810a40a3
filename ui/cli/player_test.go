package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/journal"
)

var evening = time.Date(2026, 11, 30, 20, 0, 0, 0, time.UTC)

// recorded makes a journal of a minute in one session and, an hour later, a minute in another: Flannel's chain is emptied
// for five seconds at 10 s and at 40 s of the first.
func recorded(t *testing.T) *journal.Recording {
	t.Helper()
	path := filepath.Join(t.TempDir(), "evening.jsonl")
	var text []byte
	for n, session := range []string{"boot/1", "boot/2"} {
		e := journal.NewEncoder(journal.Header{Node: "worker-3", Session: session})
		at := func(second int) flannel.Time {
			passed := time.Duration(second) * time.Second
			return flannel.Time{Wall: evening.Add(time.Duration(n)*time.Hour + passed), Boot: time.Hour + passed, Session: session}
		}
		var err error
		tell := func(second int, o incident.Observation) {
			if o.Time = at(second); err == nil {
				text, _, err = e.Append(text, &o)
			}
		}
		text, err = e.Begin(text, at(0), nil)
		node := healthyNode(at(0))
		tell(0, incident.Observation{Node: &node})
		procs := flannel.Know([]diagnose.Process{{PID: 1, Kind: diagnose.ProcFlanneld, Started: at(-3600)}}, "/proc", at(0))
		tell(0, incident.Observation{Procs: &procs})
		for second := range 60 {
			empty := n == 0 && (second >= 10 && second < 15 || second >= 40 && second < 45)
			reading := flannel.Know(*rulesWhile(empty, second), "nf_tables", at(second))
			tell(second, incident.Observation{Rules: &incident.RulesRead{Backend: flannel.IptablesNft, Ruleset: reading}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	rec, err := journal.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func at(p *position) time.Duration { return p.now.Wall.Sub(evening) }

func TestPlayingKeepsPaceAndPassesOverWhatNobodyWatched(t *testing.T) {
	p := newPosition(recorded(t))
	p.advance(time.Second)
	if at(p) != 0 {
		t.Error("plays before it is asked to")
	}
	p.toggle()
	p.advance(1500 * time.Millisecond)
	if at(p) != 1500*time.Millisecond || p.cursor.Time().Wall.Sub(evening) != time.Second {
		t.Errorf("after 1.5 s it shows %v, observation of %v", at(p), p.cursor.Time().Wall.Sub(evening))
	}
	for range 9 {
		p.speed(1)
	}
	p.advance(550 * time.Millisecond) // 55 s
	p.advance(50 * time.Millisecond)
	if got := at(p) - time.Hour; got < 0 || got > 10*time.Second {
		t.Errorf("behind the first session it shows %v", at(p))
	}
	p.advance(time.Minute)
	if p.playing || at(p) != time.Hour+59*time.Second {
		t.Errorf("at the end: playing %v at %v", p.playing, at(p))
	}
	if p.toggle(); at(p) != 0 || !p.playing {
		t.Errorf("played again it begins at %v", at(p))
	}
	for range 20 {
		p.speed(-1)
	}
	if p.advance(10 * time.Second); at(p) != time.Second {
		t.Errorf("ten seconds at 0.1x show %v", at(p))
	}
}

func TestStepsJumpsAndSeeksGoWhereTheyShould(t *testing.T) {
	p := newPosition(recorded(t))
	if n := len(p.recording.Final.Incidents); n != 2 {
		t.Fatalf("%d incidents: %+v\n%+v", n, p.recording.Final.Incidents, p.recording.Final.Events)
	}
	for _, c := range []struct {
		name string
		do   func()
		want time.Duration
	}{
		{"to the next incident", func() { p.jump(1) }, 10 * time.Second},
		{"to the one after", func() { p.jump(1) }, 40 * time.Second},
		{"there is no other", func() { p.jump(1) }, 40 * time.Second},
		{"back to the first", func() { p.jump(-1) }, 10 * time.Second},
		{"a step on", func() { p.step(1) }, 11 * time.Second},
		{"two steps back", func() { p.step(-2) }, 9 * time.Second},
		{"ten seconds on", func() { p.seek(10 * time.Second) }, 19 * time.Second},
		{"a minute back", func() { p.seek(-time.Minute) }, 0},
		{"to a time", func() { p.goTo(evening.Add(42500 * time.Millisecond)) }, 42 * time.Second},
	} {
		if c.do(); at(p) != c.want {
			t.Errorf("%s: at %v, want %v", c.name, at(p), c.want)
		}
	}
	v := p.cursor.View(p.now)
	if n := len(v.Incidents); n != 2 || !v.Incidents[1].Open {
		t.Errorf("within the second incident the picture has %d: %+v", n, v.Incidents)
	}
}

func TestThePlayerAnswersKeysWithPictures(t *testing.T) {
	rec := recorded(t)
	p := newPlayer()
	views := make(chan *incident.View, 100)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go p.run(ctx, newPosition(rec), func(v *incident.View) { views <- v })
	<-views
	p.Jump(1)
	if v := <-views; v.Now.Wall.Sub(evening) != 10*time.Second || !strings.HasPrefix(p.status(), "held at 1x, 2026-11-30 20:00:10.000 UTC, observation ") {
		t.Errorf("shows %v, says %q", v.Now.Wall, p.status())
	}
	p.Speed(9)
	p.Toggle()
	for v := range views {
		if v.Now.Wall.Sub(evening) > time.Hour {
			return
		}
	}
}

func TestAMomentIsReadInSeveralForms(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"20:00:05": 5 * time.Second, "20:01": time.Minute, "2026-11-30T21:00:00+01:00": 0, "2026-11-30T20:00:00.5Z": 500 * time.Millisecond,
	} {
		if got, err := momentOf(text, evening); err != nil || got.Sub(evening) != want {
			t.Errorf("%s is %v, %v", text, got, err)
		}
	}
	if _, err := momentOf("soon", evening); err == nil {
		t.Error("soon is a moment")
	}
}
