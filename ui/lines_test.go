package ui

import (
	"slices"
	"strings"
	"testing"

	"flanwatch/watcher/incident"
)

func TestLinesTellEachEventOnceAndTheStateEachTime(t *testing.T) {
	var l Lines
	got := l.Next(healthy())
	want := []string{
		"2026-11-30T11:58:00.000Z  info: iptables-nft v4 filter FLANNEL-FWD changed, +1 −1 rules, by iptables[47110]",
		"2026-11-30T12:04:31.400Z  OK 4 chains as Flannel wants them · last change 11:58:00 by iptables[47110] | " +
			"v4 nat FLANNEL-POSTRTG ok 6/6, 41 c/s | v4 filter FLANNEL-FWD ok 2/2, 18.4k p/s | " +
			"v6 nat FLANNEL-POSTRTG ok 6/6, 12 c/s | v6 filter FLANNEL-FWD ok 2/2, 140 p/s",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if again := l.Next(healthy()); !slices.Equal(again, want[1:]) {
		t.Errorf("again %q", again)
	}
	worse := l.Next(emptied())
	last := worse[len(worse)-1]
	if !strings.Contains(last, "CRITICAL v4 nat FLANNEL-POSTRTG empty for 4.2 s, emptied by iptables[48213] ← bash[47990], +1 more") {
		t.Errorf("emptied: %q", last)
	}
}

func TestLinesHoldNoControlBytes(t *testing.T) {
	var l Lines
	for _, line := range l.Next(hostileView()) {
		if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }) {
			t.Errorf("control bytes in %q", line)
		}
	}
}

func TestLinesGoOnWhenOldEventsWereDropped(t *testing.T) {
	l, v := Lines{}, *many()
	l.Next(&v)
	v.Events = append(slices.Clone(v.Events[20:]), incident.Event{Time: at(now), Text: "fresh"})
	got := l.Next(&v)
	if len(got) != 2 || !strings.Contains(got[0], "fresh") {
		t.Errorf("got %q", got)
	}
}

func TestTerminalsThatCannotDrawGetLines(t *testing.T) {
	for env, want := range map[string]bool{"TERM=dumb": false, "TERM=": false, "OTHER=1": false, "TERM=linux": true, "TERM=xterm": true} {
		if got := Suits([]string{env}); got != want {
			t.Errorf("Suits(%s) = %v", env, got)
		}
	}
}
