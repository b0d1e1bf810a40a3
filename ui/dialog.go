package ui

import (
	"fmt"
	"slices"
	"time"

	"flanwatch/remediate"
)

// phase is how far a dialog is.
type phase uint8

const (
	phaseWaiting  phase = iota // for the first answer
	phaseChoosing              // among several plans
	phaseAsking                // for the word
	phaseRefused               // there is no plan, and why
	phaseNothing               // nothing is to do, or is left to do
	phaseRunning               // a plan is carried out
	phaseDone
)

// dialog is a plan on its way from the wish to the result. While it waits for the word the plan is made anew with every
// view, so that it shows what would be done now.
type dialog struct {
	phase    phase
	wish     Wish // the last one
	answered bool // it was
	offers   []Offer
	at       int // of several
	offer    Offer
	typed    string
	commands bool // the script is shown instead of the diff
	scroll   int
	changed  []string  // how the plan differs from the one that was shown, newest change
	looked   time.Time // when the plan was made last
	faster   bool      // somebody else did what was planned
	ticked   bool      // a part was taken in or left out: the next plan differs because the person wants it
	turned   time.Time // when it stopped to take letters
	steps    []Step
	outcome  Outcome
	trouble  string
}

// word is what is to be typed, "" where nothing is.
func (s *screen) word() string {
	if s.readOnly || s.dialog.phase != phaseAsking {
		return ""
	}
	return s.dialog.offer.Dialog.Word
}

// drops tells whether the dialog is about a plan that can delete connections, so that these must be looked at.
func (d *dialog) drops() bool {
	for _, k := range []remediate.Kind{d.wish.Kind, d.offer.Kind} {
		if k == remediate.KindPurge || k == remediate.KindUnstick {
			return d.phase != phaseDone
		}
	}
	return false
}

// take puts an answer into the dialog.
func (d *dialog) take(a Answer) {
	d.answered = true
	if d.trouble = a.Trouble; d.trouble != "" {
		if d.phase != phaseRunning {
			d.phase = phaseRefused
		}
		return
	}
	switch {
	case d.wish.Do == DoApply:
		d.steps = a.Steps
		if a.Outcome != nil {
			d.outcome, d.phase = *a.Outcome, phaseDone
			if a.Outcome.Result == "" {
				d.phase, d.faster = phaseNothing, true
			}
		}
	case len(a.Offers) == 0:
	case len(a.Offers) > 1 && d.wish.Do == DoOffer && a.Offers[0].Dialog.ID != "":
		d.phase, d.offers = phaseChoosing, a.Offers
		d.at = min(d.at, len(a.Offers)-1)
	default:
		d.offers = a.Offers
		d.show(a.Offers[0])
	}
}

// show shows an offer, and says how it differs from the one before.
func (d *dialog) show(o Offer) {
	before := d.offer
	d.offer = o
	was := d.phase
	switch {
	case len(o.Refused) > 0:
		d.phase = phaseRefused
	case o.Dialog.ID == "":
		d.phase = phaseNothing
	default:
		d.phase = phaseAsking
	}
	d.faster = was == phaseAsking && d.phase == phaseNothing
	if before.Dialog.ID == "" || was != phaseAsking || before.Dialog.ID == o.Dialog.ID {
		return
	}
	d.typed = ""
	switch {
	case d.ticked:
		d.ticked = false
	case d.phase == phaseAsking:
		d.changed, d.scroll = changes(before.Dialog.Diff, o.Dialog.Diff), 0
	}
}

// changes says which changed lines of a diff came and which went.
func changes(before, now []remediate.DiffLine) []string {
	var out []string
	for _, part := range []struct {
		word       string
		list, than []remediate.DiffLine
	}{{"now also  ", now, before}, {"no longer ", before, now}} {
		for _, l := range part.list {
			if l.Mark != remediate.Keep && !slices.Contains(part.than, l) {
				out = append(out, part.word+string(rune(l.Mark))+" "+clean(l.Text))
			}
		}
	}
	if len(out) == 0 {
		out = []string{"the same lines, of rules that were written anew"}
	}
	return out
}

