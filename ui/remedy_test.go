package ui

import (
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/remediate"
)

// recorder is a player that notes what it is asked for.
type recorder struct {
	asked []string
	to    time.Time
}

func (r *recorder) note(what string, n int) {
	r.asked = append(r.asked, what+[]string{" back", " on"}[on(n > 0, 1)])
}
func (r *recorder) Toggle()              { r.asked = append(r.asked, "toggle") }
func (r *recorder) Step(n int)           { r.note("step", n) }
func (r *recorder) Jump(n int)           { r.note("jump", n) }
func (r *recorder) Seek(d time.Duration) { r.asked = append(r.asked, "seek "+d.String()) }
func (r *recorder) GoTo(t time.Time)     { r.asked, r.to = append(r.asked, "go to"), t }
func (r *recorder) Speed(n int)          { r.note("speed", n) }

// applies counts the plans that a desk was asked to carry out.
func (d *desk) applies() int {
	n := 0
	for _, w := range d.wishes {
		n += on(w.Do == DoApply, 1)
	}
	return n
}

func TestFromTheBannerToTheAppliedPlanItTakesTwoKeysAndTheWord(t *testing.T) {
	tt := open(t, 100, 30, withRemedy(), nil)
	tt.shows("r fix")
	presses := 0
	press := func(key string) { presses++; tt.keys(key) }
	press("r")
	tt.shows("type reapply to go on")
	tt.keys("reapply")
	tt.shows("enter carries it out")
	press("\r")
	tt.shows("verified: the rules are as planned")
	if presses > 3 || tt.desk.applies() != 1 || len(tt.desk.receipts) != 1 {
		t.Errorf("%d keys beside the word, %d applied", presses, tt.desk.applies())
	}
	press("x")
	tt.hides("Result of reapply")
}

func TestWhereSeveralPlansHelpOneIsChosenFirst(t *testing.T) {
	tt := open(t, 100, 30, withRemedy(), func(o *Options) {})
	tt.desk.empty(nat6)
	tt.shows("r fix")
	tt.keys("r")
	tt.shows("2 plans")
	tt.keys("\r")
	s := tt.shows("type reapply to go on")
	if !strings.Contains(s, "v6 nat") {
		t.Errorf("the first plan is not for all:\n%s", s)
	}
	tt.keys("reapply")
	tt.shows("enter carries it out")
	tt.keys("\r") // the third key beside the word
	tt.shows("verified")
}

func TestOnlyTheTypedWordConfirms(t *testing.T) {
	for name, keys := range map[string]string{
		"enter alone": "\r", "part of it": "reapp\r", "another word": "purge\r", "more than it": "reapplyy\r", "y": "y\r",
		"pasted": "\x1b[200~reapply\r\x1b[201~\r", "half pasted": "reap\x1b[200~ply\x1b[201~\r", "capitals": "REAPPLY\r",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt := open(t, 100, 30, withRemedy(), nil)
			tt.shows("r fix")
			tt.keys("r")
			tt.shows("type reapply to go on")
			tt.keys(keys)
			tt.shows("type reapply first")
			if n := tt.desk.applies(); n != 0 {
				t.Errorf("carried out %d times", n)
			}
			tt.keys("\x1b")
			tt.hides("Confirm reapply")
		})
	}
}

func TestAChangeOfTheRulesConcernedClearsTheWordAndIsShown(t *testing.T) {
	tt := open(t, 100, 30, withRemedy(), nil)
	tt.shows("r fix")
	tt.keys("r")
	tt.shows("type reapply to go on")
	tt.keys("reapply")
	tt.shows("enter carries it out")
	tt.desk.edit(nat4, func(c *flannel.Chain) { c.Entries = flannelRules().Chain(nat4).Entries[:2] })
	tt.box.Put(withRemedy())
	s := tt.shows("the rules changed while this was open")
	if !strings.Contains(s, "no longer + -A FLANNEL-POSTRTG -m mark") || !strings.Contains(s, "Re-apply 4 rules") || strings.Contains(s, "enter carries it out") {
		t.Errorf("it shows\n%s", s)
	}
	tt.keys("\r")
	tt.shows("type reapply first")
	tt.keys("reapply\r")
	tt.shows("verified")
}

