package ui

import (
	"fmt"
	"strings"

	"flanwatch/remediate"
)

// leastDiff is how many lines of the diff are to be seen at least, where there are so many.
const leastDiff = 6

// planParts are the parts of a plan on screen, from top to bottom.
type planParts struct{ head, text, facts, field []string }

// fitPlan gives the parts at the least shortness with which something of the diff is to be seen, and how many lines of it.
func (s *screen) fitPlan(rows int) (p planParts, room int) {
	for level := range 3 {
		p = s.planParts(level)
		if room = rows - len(p.head) - 1 - len(p.facts) - len(p.field); room >= min(len(p.text), leastDiff) {
			break
		}
	}
	return p, max(room, 1)
}

// planLines draws a plan before it is carried out. What does not fit is shortened, then moved behind the diff, where one
// scrolls to it.
func (s *screen) planLines(b *box, rows int) {
	p, room := s.fitPlan(rows)
	room = min(room, len(p.text))
	first := min(s.dialog.scroll, max(len(p.text)-room, 0))
	b.lines = append(b.lines, p.head...)
	b.lines = append(b.lines, s.divider(first, room, len(p.text)))
	b.lines = append(b.lines, p.text[first:first+room]...)
	b.lines = append(b.lines, p.facts...)
	b.lines = append(b.lines, p.field...)
}

// cutRule shortens a rule in the middle: what it does stands at its end.
func cutRule(text string, w int) string {
	i := strings.LastIndex(text, " -j ")
	if width(text) <= w || i < 0 || width(text[i:]) > w/2 {
		return cut(text, w)
	}
	return cut(text[:i], w-width(text[i:])) + text[i:]
}

// divider sets the diff apart from the title, and says what of it is to be seen.
func (s *screen) divider(first, shown, all int) string {
	what, other := "diff", "tab commands"
	if s.dialog.commands {
		what, other = "commands, by hand", "tab diff"
	}
	hint := what + " · " + other
	if shown < all {
		hint = fmt.Sprintf("%s · lines %d–%d of %d · ↑↓ scroll · %s", what, first+1, first+shown, all, other)
	}
	l := s.innerLine(groundPlain).gap(2).put(roleFrame, "── ").put(roleDim, hint).gap(1)
	return l.put(roleFrame, strings.Repeat("─", max(s.inner()-2-l.w, 0))).full()
}

// planParts makes the parts at one of three levels of shortness.
func (s *screen) planParts(level int) planParts {
	d := &s.dialog.offer.Dialog
	var h, t, f, w box
	s.say(&h, "", clean(d.Title), roleStrong)
	effects := &h
	if level == 2 {
		effects = &t
	}
	for _, e := range d.Effects {
		s.say(effects, "", clean(e), roleText)
	}
	if s.readOnly {
		s.say(&h, "", signNone+" read-only: it can be looked at and copied, not carried out", roleWarn)
	}
	s.changeLines(&h)
	if s.dialog.commands {
		s.scriptLines(&t)
	} else {
		s.diffLines(&t)
	}
	s.planFacts(&f, &t, level)
	s.fieldLines(&w, level)
	return planParts{h.lines, t.lines, f.lines, w.lines}
}

// changeLines says how the plan differs from the one that was shown before.
func (s *screen) changeLines(b *box) {
	const most = 3
	c := s.dialog.changed
	if len(c) == 0 {
		return
	}
	s.say(b, "", signWarn+" the rules changed while this was open; the plan was made anew, type the word again", roleWarn)
	for _, l := range c[:min(len(c), most)] {
		b.lines = append(b.lines, s.innerLine(groundPlain).gap(4).put(roleWarn, cutRule(l, s.inner()-6)).full())
	}
	if n := len(c) - most; n > 0 {
		s.say(b, "", fmt.Sprintf("  and %d lines more", n), roleWarn)
	}
}

