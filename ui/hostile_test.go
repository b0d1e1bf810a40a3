package ui

import (
	"strings"
	"testing"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

// hostile is a comment of 255 bytes that tries everything: escapes, controls, bidi, wide and combining runes, bad UTF-8.
var hostile = (strings.Repeat("\x1b[2J\x1b[31m\x1b]0;owned\x07\r\n\x9b5m\u202e漢字é\u0301\u200d👩\u200d💻\xff\xfe\x00\t\b", 6) + strings.Repeat("x", 255))[:255]

func hostileView() *incident.View {
	v := emptied()
	v.Node.Name = hostile
	who := &incident.Who{PID: 7, Comm: "\x1b[31mroot\x07"}
	for i := range v.Events {
		v.Events[i].Who = who
		v.Events[i].Text += " " + hostile
	}
	for i := range v.Chains {
		c := &v.Chains[i]
		c.Hook.Chain = hostile
		for j := range c.Rules {
			r := &c.Rules[j]
			r.Rule = flannel.NewRule(r.Rule.Target, flannel.Match{Kind: flannel.MatchOpaque, Text: hostile}, flannel.Match{Kind: flannel.MatchComment, Text: hostile})
		}
	}
	v.Findings[0].Summary, v.Findings[0].Object, v.Findings[0].Detail, v.Findings[0].Refused = hostile, hostile, []string{hostile}, hostile
	v.Incidents = openIncident().Incidents
	v.Incidents[0].By, v.Incidents[0].RecoveredBy, v.Incidents[0].Effects = who, who, []string{hostile}
	v.Incidents[0].Spells[0].Chain.Name = hostile
	v.Faults = []incident.Fault{{Reader: hostile, Why: hostile}}
	v.Flannel.Evidence = []string{hostile}
	return v
}

// Only these may be on the screen as control bytes: the colours that the palette writes.
func TestHostileTextDrawsNothingButItself(t *testing.T) {
	for _, p := range []page{pageDashboard, pageChain, pageEvent, pageIncidents, pageIncident, pageFindings, pageFinding} {
		for f := range panels {
			m := still(t, hostileView(), Options{Status: func() string { return hostile }})
			m.page, m.focus, m.filter = p, f, ""
			picture := m.at(120, 40)
			checkFit(t, "hostile", picture, 120, 40)
			rest := picture
			for r := range roles {
				for g := range grounds {
					rest = strings.ReplaceAll(rest, m.pal[r][g], "")
				}
			}
			rest = strings.ReplaceAll(rest, "\x1b[m", "")
			for _, c := range rest {
				if c < ' ' && c != '\n' || c >= 0x7f && c < 0xa0 {
					t.Fatalf("control character %q on page %d", c, p)
				}
			}
		}
	}
}

func TestHostileTextKeepsToItsCellOnTheTerminal(t *testing.T) {
	tame := emptied()
	tt := open(t, 100, 30, tame, func(o *Options) { o.Mode = ModeReplay })
	before := tt.shows("iptables[48213]")
	v := *tame
	v.Events = append([]incident.Event(nil), tame.Events...)
	last := &v.Events[len(v.Events)-1]
	last.Kind, last.Text, last.Severity = incident.EventChanged, hostile, diagnose.Critical
	last.Who = &incident.Who{PID: 48213, Comm: "\x1b[31m\x07"}
	tt.box.Put(&v)
	after := tt.shows(`\x1b[2J`)
	was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
	changed := 0
	for i := range was {
		if was[i] != is[i] {
			changed++
		}
	}
	if changed > 5 { // the banner, and the events, whose column of programs grew
		t.Errorf("%d lines changed:\n%s\nbefore:\n%s", changed, after, before)
	}
	if strings.Contains(tt.raw.String(), "\x1b]0;owned") {
		t.Error("an escape sequence reached the terminal")
	}
}

func TestCleanTextTakesOneColumnARune(t *testing.T) {
	for in, want := range map[string]string{
		"plain -s 10.244.0.0/16": "plain -s 10.244.0.0/16",
		"grün – ok":              "grün – ok",
		"漢字":                     `\u{6f22}\u{5b57}`,
		"e\u0301":                `e\u{301}`,
		"\x1b[31m":               `\x1b[31m`,
		"🇩🇪":                     `\u{1f1e9}\u{1f1ea}`,
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzCleanIsSafeAndAsWideAsItHasRunes(f *testing.F) {
	for _, s := range []string{hostile, "a", "漢", "\u0301", "👩‍💻", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := clean(s)
		l := (&line{pal: newPalette(ThemeMono, 0), max: 1 << 20}).put(roleText, got)
		if l.w != len([]rune(got)) {
			t.Errorf("%q: %d columns for %d runes", s, l.w, len([]rune(got)))
		}
		if strings.ContainsAny(got, "\x1b\r\n\x07\u009b") || clean(got) != got {
			t.Errorf("clean(%q) = %q", s, got)
		}
	})
}
