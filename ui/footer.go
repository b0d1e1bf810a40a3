package ui

import (
	"slices"
	"strings"
)

// here is where the keys go now.
func (s *screen) here() place {
	switch {
	case s.dialog != nil:
		return inDialog
	case s.onLook():
		return inLook
	case s.page == pageHistory:
		return inHistory
	case s.page == pageFlows:
		return inFlows
	case s.page == pageIncidents || s.page == pageFindings || s.page == pagePaths:
		return inLists
	case s.page == pageIncident:
		return inIncident
	case s.page != pageDashboard:
		return inPages
	case s.focus == panelRules:
		return inRules
	case s.focus == panelTimeline:
		return inTimeline
	case s.focus == panelTable:
		return inTable
	}
	return inChains
}

// footer offers the keys of what has the focus, whole ones only, cut from the right where there is less room:
//
//	?, F1 help  / filter  tab panel  enter open  p pause  s sort  + slower  - faster  e export  q, ctrl+c quit
//
// While a filter is typed it is the place where one types.
func (s *screen) footer() string {
	l := s.line().gap(1)
	switch {
	case s.prompt != nil:
		return s.promptLine()
	case s.typing:
		hint := "  enter keep  esc clear"
		l.put(roleKey, "/").put(roleStrong, tail(clean(*s.filtered()), s.width-l.w-width(hint)-2)).put(roleKey, "▌")
		return l.to(s.width-width(hint)-1).put(roleDim, hint).full()
	case s.flash != "" && s.height < roomy:
		return l.put(roleStrong, cut(s.flash, s.width-2)).full()
	}
	offers := s.offers()
	if len(offers) == 0 {
		return l.full()
	}
	quit := offers[len(offers)-1]
	for i, o := range offers {
		last := i == len(offers)-1
		if !last && l.w+columns(o)+2+columns(quit) > s.width-1 {
			continue
		}
		if l.pieces(o...); !last {
			l.gap(2)
		}
	}
	return l.full()
}

// offers are the keys worth a place in the footer; to quit comes last and is always among them.
func (s *screen) offers() [][]piece {
	var out [][]piece
	for _, b := range bindings {
		if b.short != "" && s.works(b) && (slices.Contains(b.places, everywhere) || slices.Contains(b.places, s.here())) {
			key, _, _ := strings.Cut(b.show, ",")
			out = append(out, []piece{{roleKey, key}, {roleDim, " " + b.short}})
		}
	}
	return out
}

// works tells whether a key does something here at all.
func (s *screen) works(b binding) bool {
	switch {
	case b.mode == inRecording:
		return s.plays && s.dialog == nil
	case b.mode == inPlan:
		return s.remedies && s.offersInDialog(b.act)
	case s.dialog != nil, s.plays && taken(b.keys):
		return false
	}
	switch b.act {
	case actSlower, actFaster:
		return s.interval > 0
	case actProbe:
		return s.probes && !s.plays
	case actRemedy:
		return s.remedies
	case actUndo, actHistory:
		return s.remedies && !s.plays
	}
	return true
}

// offersInDialog tells whether a key of plans does something in the one that is shown; without one, all are for the help page.
func (s *screen) offersInDialog(a action) bool {
	if s.dialog == nil {
		return true
	}
	switch p := s.dialog.phase; a {
	case actApply:
		return p == phaseChoosing || p == phaseAsking && !s.readOnly
	case actDiff, actScript:
		return p == phaseAsking
	case actScroll:
		return p == phaseAsking || p == phaseChoosing
	}
	return s.dialog.phase <= phaseAsking
}

// tail keeps the end of what is being typed in sight.
func tail(text string, w int) string {
	r := []rune(text)
	return string(r[max(len(r)-max(w, 0), 0):])
}

// statusLine is the line above the keys: what was just done, else what is being recorded.
func (s *screen) statusLine() string {
	l := s.line().gap(1)
	if s.flash != "" {
		return l.put(roleStrong, cut(s.flash, s.width-2)).full()
	}
	return l.put(roleDim, cut(s.status, s.width-2)).full()
}

// helpPage lists every key that does something.
func (s *screen) helpPage() box {
	b := box{title: "Help", info: "esc back"}
	add := func(ps ...piece) { b.lines = append(b.lines, s.innerLine(groundPlain).gap(2).pieces(ps...).full()) }
	add()
	for _, k := range bindings {
		if s.works(k) {
			add(piece{roleKey, left(k.show, 14)}, piece{roleText, k.does})
		}
	}
	add()
	for _, row := range []struct{ sign, means string }{
		{"0 – ·", "nothing, unknown, not applicable"},
		{"c/s p/s", "connections a second in nat chains, packets a second in filter chains"},
		{"● ▲ ✗ ?", "as wanted, wrong, wrong and pods suffer, cannot tell"},
		{"- + ~ ×2", "a rule is missing, extra, out of order, there twice"},
		{"━ × ·", "on the timeline: as wanted, the moment it broke, broken"},
		{"✓ ○ ≥ ~", "an incident: over, over without coming back, longer than seen, not sure"},
		{"▁▂▃ ·", "in the graphs: the rate, newest on the right, each row on its own scale; nothing known"},
	} {
		add(piece{roleStrong, left(row.sign, 14)}, piece{roleText, row.means})
	}
	return b
}
