package ui

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// incidentZooms are the times that one column of an incident's axis can stand for: gaps of a few milliseconds have a width.
var incidentZooms = append([]time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
}, zooms...)

// axisWindow is the piece of time that an incident's signals are drawn on.
type axisWindow struct {
	label, columns int // widths of the names on the left, and of the axis
	step           time.Duration
	zero           int       // column of the first bad moment
	end            time.Time // of the last column
}

// maxLanes bounds the chains drawn.
const maxLanes = 4

// noteWidth is kept for words on the right of each signal.
func (s *screen) noteWidth() int { return min(34, s.inner()/3) }

func (s *screen) axisColumns(i *incident.Incident) (label, columns int) {
	label = len("commits")
	for n, id := range i.Objects() {
		if n < maxLanes {
			label = max(label, width(s.laneName(id)))
		}
	}
	return label, s.inner() - label - s.noteWidth() - 4
}

// fittingZoom is the closest zoom at which the incident takes at most half of the axis.
func (s *screen) fittingZoom(i *incident.Incident) int {
	_, columns := s.axisColumns(i)
	d := i.Duration(s.view.Now)
	for z, step := range incidentZooms {
		if d <= time.Duration(columns/2)*step {
			return z
		}
	}
	return len(incidentZooms) - 1
}

func (s *screen) axisOf(i *incident.Incident) axisWindow {
	var w axisWindow
	w.label, w.columns = s.axisColumns(i)
	w.step = incidentZooms[min(max(s.fittingZoom(i)+s.closer, 0), len(incidentZooms)-1)]
	w.zero = w.columns / 4
	start := s.view.Now.Wall.Add(-s.view.Now.Sub(i.Start))
	w.end = start.Add(time.Duration(w.columns-w.zero) * w.step)
	return w
}

// columnOn is the place of a moment, which may lie outside.
func (s *screen) columnOn(w axisWindow, t flannel.Time) int {
	return s.column(t, w.columns, w.step, w.end)
}

// signalsBox draws the incident's chains, the rate and the commits on one time axis, whose zero is the first bad moment:
//
//	│             −5 s      0 s       +5 s      +10 s                            │
//	│ v4 POSTRTG  ━━━━━━━━━━×·········━━━━━━━━━━━━━━━━━━━━━━  empty for 4.886 s   │
//	│ conn/s      ▃▃▄▃▃▅▃▂▃▄··········▂▃▃▄▃▅▃▃▂▃▄▃▃▃▄▃▃▅▃▃▃▃  41 at the cursor    │
//	│ bare        ▁▁▁▁▁▁▁▁▁▁▂▃▄▅▆▇█████▇▇▇▆▆▆▅▅▅▅▄▄▄▄▃▃▃▃▃▃▃  peak 1,043, now 640  │
//	│ commits               ╵4812     ╵4813                                       │
//	│                       ▲                                 cursor at 0 s       │
func (s *screen) signalsBox(i *incident.Incident) box {
	b := box{title: fmt.Sprintf("Incident %d: %s", i.Number, i.Kind), info: "[ ] zoom  ←→ step"}
	w := s.axisOf(i)
	list := s.happenings(i)
	cursor := i.Start
	if n := len(list); n > 0 {
		cursor = list[min(s.cursor, n-1)].at
	}
	b.lines = append(b.lines, s.relativeAxis(w))
	for n, id := range i.Objects() {
		if n == maxLanes {
			break
		}
		l := s.signal(w, s.laneName(id))
		s.putLane(l, s.laneCells(s.incidentLane(i, id), w.columns, w.step, w.end))
		b.lines = append(b.lines, s.note(l, w, roleText, s.laneNote(i, id)))
	}
	if line := s.rateSignal(i, w, cursor); line != "" {
		b.lines = append(b.lines, line)
	}
	b.lines = append(b.lines, s.bareSignal(i, w))
	if line := s.commitSignal(w, list); line != "" {
		b.lines = append(b.lines, line)
	}
	return s.withCursor(b, w, i, cursor)
}

func (s *screen) signal(w axisWindow, label string) *line {
	return s.innerLine(groundPlain).gap(1).put(roleDim, left(label, w.label)).gap(1)
}

func (s *screen) note(l *line, w axisWindow, as role, text string) string {
	return l.to(w.label+2+w.columns+1).put(as, text).full()
}

func (s *screen) withCursor(b box, w axisWindow, i *incident.Incident, cursor flannel.Time) box {
	l := s.signal(w, "")
	if col := s.columnOn(w, cursor); col >= 0 && col < w.columns {
		l.to(w.label+2+col).put(roleKey, "▲")
	}
	text := "cursor at the start"
	if d := cursor.Sub(i.Start); d != 0 {
		text = "cursor at " + offset(d)
	}
	b.lines = append(b.lines, s.note(l, w, roleDim, text))
	return b
}

