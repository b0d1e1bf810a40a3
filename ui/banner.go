package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

// headline is the one sentence for somebody called at night.
type headline struct {
	sign  string
	word  string
	role  role
	alert bool   // the word is drawn inverse
	text  string // what, and since when
	by    string // how it came about: "emptied by "
	who   string // "" if unknown
	more  int    // findings beside this one
	key   string // the key that helps
}

// banner draws the headline:
//
//	✗ CRITICAL  v4 nat FLANNEL-POSTRTG empty for 4.2 s · emptied by iptables[48213]           ↵ rules
func (s *screen) banner() string {
	h := s.headline()
	l := s.line().gap(1)
	if h.alert {
		l.ground = groundAlert
		l.put(h.role, " "+h.sign+" "+h.word+" ")
		l.ground = groundPlain
	} else {
		l.put(h.role, h.sign+" "+h.word)
	}
	l.gap(2)
	end := s.width - 1
	text := roleText
	if h.alert {
		text = roleStrong
	}
	l.put(text, cut(h.text, end-l.w))
	// What is left over goes to whom it may help, in this order, and never in part.
	kept := on(h.key == helpKey, width(helpKey)+2)
	s.putCulprit(l, h, end-kept)
	if h.key != "" && l.w+2+width(h.key) <= end {
		end -= width(h.key) + 2
	} else {
		h.key = ""
	}
	if h.more > 0 && l.w+10 <= end {
		l.put(roleDim, fmt.Sprintf(" · +%d more", h.more))
	}
	if h.key != "" {
		l.to(end+2).put(roleKey, h.key)
	}
	return l.full()
}

// helpKey is the key that helps most: its place is kept free.
const helpKey = "r fix"

// putCulprit names who did it, as fully as there is room for.
func (s *screen) putCulprit(l *line, h headline, end int) {
	program, _, _ := strings.Cut(h.who, " ← ")
	for _, form := range [][2]string{{h.by, h.who}, {h.by, program}, {"", program}} {
		if h.who != "" && l.w+width(" · ")+width(form[0]+form[1]) <= end {
			l.put(roleDim, " · "+form[0]).put(roleWho, form[1])
			return
		}
	}
}

func (s *screen) headline() headline {
	v := s.view
	switch {
	case v == nil && s.old < 3*time.Second:
		return headline{sign: signNone, word: "READING", role: roleKey, text: "first look at the packet filter"}
	case v == nil:
		return headline{sign: signBad, word: "NO READING", role: roleBad, alert: true, text: "nothing was read for " + seconds1(s.old)}
	case s.stale():
		return headline{
			sign: signBad, word: "STALE", role: roleBad, alert: true,
			text: fmt.Sprintf("no reading for %s; what is shown was true at %s", seconds1(s.old), s.clock(v.Now.Wall)),
		}
	}
	f := worst(v.Findings)
	trouble := s.trouble()
	switch {
	case trouble != "" && s.blind():
		return headline{sign: signBad, word: "CANNOT READ", role: roleBad, alert: true, text: trouble}
	case f != nil && f.Severity == diagnose.Critical:
		return s.findingLine(f, "CRITICAL", signBad, roleBad)
	case trouble != "":
		return headline{sign: signBad, word: "CANNOT READ", role: roleBad, alert: true, text: trouble}
	case s.noFlannel():
		return headline{sign: signNone, word: "NO FLANNEL", role: roleKey, text: "nothing of Flannel in this network namespace"}
	case f != nil:
		return s.findingLine(f, "WARNING", signWarn, roleWarn)
	}
	return s.calm()
}

// worst is the first finding that asks for somebody, nil if none does.
func worst(list []diagnose.Finding) *diagnose.Finding {
	for i := range list {
		if list[i].Severity != diagnose.Info {
			return &list[i]
		}
	}
	return nil
}

// trouble tells in a clause what cannot be read, "" if nothing.
func (s *screen) trouble() string {
	var parts []string
	for _, b := range s.view.Backends {
		if b.State == flannel.Unreadable {
			parts = append(parts, b.Backend.String()+": "+clean(b.Why))
		}
	}
	for _, f := range s.view.Faults {
		if f.Why != "" && !strings.Contains(strings.Join(parts, " "), clean(f.Why)) {
			parts = append(parts, clean(f.Reader)+": "+clean(f.Why))
		}
	}
	return strings.Join(parts, " · ")
}

func (s *screen) findingLine(f *diagnose.Finding, word, sign string, as role) headline {
	h := headline{sign: sign, word: word, role: as, alert: true, text: clean(f.Summary)}
	for i := range s.view.Chains {
		if c := &s.view.Chains[i]; c.ID == f.Chain {
			h.text, h.by, h.who = s.chainSentence(c, f)
			h.key = s.helpfulKey(c.ID)
		}
	}
	switch {
	case s.remedies && s.page != pageHelp && aboutFinding(f).prefer != "":
		h.key = helpKey
	case h.key == "" && s.page == pageDashboard:
		h.key = "f why"
	}
	h.more = troubles(s.view.Findings) - 1
	return h
}