func (s *screen) scriptLines(b *box) {
	for l := range strings.Lines(s.dialog.offer.Dialog.Script) {
		s.say(b, "", clean(strings.TrimRight(l, "\n")), roleText)
	}
}

var markRoles = map[remediate.Mark]role{remediate.Add: roleGood, remediate.Remove: roleBad, remediate.Keep: roleDim}

// diffLines draws the diff; a purge shows first why Flannel is taken to be gone.
func (s *screen) diffLines(b *box) {
	d := s.dialog.offer
	if d.Kind == remediate.KindPurge {
		s.evidence(b)
	}
	for _, l := range d.Dialog.Diff {
		out := s.innerLine(groundPlain).gap(2).put(markRoles[l.Mark], string(rune(l.Mark))+" ")
		b.lines = append(b.lines, out.put(markRoles[l.Mark], cutRule(clean(l.Text), s.inner()-6)).full())
	}
	if d.Kind != remediate.KindPurge {
		s.evidence(b)
	}
}

func (s *screen) evidence(b *box) {
	for i, w := range s.dialog.offer.Dialog.Why {
		s.fact(b, first(i, "evidence"), roleText, w)
	}
}

// planFacts says what is sent, what was checked, and how it is taken back. At the last level only what must be in sight stays.
func (s *screen) planFacts(b, scrolled *box, level int) {
	d := &s.dialog.offer.Dialog
	add := func(b *box, label string, as role, text string) {
		before := len(b.lines)
		s.fact(b, label, as, text)
		if level > 0 && len(b.lines) > before+1 {
			b.lines = b.lines[:before]
			s.fact(b, label, as, cut(clean(text), s.inner()-15))
		}
	}
	more := b
	if level == 2 {
		more = scrolled
	}
	for i, t := range d.Sends {
		add(more, first(i, "sends"), roleText, t)
	}
	add(b, "checked", roleGood, signDone+" "+s.lookedText(len(d.Checks)))
	for _, c := range d.Checks {
		add(more, " ", roleGood, signDone+" "+c)
	}
	for i, n := range d.Notes {
		add(more, first(i, "note"), roleWarn, signWarn+" "+n)
	}
	for i, p := range d.Parts {
		add(b, first(i, "with"), roleText, fmt.Sprintf("%s%d %s: %s", ticked(p.On), i+1, p.Name, p.Text))
	}
	if s.dialog.offer.Kind == remediate.KindUnstick {
		add(b, "undo", roleWarn, "there is none: what is deleted here cannot be brought back")
		return
	}
	add(more, "backup", roleText, d.Backup)
	add(b, "undo", roleText, "u here, or: "+d.Undo)
}

// lookedText says that the rules are those that the plan was made from, and when that was looked at.
func (s *screen) lookedText(guards int) string {
	text := fmt.Sprintf("%d guards met; rules as planned from", guards)
	if guards == 1 {
		text = "1 guard met; rules as planned from"
	}
	if !s.dialog.looked.IsZero() {
		text += ", looked at " + s.dialog.looked.In(s.loc).Format("15:04:05")
	}
	if g := s.generation(); g > 0 {
		text += fmt.Sprintf(", gen %d", g)
	}
	return text
}

// fieldLines is where the word is typed.
func (s *screen) fieldLines(b *box, level int) {
	hint := "esc cancels"
	if level == 0 {
		s.say(b, "", "", roleText)
	}
	l := s.innerLine(groundPlain).gap(2)
	word := s.word()
	switch {
	case word == "":
		l.put(roleDim, "ctrl+y copies it as a script")
	default:
		as := roleStrong
		if !strings.HasPrefix(word, s.dialog.typed) {
			as = roleBad
		}
		l.put(roleText, "type ").put(roleKey, word).put(roleText, " to go on: ").put(as, s.dialog.typed).put(roleKey, "▌")
		if s.dialog.typed == word {
			hint = "enter carries it out  esc cancels"
		}
	}
	b.lines = append(b.lines, l.to(s.inner()-width(hint)-2).put(roleDim, hint).full())
}
