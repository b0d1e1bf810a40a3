package ui

import (
	"fmt"
	"strings"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

// zooms are the times that one column of a lane can stand for.
var zooms = []time.Duration{
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
	10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute,
}

// autoZoom leaves the zoom to zoomLevel.
const autoZoom = -1

// zoomLevel is the zoom in use. Until a person chooses one it widens with the time watched, up to five seconds a column.
func (s *screen) zoomLevel() int {
	const second, most = 3, 5
	if s.zoom != autoZoom {
		return s.zoom
	}
	if s.view == nil {
		return most
	}
	watched, lane := s.view.Now.Sub(s.view.Started), time.Duration(s.inner()-20)
	for z := second; z < most; z++ {
		if lane*zooms[z] >= watched {
			return z
		}
	}
	return most
}

// timelinePanel draws a lane per chain over the events, newest first:
//
//	╭─ ³Timeline ────────────────────────────────────────────────────── 5 s a column · 14 events ─╮
//	│ v4 nat POSTRTG    ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━×···· │
//	│ v4 filter FWD     ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ │
//	│                   12:02          12:02:30       12:03          12:03:30       12:04         │
//	│ 12:04:27.118 ✗ v4 nat FLANNEL-POSTRTG emptied, −6 rules                      iptables[48213] │
func (s *screen) timelinePanel(l layout) box {
	b := box{number: "³", title: "Timeline", focused: s.focus == panelTimeline}
	b.info = events(len(s.view.Events))
	if l.lanes > 1 {
		b.info = period(zooms[s.zoomLevel()]) + " a column · " + b.info
		b.lines = append(b.lines, s.lanes(l.lanes-1, l.graph)...)
	}
	b.lines = append(b.lines, s.eventLines(l.events())...)
	return b
}

func events(n int) string {
	switch n {
	case 0:
		return "no events"
	case 1:
		return "1 event"
	}
	return fmt.Sprintf("%d events", n)
}

// laneCell is one column of a lane.
type laneCell struct {
	grade grade
	known bool
	start bool // a worse state begins here
}

// lanes draws the axis and the lanes of the first n chains as they are sorted, under the rate of the selected one.
func (s *screen) lanes(n, graph int) []string {
	rows := s.visible()
	rows = rows[:min(n, len(rows))]
	label := 0
	for _, r := range rows {
		label = max(label, width(s.laneName(r.ID)))
	}
	w := s.inner() - label - 3
	step := zooms[s.zoomLevel()]
	now := s.view.Now.Wall
	// Columns stand on whole multiples of their length, and the axis moves on by a few at once: a second changes one column,
	// not the whole picture.
	end := now.Truncate(leap * step).Add(leap * step)
	out := []string{s.axis(label, w, step, end)}
	if c := s.current(); c != nil && graph > 0 {
		out = append(out, s.rateGraph(c, label, w, graph, step, end)...)
	}
	for _, r := range rows {
		l := s.innerLine(groundPlain).gap(1).put(roleDim, left(s.laneName(r.ID), label)).gap(1)
		s.putLane(l, s.laneCells(r.Lane, w, step, end))
		out = append(out, l.full())
	}
	return out
}

// leap is by how many columns the axis moves on when its end is reached.
const leap = 4

// column is the place of a moment on an axis of w columns that ends at end.
func (s *screen) column(t flannel.Time, w int, step time.Duration, end time.Time) int {
	back := end.Sub(s.view.Now.Wall.Add(-s.view.Now.Sub(t)))
	if back <= 0 {
		return w + int(-back/step)
	}
	return w - 1 - int((back-1)/step)
}

// laneName leaves out what every chain's name starts with.
func (s *screen) laneName(id flannel.ChainID) string {
	id.Name = strings.TrimPrefix(id.Name, "FLANNEL-")
	name := id.Family.Short() + " " + clean(id.Name)
	if s.several() {
		name = backendShort[id.Backend] + " " + name
	}
	return cut(name, 24)
}

// laneCells gives the worst state in each column, so that a gap far shorter than a column still shows.
func (s *screen) laneCells(lane []incident.Span, w int, step time.Duration, end time.Time) []laneCell {
	cells := make([]laneCell, w)
	at := func(t flannel.Time) int { return s.column(t, w, step, end) }
	for i, span := range lane {
		first, last := at(span.From), at(s.view.Now)
		if i+1 < len(lane) {
			last = at(lane[i+1].From) // shared by both; the worse one shows
		}
		g := gradeOf(span.State)
		for c := max(first, 0); c <= min(last, w-1); c++ {
			if cells[c].known && cells[c].grade <= g {
				continue
			}
			cells[c] = laneCell{grade: g, known: true, start: c == first && i > 0 && gradeOf(lane[i-1].State) > g}
		}
	}
	return cells
}

var (
	laneGlyphs = [...]string{gradeBad: "·", gradeWarn: "─", gradeUnknown: "?", gradeGood: "━"}
	laneStarts = [...]string{gradeBad: "×", gradeWarn: "▲", gradeUnknown: "?", gradeGood: "━"}
)

// putLane draws runs of equal columns as one piece.
func (s *screen) putLane(l *line, cells []laneCell) {
	for i := 0; i < len(cells); {
		j := i + 1
		for j < len(cells) && cells[j] == cells[i] {
			j++
		}
		c := cells[i]
		switch {
		case !c.known:
			l.gap(j - i)
		case c.start:
			l.put(gradeRoles[c.grade], strings.Repeat(laneStarts[c.grade], j-i))
		default:
			l.put(gradeRoles[c.grade], strings.Repeat(laneGlyphs[c.grade], j-i))
		}
		i = j
	}
}

// marks are the distances at which an axis may be labelled.
var marks = []time.Duration{
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second, time.Minute,
	2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour,
}

// axis labels round times, each at the column in which it begins.
func (s *screen) axis(label, w int, step time.Duration, end time.Time) string {
	every := marks[len(marks)-1]
	for _, m := range marks {
		if int(m/step) >= 12 {
			every = m
			break
		}
	}
	form := "15:04:05"
	if every >= time.Minute {
		form = "15:04"
	}
	l := s.innerLine(groundPlain).gap(label + 2)
	begin := end.Add(-time.Duration(w) * step)
	for t := ceil(begin, every); t.Before(end); t = t.Add(every) {
		col := label + 2 + int(t.Sub(begin)/step)
		if text := t.In(s.loc).Format(form); col >= l.w && col+len(text) <= s.inner() {
			l.to(col).put(roleDim, text)
		}
	}
	return l.full()
}

func ceil(t time.Time, d time.Duration) time.Time {
	if f := t.Truncate(d); !f.Equal(t) {
		return f.Add(d)
	}
	return t
}

// newestFirst gives the events in the order of the panel.
func (s *screen) newestFirst() []*incident.Event {
	out := make([]*incident.Event, 0, len(s.view.Events))
	for i := len(s.view.Events) - 1; i >= 0; i-- {
		out = append(out, &s.view.Events[i])
	}
	return out
}

func keysOf(events []*incident.Event) []eventKey {
	keys := make([]eventKey, len(events))
	for i, e := range events {
		keys[i] = keyOf(e)
	}
	return keys
}

func severitySign(v diagnose.Severity) (string, role) {
	switch v {
	case diagnose.Critical:
		return signBad, roleBad
	case diagnose.Warning:
		return signWarn, roleWarn
	}
	return notApplicable, roleDim
}

// eventLines draws the newest events, or those around the selected one, who did it in a column of its own.
func (s *screen) eventLines(height int) []string {
	list := s.newestFirst()
	if len(list) == 0 {
		return []string{s.innerLine(groundPlain).gap(1).put(roleDim, "no changes seen since "+s.clock(s.view.Started.Wall)).full()}
	}
	first, at := 0, -1
	if s.focus == panelTimeline {
		at = s.event.index(keysOf(list))
		first = window(len(list), height, at)
	}
	list = list[first:min(first+max(height, 0), len(list))]
	text, who := 0, 0
	name := whoText
	for _, e := range list {
		text = max(text, width(s.eventText(e)))
		who = max(who, width(name(e.Who)))
	}
	if fixed := 16 + 4; text+who+fixed > s.inner() { // what happened comes before who started whom
		name, who = shortWho, 0
		for _, e := range list {
			who = max(who, min(width(name(e.Who)), s.inner()/3))
		}
	}
	out := make([]string, 0, len(list))
	for i, e := range list {
		l := s.innerLine(groundPlain)
		if first+i == at {
			l.ground = groundSelect
		}
		s.putEvent(l, e, text, left(name(e.Who), who))
		out = append(out, l.full())
	}
	return out
}

func (s *screen) putEvent(l *line, e *incident.Event, text int, who string) {
	sign, as := eventSign(e)
	l.gap(1).put(roleDim, moment(e.Time.Wall, s.view.Now.Wall, s.loc)).gap(1).put(as, sign).gap(1)
	text = min(text, l.max-l.w-width(who)-4)
	l.put(roleText, left(s.eventText(e), text)).gap(3).put(roleWho, who)
}

func (s *screen) eventText(e *incident.Event) string {
	text := clean(e.Text)
	if e.Chain != (flannel.ChainID{}) && s.several() {
		text = backendShort[e.Chain.Backend] + " " + text
	}
	return text
}

// whoText names a program and the one that started it, or gives nothing where none is known.
func whoText(w *incident.Who) string {
	if w == nil {
		return ""
	}
	text := program(w.Comm, w.PID)
	if w.Origin != nil && len(w.Origin.Parents.Value) > 0 {
		p := w.Origin.Parents.Value[0]
		text += " ← " + program(p.Comm, p.PID)
	}
	return text
}

// shortWho names the program alone.
func shortWho(w *incident.Who) string {
	if w == nil {
		return ""
	}
	return program(w.Comm, w.PID)
}

func program(comm string, pid int) string {
	if pid == 0 {
		return clean(comm)
	}
	return fmt.Sprintf("%s[%d]", clean(comm), pid)
}

// selectedEvent is the event that has the keys, nil if there is none.
func (s *screen) selectedEvent() *incident.Event {
	list := s.newestFirst()
	if i := s.event.index(keysOf(list)); i >= 0 {
		return list[i]
	}
	return nil
}