func troubles(list []diagnose.Finding) int {
	n := 0
	for _, f := range list {
		if f.Severity != diagnose.Info {
			n++
		}
	}
	return n
}

// stateSentences say a state in the words of a sentence that starts with the chain.
var stateSentences = map[flannel.ChainState]string{
	flannel.ChainEmpty: "empty", flannel.ChainAbsent: "gone", flannel.ChainUnreferenced: "without its jump",
	flannel.ChainPartial: "incomplete", flannel.ChainDiffers: "not as wanted", flannel.ChainShadowed: "shadowed",
	flannel.ChainLeftover: "left over", flannel.ChainUnreadable: "unreadable",
}

// chainSentence says what is wrong with a chain, for how long, and who was seen doing it.
func (s *screen) chainSentence(c *incident.ChainView, f *diagnose.Finding) (text, by, who string) {
	state, ok := stateSentences[c.State]
	if !ok {
		return clean(f.Summary), "", ""
	}
	text = s.chainName(c.ID) + " " + state
	if c.State == flannel.ChainPartial {
		text += fmt.Sprintf(" (%d of %d rules)", c.Found, c.Wanted)
	}
	since := f.Since
	if since.IsZero() {
		since = c.Since
	}
	if since.IsZero() {
		return text, "", ""
	}
	by, who = s.culprit(c.ID, since)
	return text + " for " + span(s.ago(since)), by, who
}

// doneBy says how an event came about, with its author at the end.
var doneBy = map[incident.EventKind]string{
	incident.EventEmptied: "emptied by ", incident.EventDeleted: "deleted by ", incident.EventHookLost: "unhooked by ",
	incident.EventChanged: "changed by ",
}

// culprit names the author of the change that began it.
func (s *screen) culprit(id flannel.ChainID, since flannel.Time) (by, who string) {
	for i := len(s.view.Events) - 1; i >= 0; i-- {
		e := &s.view.Events[i]
		verb, ok := doneBy[e.Kind]
		if e.Chain != id || !ok {
			continue
		}
		if d := e.Time.Sub(since); d > time.Second || d < -time.Second || e.Who == nil {
			break
		}
		return verb, whoText(e.Who)
	}
	for _, n := range s.view.Incidents {
		if n.Open && n.By != nil && slices.ContainsFunc(n.Spells, func(p incident.Spell) bool { return p.Open && p.Chain == id }) {
			return "begun by ", whoText(n.By)
		}
	}
	return "", ""
}

// helpfulKey leads to the rules of the chain in the banner.
func (s *screen) helpfulKey(id flannel.ChainID) string {
	if c := s.current(); c == nil || c.ID != id || s.page != pageDashboard || s.focus != panelChains {
		return ""
	}
	return "enter rules"
}

// calm is the line of a node where nothing asks for anybody.
func (s *screen) calm() headline {
	v := s.view
	good := 0
	for i := range v.Chains {
		if v.Chains[i].State == flannel.ChainOK {
			good++
		}
	}
	switch v.Flannel.State {
	case diagnose.FlannelStarting:
		return headline{
			sign: signNone, word: "STARTING", role: roleKey,
			text: fmt.Sprintf("flanneld has just started; %d of %d chains are as it wants them", good, len(v.Chains)),
		}
	case diagnose.FlannelUnknown:
		return headline{
			sign: signUnknown, word: "UNSURE", role: roleWarn,
			text: "cannot tell whether Flannel runs here: " + clean(strings.Join(v.Flannel.Evidence, "; ")),
		}
	}
	if good < len(v.Chains) {
		return headline{
			sign: signNone, word: "NOTED", role: roleKey,
			text: fmt.Sprintf("%d of %d chains are as Flannel wants them; nothing here needs anybody", good, len(v.Chains)),
		}
	}
	h := headline{sign: signGood, word: "OK", role: roleGood, text: fmt.Sprintf("%d chains as Flannel wants them", good)}
	if good == 1 {
		h.text = "1 chain as Flannel wants it"
	}
	if n := lastIncident(v); n != nil {
		h.text += fmt.Sprintf(" · last incident %s: %s, %s", dayTime(n.Start.Wall, v.Now.Wall, s.loc), n.Kind, span(n.Duration(v.Now)))
		if n.By != nil {
			h.text += ", by " + whoText(n.By)
		}
	} else if e := lastChange(v.Events); e != nil {
		h.text += " · last change " + dayTime(e.Time.Wall, v.Now.Wall, s.loc)
		if e.Who != nil {
			h.text += " by " + whoText(e.Who)
		}
	}
	return h
}

// lastIncident is the newest one that is over, if it is not long ago.
func lastIncident(v *incident.View) *incident.Incident {
	for i := len(v.Incidents) - 1; i >= 0; i-- {
		if n := &v.Incidents[i]; !n.Open && v.Now.Sub(n.Start) < time.Hour {
			return n
		}
	}
	return nil
}

func lastChange(events []incident.Event) *incident.Event {
	for i := len(events) - 1; i >= 0; i-- {
		switch events[i].Kind {
		case incident.EventReadFail, incident.EventReadBack, incident.EventRestarted, incident.EventAction:
		default:
			return &events[i]
		}
	}
	return nil
}