func TestAnUnrelatedChangeLeavesTheWord(t *testing.T) {
	m := still(t, withRemedy(), Options{})
	d := newDesk(true).empty(nat4).at(m, append([]string{"r"}, typed("reap")...)...)
	d.edit(flannel.ChainID{Backend: flannel.IptablesNft, Family: flannel.IPv4, Table: "nat", Name: "POSTROUTING"}, func(c *flannel.Chain) {
		c.Entries = append(slices.Clone(c.Entries), c.Entries[0])
	})
	m.receive(withRemedy())
	if m.dialog.typed != "reap" || len(m.dialog.changed) > 0 {
		t.Errorf("typed %q, changed %v", m.dialog.typed, m.dialog.changed)
	}
}

func TestWhenFlanneldIsFasterNothingIsLeftToDo(t *testing.T) {
	m := still(t, withRemedy(), Options{})
	d := newDesk(true).empty(nat4).at(m, append([]string{"r"}, typed("rea")...)...)
	d.edit(nat4, func(c *flannel.Chain) { c.Entries = flannelRules().Chain(nat4).Entries })
	m.receive(healthy())
	if s := plain(m.at(100, 30)); !strings.Contains(s, "Nothing left to do") || !strings.Contains(s, "somebody was faster") {
		t.Fatalf("it shows\n%s", s)
	}
	d.at(m, typed("pply")...) // the rest of the word, which p would pause and y copy
	if m.dialog == nil || m.paused {
		t.Error("the end of the word acted as keys")
	}
	m.dialog.turned = now.Add(-letGo)
	if d.at(m, "x"); m.dialog != nil || d.applies() != 0 {
		t.Error("a key does not close it")
	}
}

func TestFlanneldThatIsFasterThanEnterLeavesNothingToDo(t *testing.T) {
	m := still(t, withRemedy(), Options{})
	d := newDesk(true).empty(nat4)
	d.before = func() { d.edit(nat4, func(c *flannel.Chain) { c.Entries = flannelRules().Chain(nat4).Entries }) }
	d.at(m, append([]string{"r"}, typed("reapply", "enter")...)...)
	if m.dialog.phase != phaseNothing || len(d.receipts) != 0 {
		t.Errorf("phase %d, receipts %d", m.dialog.phase, len(d.receipts))
	}
}

func TestReadOnlyPlansAreLookedAtAndCopiedAndNotCarriedOut(t *testing.T) {
	tt := open(t, 100, 30, withRemedy(), func(o *Options) { o.ReadOnly = true })
	tt.shows("r fix")
	tt.keys("r")
	s := tt.shows("read-only: it can be looked at and copied")
	if strings.Contains(s, "to go on") || strings.Contains(s, "enter apply") {
		t.Errorf("there is a field:\n%s", s)
	}
	tt.keys("reapply\r")
	tt.shows("plans can be looked at, not carried out")
	tt.keys("\x19")
	tt.shows("script copied")
	if n := tt.desk.applies(); n != 0 {
		t.Errorf("carried out %d times", n)
	}
}

func TestAPlanThatRunsIsNotLeft(t *testing.T) {
	run := make(chan struct{})
	d := newDesk(true).empty(nat4)
	d.before = func() { <-run }
	tt := open(t, 100, 30, withRemedy(), func(o *Options) {
		o.Answers = d.answers
		o.Ask = func(w Wish) {
			if w.Do != DoApply {
				d.ask(w)
				return
			}
			d.answers.Put(Answer{Wish: w.Number, Steps: []Step{{Name: "check"}}})
			go d.ask(w)
		}
	})
	tt.shows("r fix")
	tt.keys("r")
	tt.shows("type reapply to go on")
	tt.keys("reapply\r")
	tt.shows("Carrying out reapply")
	for _, key := range []string{"\x03", "q", "\x1b", "\x1a"} {
		tt.keys(key)
	}
	tt.shows("it is being carried out; wait for its end")
	tt.shows("it cannot be left before it has ended")
	close(run)
	tt.shows("verified")
}

func TestUndoIsAPlanWithTheSameDialog(t *testing.T) {
	tt := open(t, 100, 30, withRemedy(), nil)
	tt.shows("r fix")
	tt.keys("r")
	tt.shows("type reapply to go on")
	tt.keys("reapply\r")
	tt.shows("verified")
	tt.keys("u") // in the result
	tt.shows("Take back reapply of")
	tt.keys("\x1b")
	tt.hides("Take back")
	tt.keys("U")
	tt.shows("Carried out here 1")
	tt.keys("\r") // of the selected receipt
	s := tt.shows("type undo to go on")
	if !strings.Contains(s, "- -A FLANNEL-POSTRTG") {
		t.Errorf("no diff:\n%s", s)
	}
	tt.keys("undo\r")
	tt.shows("verified")
	tt.keys("\r")
	tt.hides("Result of undo")
	tt.keys("UU")
	s = tt.shows("Carried out here 2")
	if !strings.Contains(s, "undone") {
		t.Errorf("history:\n%s", s)
	}
}