// remake is the wish that keeps the dialog up to date.
func (d *dialog) remake() (Wish, bool) {
	switch d.phase {
	case phaseChoosing, phaseWaiting, phaseAsking, phaseRefused:
	default:
		return Wish{}, false
	}
	w := d.wish
	if d.phase == phaseAsking {
		w.Do, w.Kind, w.Choice, w.Receipt = DoMake, d.offer.Kind, d.offer.Choice, d.offer.Receipt
	}
	return w, d.answered
}

// dialogBox draws the dialog with at most so many rows:
//
//	╭─ Confirm reapply ───────────────────────────────────── plan 3f9a3f9a ─╮
//	│  Re-apply 6 rules to iptables-nft v4 nat FLANNEL-POSTRTG               │
//	│  Pods of this node reach the outside with masquerade again.            │
//	│  + -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 … -j RETURN         │
//	│  sends      one nf_tables batch, 6 messages, one generation            │
//	│  checked    ✓ rules as planned from, looked at 12:04:31                │
//	│  type reapply to go on: reap▌                             esc cancels  │
func (s *screen) dialogBox(rows int) box {
	d := s.dialog
	b := box{title: s.dialogTitle(), focused: true}
	if id := d.offer.Dialog.ID; id != "" {
		b.info = "plan " + id[:min(8, len(id))]
	}
	switch d.phase {
	case phaseWaiting:
		s.say(&b, "", "The plan is being made …", roleText)
		s.lastLine(&b, "esc cancels")
	case phaseChoosing:
		b.info = fmt.Sprintf("%d plans", len(d.offers))
		s.choiceLines(&b)
	case phaseRefused:
		s.refusalLines(&b)
	case phaseNothing:
		s.nothingLines(&b)
	case phaseRunning, phaseDone:
		s.resultLines(&b)
	default:
		s.planLines(&b, rows)
	}
	if len(b.lines) > rows {
		b.lines = append(b.lines[:max(rows-1, 0)], b.lines[len(b.lines)-1])
	}
	return b
}

func (s *screen) dialogTitle() string {
	d := s.dialog
	kind := string(d.offer.Kind)
	switch d.phase {
	case phaseWaiting, phaseChoosing:
		return "What can be done"
	case phaseRefused:
		return "Refused"
	case phaseNothing:
		return "Nothing left to do"
	case phaseRunning:
		return "Carrying out " + kind
	case phaseDone:
		return "Result of " + kind
	}
	if s.readOnly {
		return "Plan of " + kind + ", read-only"
	}
	return "Confirm " + kind
}

// lastLine ends a dialog with what its keys do.
func (s *screen) lastLine(b *box, hint string) {
	s.say(b, "", "", roleText)
	b.lines = append(b.lines, s.innerLine(groundPlain).to(s.inner()-width(hint)-2).put(roleDim, hint).full())
}

// choiceLines lists several plans with what each does for pods.
func (s *screen) choiceLines(b *box) {
	d := s.dialog
	for i, o := range d.offers {
		for n, part := range wrap(clean(o.Dialog.Title), s.inner()-13) {
			l := s.innerLine(groundPlain)
			if i == d.at {
				l.ground = groundSelect
			}
			mark, kind := "", ""
			if n == 0 {
				mark, kind = []string{"", "▸ "}[on(i == d.at, 1)], string(o.Kind)
			}
			l.put(roleFocus, left(mark, 2)).put(roleKey, left(kind, 9))
			b.lines = append(b.lines, l.put(roleStrong, part).full())
		}
		for _, e := range o.Dialog.Effects {
			b.lines = append(b.lines, s.innerLine(groundPlain).gap(11).put(roleDim, cut(clean(e), s.inner()-13)).full())
		}
	}
	s.lastLine(b, "enter opens  esc cancels")
}

