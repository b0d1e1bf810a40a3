package ui

import (
	"strings"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// eventPage shows one event in full, and how each thing about its author is known:
//
//	╭─ Event ────────────────────────────────────────────────────────────────────╮
//	│  when       2026-11-30 12:04:27.118204 UTC, 4.2 s ago                       │
//	│  what       ✗ v4 nat FLANNEL-POSTRTG emptied, −6 rules                      │
//	│  chain      iptables-nft ip nat FLANNEL-POSTRTG                             │
//	│  who        iptables[48213]                                                 │
//	│  command    iptables -w -t nat -F FLANNEL-POSTRTG                           │
//	│             exact: read 3 ms after exec                                     │
//	│  started by bash[47990] ← sshd[812]                                         │
func (s *screen) eventPage() box {
	b := box{title: "Event"}
	e := s.selectedEvent()
	if e == nil {
		return b
	}
	sign, as := severitySign(e.Severity)
	s.say(&b, "", "", roleText)
	s.fact(&b, "when", roleText, e.Time.Wall.In(s.loc).Format("2006-01-02 15:04:05.000000 MST")+", "+span(s.ago(e.Time))+" ago")
	s.fact(&b, "severity", as, sign+" "+string(e.Severity))
	s.fact(&b, "what", roleStrong, clean(e.Text))
	if e.Chain != (flannel.ChainID{}) {
		s.fact(&b, "chain", roleText, clean(e.Chain.String()))
	}
	s.author(&b, e.Who, e.Generation)
	return b
}

// author says who it was, and how far that can be trusted: a commit with a generation carries its program's name.
func (s *screen) author(b *box, w *incident.Who, generation uint32) {
	if w == nil {
		s.fact(b, "who", roleText, "unknown: the kernel did not say, or the change was seen only by reading")
		return
	}
	s.fact(b, "who", roleWho, program(w.Comm, w.PID))
	if generation > 0 {
		s.fact(b, "", roleDim, "exact: kernel, with the commit")
	}
	if w.Origin == nil {
		return
	}
	o := w.Origin
	s.fact(b, "command", roleText, known(strings.Join(o.Cmdline.Value, " ")))
	s.fact(b, "", roleDim, trust(o.Cmdline.Certainty, o.Cmdline.How))
	var line []string
	for _, p := range o.Parents.Value {
		line = append(line, program(p.Comm, p.PID))
	}
	s.fact(b, "started by", roleWho, known(strings.Join(line, " ← ")))
	s.fact(b, "", roleDim, trust(o.Parents.Certainty, o.Parents.How))
	if c := o.Container; c.Value.ID != "" {
		text := cut(c.Value.ID, 13)
		if c.Value.Pod != "" {
			text += ", pod " + c.Value.Pod
		}
		s.fact(b, "container", roleText, text)
		s.fact(b, "", roleDim, trust(c.Certainty, c.How))
	}
}

func known(text string) string {
	if text == "" {
		return "unknown"
	}
	return text
}

// trust says how a fact is known.
func trust(c incident.Certainty, how string) string {
	if c == "" {
		return how
	}
	return string(c) + ": " + how
}

// fact adds a labelled line to a page, wrapped; nothing if there is nothing to say.
func (s *screen) fact(b *box, label string, as role, text string) {
	if text == "" {
		return
	}
	for _, part := range wrap(clean(text), s.inner()-15) {
		b.lines = append(b.lines, s.innerLine(groundPlain).gap(2).put(roleDim, left(label, 11)).put(as, part).full())
		label = ""
	}
}