func TestASecondLookIsToldWhenTheDialogIsClosed(t *testing.T) {
	m := still(t, withRemedy(), Options{})
	d := applied(m)
	d.at(m, "x")
	w := d.wishes[len(d.wishes)-1]
	m.answered(Answer{Wish: w.Number, Outcome: &Outcome{Result: remediate.ResultVerified, Again: "still so after 10 s", Lasting: true}})
	if m.dialog != nil || m.flash != "still so after 10 s" {
		t.Errorf("flash %q", m.flash)
	}
}

// stuck is a desk of a node on which two connections keep the translation of a dead rule, and one is bare.
func stuck() *desk {
	d := newDesk(false)
	v := withFlows()
	d.facts.Flows = v.Table.Flows
	return d
}

func TestAPartOfAPurgeIsTickedAndLeftOut(t *testing.T) {
	m := still(t, leftOver(), Options{})
	d := stuck()
	d.at(m, "r")
	if s := plain(m.at(100, 30)); !strings.Contains(s, "[x] 1 connections") {
		t.Fatalf("connections are not ticked at first:\n%s", s)
	}
	with := m.dialog.offer.Dialog.ID
	d.at(m, "p", "u", "1")
	if s := plain(m.at(100, 30)); !strings.Contains(s, "[ ] 1 connections") || strings.Contains(s, "the rules changed") {
		t.Errorf("after 1:\n%s", s)
	}
	if m.dialog.typed != "" || m.dialog.offer.Dialog.ID == with {
		t.Errorf("it is the plan of before, or its word is kept: %q", m.dialog.typed)
	}
	d.at(m, "1")
	if m.dialog.offer.Dialog.ID != with {
		t.Error("ticked again it is another plan than at first")
	}
	d.at(m, "2")
	if m.dialog.offer.Dialog.ID != with {
		t.Error("a part that is not there changes the plan")
	}
}

func TestConnectionsAreDroppedFromTheirList(t *testing.T) {
	m := still(t, withFlows(), Options{})
	m.at(100, 30)
	m.press(keyNamed("c"))
	d := stuck()
	d.at(m, "r")
	s := plain(m.at(100, 30))
	for _, want := range []string{"Confirm unstick", "type unstick to go on", "there is none: what is deleted here cannot be brought back"} {
		if !strings.Contains(s, want) {
			t.Errorf("no %q in\n%s", want, s)
		}
	}
}

func TestARemedyConcernsWhatThePageIsAbout(t *testing.T) {
	for name, set := range map[string]func(*model){
		"the banner":  func(m *model) {},
		"the chain":   func(m *model) { m.press(keyNamed("enter")) },
		"a finding":   func(m *model) { m.press(keyNamed("f")); m.press(keyNamed("enter")) },
		"the list":    func(m *model) { m.press(keyNamed("f")) },
		"an incident": func(m *model) { m.press(keyNamed("i")); m.press(keyNamed("enter")) },
	} {
		v := withRemedy()
		v.Incidents = openIncident().Incidents
		m := still(t, v, Options{})
		m.at(100, 30)
		set(m)
		c := m.concerned()
		if !slices.Contains(c.chains, nat4) {
			t.Errorf("%s: %v", name, c.chains)
		}
		if d := newDesk(true).empty(nat4).at(m, "r"); m.dialog == nil || m.dialog.phase != phaseAsking || d.wishes[0].Do != DoOffer {
			t.Errorf("%s: no plan", name)
		}
	}
}

func TestARefusalSaysWhatWouldChangeIt(t *testing.T) {
	m := still(t, withRemedy(), Options{})
	d := newDesk(true).empty(nat4)
	d.facts.Procs.Value[0].Started = at(now.Add(-3 * time.Second))
	d.at(m, "r")
	s := plain(m.at(100, 30))
	if !strings.Contains(s, "flanneld is starting") || !strings.Contains(s, "what would change it: wait until") {
		t.Errorf("it shows\n%s", s)
	}
	d.facts.Procs.Value[0].Started = at(started) // and when it is over the plan is there
	m.receive(withRemedy())
	if s := plain(m.at(100, 30)); !strings.Contains(s, "type reapply to go on") {
		t.Errorf("it shows\n%s", s)
	}
}

