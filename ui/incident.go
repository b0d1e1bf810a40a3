package ui

import (
	"fmt"
	"slices"
	"strings"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// opened is the incident whose page is shown, nil if none is.
func (s *screen) opened() *incident.Incident {
	if s.page != pageIncident || s.view == nil {
		return nil
	}
	return s.selectedIncident()
}

// incidentBanner is the whole answer in one line: what, how long, from when to when, and whether it is over. What is wrong
// now stays in sight beside it.
//
//	✓ CLOSED  v4 nat FLANNEL-POSTRTG was empty for 4.886 s  12:04:27.118 → 12:04:32.004
func (s *screen) incidentBanner(i *incident.Incident) string {
	sign, as := incidentSign(i)
	word := "CLOSED"
	switch {
	case i.Open:
		word = "OPEN"
	case !i.Complete:
		word = "ENDED"
	}
	l := s.line().gap(1).put(as, sign+" "+word).gap(2)
	h, now, end := s.headline(), "", s.width-1
	if h.alert && (!i.Open || s.stale()) {
		now = "now " + h.sign + " " + h.word
		end -= width(now) + 2
	}
	l.put(roleStrong, cut(s.incidentSentence(i), end-l.w))
	if times := s.incidentTimes(i); l.w+2+width(times) <= end {
		l.gap(2).put(roleText, times)
	}
	if now != "" {
		l.to(end+2).put(h.role, now)
	}
	return l.full()
}

// incidentSentence says what was how for how long.
func (s *screen) incidentSentence(i *incident.Incident) string {
	state, ok := stateSentences[i.Spells[0].State]
	if !ok {
		state = stateWord(i.Spells[0].State)
	}
	was := " was "
	if i.Open {
		was = " is "
	}
	d := i.Duration(s.view.Now)
	if i.Open {
		d += s.extra()
	}
	text := s.chainName(i.Spells[0].Chain)
	if n := len(i.Objects()) - 1; n > 0 {
		text += fmt.Sprintf(" (+%d more)", n)
	}
	text += was + state + " for "
	switch {
	case i.Before:
		text += "at least "
	case i.Uncertain:
		text += "about "
	}
	return text + exactSpan(d)
}

func (s *screen) incidentTimes(i *incident.Incident) string {
	text := strings.TrimSpace(moment(i.Start.Wall, s.view.Now.Wall, s.loc)) + " → "
	if i.Open {
		return text + "now"
	}
	return text + strings.TrimSpace(moment(i.End.Wall, s.view.Now.Wall, s.loc))
}

// incidentPage shows one incident; what does not fit is scrolled to.
func (s *screen) incidentPage(body int) []string {
	all := s.incidentLines(body)
	first := min(s.scroll, max(len(all)-body, 0))
	return all[first:min(first+body, len(all))]
}

// least rows of the list of what happened, its heading included.
const leastHappened = 5

// incidentLines is the page at its full height, at least body rows.
func (s *screen) incidentLines(body int) []string {
	i := s.selectedIncident()
	if i == nil {
		b := box{title: "Incident", lines: []string{s.innerLine(groundPlain).gap(1).put(roleDim, "it is no longer kept").full()}}
		return s.frame(b, body-2, true, false)
	}
	signals := s.signalsBox(i)
	out := s.frame(signals, len(signals.lines), true, false)
	below := s.whoAndLost(i)
	if same := s.sameCause(i); same != "" {
		below = append(below, s.line().gap(1).put(roleDim, "same cause before: ").put(roleText, same).full())
	}
	rows := min(leastHappened, 1+len(s.happenings(i)))
	rows = max(rows, body-len(out)-len(below)-2)
	happened := s.happenedBox(i, rows)
	if len(out)+rows+2+len(below) > body {
		happened.info += " · pgdn more"
	}
	out = append(out, s.frame(happened, rows, false, false)...)
	return append(out, below...)
}

// narrow is a screen of another width, for boxes side by side.
func (s *screen) narrow(w int) *screen {
	half := *s
	half.width = w
	return &half
}

// abreast is the width from which two boxes share a row.
const abreast = 90

func (s *screen) whoAndLost(i *incident.Incident) []string {
	if s.width < abreast {
		who, lost := s.whoBox(i), s.lostBox(i)
		return append(s.frame(who, len(who.lines), false, false), s.frame(lost, len(lost.lines), false, false)...)
	}
	l := s.narrow(s.width / 2)
	r := s.narrow(s.width - l.width)
	who, lost := l.whoBox(i), r.lostBox(i)
	rows := max(len(who.lines), len(lost.lines))
	out := l.frame(who, rows, false, false)
	for n, text := range r.frame(lost, rows, false, false) {
		out[n] += text
	}
	return out
}

// whoBox says who began it and who put it right, and how each thing is known.
func (s *screen) whoBox(i *incident.Incident) box {
	b := box{title: "Who"}
	s.author(&b, i.By, i.Generation)
	switch {
	case i.Open:
		s.fact(&b, "recovery", roleWarn, "none yet")
	case i.RecoveredBy != nil:
		s.fact(&b, "recovered", roleWho, lineage(i.RecoveredBy))
	case i.Complete:
		s.fact(&b, "recovered", roleText, "by an unknown program")
	default:
		s.fact(&b, "recovery", roleWarn, "none: a chain went out of sight without coming back")
	}
	return b
}

// lineage names a program and all that is known of who started it.
func lineage(w *incident.Who) string {
	text := program(w.Comm, w.PID)
	if w.Origin != nil {
		for _, p := range w.Origin.Parents.Value {
			text += " ← " + program(p.Comm, p.PID)
		}
	}
	return text
}

// lostBox says what it did.
func (s *screen) lostBox(i *incident.Incident) box {
	b := box{title: "What was lost"}
	if i.Before {
		s.fact(&b, "note", roleWarn, "it began before watching did: it lasted longer than that")
	}
	if i.Uncertain {
		s.fact(&b, "note", roleWarn, "announcements were lost meanwhile: times can be late")
	}
	for n, e := range i.Effects {
		s.fact(&b, first(n, "effect"), roleText, e)
	}
	for n, id := range i.Objects() {
		lost := 0
		for _, sp := range i.Spells {
			if sp.Chain == id {
				lost += sp.Lost
			}
		}
		s.fact(&b, first(n, "rules"), roleText, fmt.Sprintf("%d of %s", lost, s.chainName(id)))
	}
	s.bareFacts(&b, i)
	return b
}

// sameCause looks for the pattern: earlier incidents of the same kind by the same program, and how long they lasted.
func (s *screen) sameCause(i *incident.Incident) string {
	var parts []string
	shortest, longest := "", ""
	var list []*incident.Incident
	for n := range s.view.Incidents {
		if o := &s.view.Incidents[n]; slices.Contains(i.SameCause, o.Number) {
			list = append(list, o)
		}
	}
	for _, o := range list[max(0, len(list)-4):] {
		parts = append(parts, fmt.Sprintf("#%d (%s)", o.Number, dayTime(o.Start.Wall, s.view.Now.Wall, s.loc)))
	}
	closed := slices.DeleteFunc(slices.Clone(list), func(o *incident.Incident) bool { return o.Open })
	if len(closed) > 0 {
		slices.SortFunc(closed, func(a, b *incident.Incident) int { return int(a.Duration(a.End) - b.Duration(b.End)) })
		shortest, longest = span(closed[0].Duration(closed[0].End)), span(closed[len(closed)-1].Duration(closed[len(closed)-1].End))
	}
	text := strings.Join(parts, ", ")
	if more := len(list) - len(parts); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	switch {
	case shortest == "":
		return text
	case shortest == longest:
		return text + " · " + shortest
	}
	return text + " · " + shortest + " to " + longest
}

// incidentReport is the selected incident as text.
func (s *screen) incidentReport() string {
	i := s.selectedIncident()
	if i == nil {
		return ""
	}
	page := s.narrow(100)
	var b strings.Builder
	fmt.Fprintf(&b, "incident %d, %s, %s: %s, %s\n", i.Number, i.Kind, i.Severity, s.incidentSentence(i), s.incidentTimes(i))
	if same := s.sameCause(i); same != "" {
		b.WriteString("same cause before: " + same + "\n")
	}
	for _, part := range []box{page.whoBox(i), page.lostBox(i), page.happenedBox(i, 1+len(s.happenings(i)))} {
		b.WriteString("\n" + part.title + "\n" + textOf(part))
	}
	return b.String()
}

// concerns tells whether an event is about a chain of the incident, or about watching itself.
func concerns(e *incident.Event, objects []flannel.ChainID) bool {
	return slices.Contains(objects, e.Chain) || concernsAction(e, objects) ||
		e.Chain == flannel.ChainID{} && (e.Kind == incident.EventReadFail || e.Kind == incident.EventReadBack || e.Kind == incident.EventUncertain)
}