// shortMarks are distances of labels below those of the timeline.
var shortMarks = []time.Duration{
	10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
}

// relativeAxis labels round distances from the first bad moment.
func (s *screen) relativeAxis(w axisWindow) string {
	every := marks[len(marks)-1]
	for _, m := range slices.Concat(shortMarks, marks) {
		if int(m/w.step) >= 10 {
			every = m
			break
		}
	}
	l := s.innerLine(groundPlain).gap(w.label + 2)
	per := int(every / w.step)
	for n := -(w.zero / per); w.zero+n*per < w.columns; n++ {
		text := "0 s"
		if n != 0 {
			text = strings.TrimSuffix(offset(time.Duration(n)*every), " 00 s")
			text = strings.Replace(text, ".000 s", " s", 1)
		}
		if col := w.label + 2 + w.zero + n*per; col >= l.w && w.zero+n*per+width(text) <= w.columns {
			l.to(col).put(roleDim, text)
		}
	}
	return l.full()
}

// incidentLane gives the states of a chain: as they were followed, or from the incident where that is longer ago than kept.
func (s *screen) incidentLane(i *incident.Incident, id flannel.ChainID) []incident.Span {
	for n := range s.view.Chains {
		if c := &s.view.Chains[n]; c.ID == id && len(c.Lane) > 0 && c.Lane[0].From.Sub(i.Start) <= 0 {
			return c.Lane
		}
	}
	var out []incident.Span
	for _, sp := range i.Spells {
		if sp.Chain != id {
			continue
		}
		if len(out) == 0 { // what was before is not known
			out = append(out, incident.Span{From: sp.From, State: flannel.ChainUnreadable})
		}
		out = append(out, incident.Span{From: sp.From, State: sp.State})
		if !sp.Open {
			out = append(out, incident.Span{From: sp.To, State: flannel.ChainUnreadable})
		}
	}
	return out
}

// laneNote says what was wrong with a chain and for how long, all its spells together.
func (s *screen) laneNote(i *incident.Incident, id flannel.ChainID) string {
	var total time.Duration
	state, times := flannel.ChainState(""), 0
	for _, sp := range i.Spells {
		if sp.Chain != id {
			continue
		}
		if times++; times == 1 {
			state = sp.State
		}
		if sp.Open {
			total += s.ago(sp.From)
		} else {
			total += sp.To.Sub(sp.From)
		}
	}
	text := stateWord(state) + " for " + exactSpan(total)
	if times > 1 {
		text = fmt.Sprintf("%s %d times, %s", stateWord(state), times, exactSpan(total))
	}
	return text
}

// rateSignal draws the rate of the first chain that has counters, "" if none has.
func (s *screen) rateSignal(i *incident.Incident, w axisWindow, cursor flannel.Time) string {
	for _, id := range i.Objects() {
		for n := range s.view.Chains {
			if c := &s.view.Chains[n]; c.ID == id && c.Counted {
				return s.rateOf(c, w, cursor)
			}
		}
	}
	return ""
}

func (s *screen) rateOf(c *incident.ChainView, w axisWindow, cursor flannel.Time) string {
	label := "packets/s"
	if isNat(c.ID) {
		label = "conn/s"
	}
	values := s.columnRates(c, w.columns, w.step, w.end)
	from, to := max(s.columnOn(w, s.view.Started), 0), min(s.columnOn(w, s.view.Now), w.columns-1)
	l := s.signal(w, cut(label, w.label))
	if to >= 0 {
		l.put(roleGraph, sparkline(values[:to+1], from, s.ascii))
	}
	text := unknown
	if col := s.columnOn(w, cursor); col >= 0 && col <= to && !math.IsNaN(values[col]) {
		text = strings.TrimSpace(scaled(values[col]))
	}
	return s.note(l, w, roleDim, text+" at the cursor")
}

// commitSignal marks the commits in which the incident's chains changed, "" where none is known.
func (s *screen) commitSignal(w axisWindow, list []happening) string {
	l := s.signal(w, "commits")
	begin, last, any := l.w, uint32(0), false
	for n := range list {
		g, col := list[n].generation, s.columnOn(w, list[n].at)
		if g == 0 || g == last {
			continue
		}
		last, any = g, true
		if text := "╵" + fmt.Sprint(g); begin+col >= l.w && col >= 0 && col+width(text) <= w.columns {
			l.to(begin+col).put(roleText, text)
		}
	}
	if !any {
		return ""
	}
	return l.full()
}