func TestEveryKeyOfAPlanDoesWhatHelpSays(t *testing.T) {
	checks := map[action]func(t *testing.T, tt *terminal){
		actApply: func(t *testing.T, tt *terminal) { tt.keys("reapply\r"); tt.shows("verified") },
		actDiff: func(t *testing.T, tt *terminal) {
			tt.keys("\t")
			tt.shows("#!/bin/sh")
			tt.keys("\t")
			tt.shows("tab commands")
		},
		actPart:   func(t *testing.T, tt *terminal) { tt.keys("1"); tt.shows("type reapply to go on") }, // it has no parts
		actScript: func(t *testing.T, tt *terminal) { tt.keys("\x19"); tt.shows("script copied") },
		actCancel: func(t *testing.T, tt *terminal) {
			tt.keys("reap\x03")
			tt.hides("Confirm reapply")
			tt.shows("Timeline")
		},
		actScroll: func(t *testing.T, tt *terminal) {
			for _, step := range [][2]string{
				{"\x1b[B", "lines 2–"}, {"\x1b[A", "lines 1–"}, {"\x1b[F", "of 26 "}, {"\x1b[H", "lines 1–"}, {"\x1b[6~", "lines 9–"}, {"\x1b[5~", "lines 1–"},
			} {
				tt.keys(step[0])
				tt.until(step[1], func(s string) bool {
					return strings.Contains(s, step[1]) || step[0] == "\x1b[F" && !strings.Contains(s, "lines 1–")
				})
			}
		},
	}
	for _, b := range bindings {
		if b.mode != inPlan {
			continue
		}
		t.Run(b.show, func(t *testing.T) {
			t.Parallel()
			tt := open(t, 80, 24, withRemedy(), nil)
			tt.shows("r fix")
			tt.keys("r")
			tt.shows("type reapply to go on")
			checks[b.act](t, tt)
		})
	}
}

func TestEveryKeyOfARecordingDoesWhatHelpSays(t *testing.T) {
	want := map[string]string{
		"space": "toggle", "left": "step back", "right": "step on", "n": "jump on", "N": "jump back", "shift+left": "seek -10s",
		"shift+right": "seek 10s", "ctrl+left": "seek -1m0s", "ctrl+right": "seek 1m0s", "+": "speed on", "-": "speed back",
	}
	bytes := map[string]string{
		"space": " ", "left": "\x1b[D", "right": "\x1b[C", "shift+left": "\x1b[1;2D", "shift+right": "\x1b[1;2C", "ctrl+left": "\x1b[1;5D", "ctrl+right": "\x1b[1;5C",
	}
	p := &recorder{}
	tt := open(t, 100, 30, emptied(), func(o *Options) { o.Mode, o.Player, o.ReadOnly = ModeReplay, p, true })
	tt.shows("space play")
	var pressed []string
	for _, b := range bindings {
		if b.mode != inRecording || b.act == actGoTo {
			continue
		}
		for _, k := range b.keys {
			if want[k] == "" {
				t.Errorf("%s has no test", k)
			}
			pressed = append(pressed, want[k])
			if bytes[k] != "" {
				k = bytes[k]
			}
			tt.keys(k)
		}
	}
	tt.keys("@12:03:05\r")
	tt.hides("enter go")
	tt.keys("@-30s")
	tt.shows("go to -30s")
	tt.keys("x\r")
	tt.shows("want a time such as")
	tt.keys("\x1b")
	tt.hides("enter go")
	tt.keys("q")
	if err := tt.ends(); err != nil {
		t.Fatal(err)
	}
	if got := p.asked; !slices.Equal(got, append(pressed, "go to")) || !p.to.Equal(noon.Add(3*time.Minute+5*time.Second)) {
		t.Errorf("asked for %v, %v", got, p.to)
	}
}

func TestATimeIsReadInSeveralForms(t *testing.T) {
	berlin := time.FixedZone("CET", 3600)
	from := now.In(berlin)
	for text, want := range map[string]time.Time{
		"13:04:27": noon.Add(4*time.Minute + 27*time.Second), "13:04": noon.Add(4 * time.Minute), " 13:04:27.5 ": noon.Add(4*time.Minute + 27500*time.Millisecond),
		"2026-11-29 13:00": noon.Add(-24 * time.Hour), "-30s": now.Add(-30 * time.Second), "+5m": now.Add(5 * time.Minute),
		"2026-11-30T12:00:00Z": noon,
	} {
		if got, err := momentOf(text, from); err != nil || !got.Equal(want) {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"soon", "25:00", "+x", "", "12"} {
		if got, err := momentOf(text, from); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}