// refusalLines says of each guard that stands in the way what was found and what would change it.
func (s *screen) refusalLines(b *box) {
	d := s.dialog
	if d.trouble != "" {
		s.say(b, "", clean(d.trouble), roleWarn)
		s.lastLine(b, "esc closes")
		return
	}
	for _, o := range d.offers {
		for i, r := range o.Refused {
			s.fact(b, first(i, string(o.Kind)), roleWarn, signWarn+" "+r.Why)
			s.fact(b, " ", roleText, "what would change it: "+r.Change)
			if r.Judge {
				s.fact(b, " ", roleDim, fmt.Sprintf("to judge it yourself: flanwatch %s --override %s", o.Kind, r.Name))
			}
		}
		if len(o.Refused) == 0 {
			s.fact(b, string(o.Kind), roleDim, o.Dialog.Title)
		}
	}
	s.lastLine(b, "esc closes")
}

func (s *screen) nothingLines(b *box) {
	d := s.dialog
	title := d.offer.Dialog.Title
	if d.faster || title == "" {
		title = "The rules are as the plan wanted them: somebody was faster, most likely flanneld itself."
	}
	s.say(b, "", signDone+" "+clean(title), roleGood)
	s.lastLine(b, "any key closes")
}

// resultLines shows how far the plan is, and how it ended.
func (s *screen) resultLines(b *box) {
	d := s.dialog
	s.say(b, "", clean(d.offer.Dialog.Title), roleStrong)
	s.say(b, "", "", roleText)
	for _, st := range d.steps {
		sign, as, took := "…", roleKey, ""
		if st.Done {
			sign, as, took = signDone, roleGood, fmt.Sprintf("%.3f s", st.Took.Seconds())
		}
		b.lines = append(b.lines, s.innerLine(groundPlain).gap(2).put(as, sign+" ").put(roleText, left(st.Name, 11)).put(roleDim, took).full())
	}
	if d.phase == phaseRunning {
		s.lastLine(b, "it cannot be left before it has ended")
		return
	}
	s.say(b, "", "", roleText)
	o := &d.outcome
	switch o.Result {
	case remediate.ResultVerified:
		text := " verified: the rules are as planned"
		if d.offer.Kind == remediate.KindUnstick {
			text = " done: these connections are deleted, or had ended by themselves; flanwatch history tells which"
		}
		s.fact(b, "result", roleGood, signDone+text)
	case remediate.ResultRefused:
		s.fact(b, "result", roleWarn, signWarn+" refused, nothing was changed: "+o.Why)
	case remediate.ResultFailed:
		s.fact(b, "result", roleBad, signBad+" failed, the state is that of before: "+o.Why)
	default:
		s.fact(b, "result", roleBad, signBad+" NOT verified: "+o.Why)
	}
	if o.Receipt != "" {
		s.fact(b, "receipt", roleText, o.Receipt)
	}
	switch {
	case d.offer.Kind == remediate.KindUnstick:
		s.fact(b, "undo", roleText, "there is none: a connection that was deleted begins anew with its next packet")
	case o.Receipt != "":
		s.fact(b, "undo", roleText, "u here, or: flanwatch undo "+o.Receipt)
	}
	if d.offer.Kind == remediate.KindReapply && o.Result == remediate.ResultVerified {
		s.fact(b, "next", roleText, "connections that began meanwhile can stay without source NAT: c lists them, and r there drops them")
	}
	switch {
	case o.Again != "" && o.Lasting:
		s.fact(b, "later", roleGood, signDone+" "+o.Again)
	case o.Again != "":
		s.fact(b, "later", roleWarn, signWarn+" "+o.Again)
	case o.Look > 0:
		s.fact(b, "later", roleDim, "a second look is due "+span(o.Look)+" after the change, also when this is closed")
	}
	s.lastLine(b, "any key closes")
}

// ticked tells of a part whether it is in.
func ticked(on bool) string {
	if on {
		return "[x] "
	}
	return "[ ] "
}
