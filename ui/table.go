package ui

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"flanwatch/conntrack"
	"flanwatch/flannel"
)

// besideWidth is the width from which the table of connections stands beside the rules.
const besideWidth = 100

// tableWidth is its width then.
func (s *screen) tableWidth() int { return min(max(38, s.width/4), 56) }

// tablePanel draws what connection tracking holds and suffers from: the capacity, and what it does to pods.
//
//	╭─ ⁴Conntrack ──────────── c list ─╮
//	│ entries 41,208 of 262,144   16 % │
//	│ ▲ bare 871 of 3,114 pod flows    │
//	│ insert_failed 0/s     drop 0/s   │
//	│ early_drop    0/s    clash 2/s   │
func (s *screen) tablePanel(l layout) box {
	b := box{number: "⁴", title: "Conntrack", info: "c list", focused: s.focus == panelTable}
	for _, ps := range s.tableFacts(s.inner() - 2) {
		b.lines = append(b.lines, s.innerLine(groundPlain).gap(1).pieces(ps...).full())
	}
	return b
}

// tableStrip is the panel as one line, for where there is no room for more. It is the border of the panel below.
func (s *screen) tableStrip(first bool) string {
	lead, end := "├─ ", "─┤"
	if first {
		lead, end = "╭─ ", "─╮"
	}
	title := roleStrong
	if s.focus == panelTable {
		title = roleFocus
	}
	l := s.line().put(roleFrame, lead).put(roleKey, "⁴").put(title, "Conntrack").gap(1)
	for i, ps := range s.tableFacts(s.width) {
		ps = tight(ps)
		if i > 0 {
			ps = append([]piece{{roleDim, "· "}}, ps...)
		}
		if l.w+columns(ps)+width(end)+2 > s.width {
			continue
		}
		l.pieces(ps...)
	}
	return l.put(roleFrame, strings.Repeat("─", max(s.width-l.w-width(end), 0))+end).full()
}

// tight closes the gaps that let columns line up below each other.
func tight(ps []piece) []piece {
	var out []piece
	for _, p := range ps {
		if text := strings.Join(strings.Fields(p.text), " "); text != "" {
			out = append(out, piece{p.role, text + " "})
		}
	}
	return out
}

// tableFacts is what the panel says, most telling first, in lines of so many columns.
func (s *screen) tableFacts(w int) [][]piece {
	t := &s.view.Table
	h, known := t.Health.Get()
	switch {
	case t.Health.State == flannel.Unread:
		return [][]piece{{{roleDim, "not read yet"}}}
	case t.Health.State == flannel.Absent:
		return [][]piece{{{roleDim, clean(t.Health.Why)}}}
	case !known:
		out := [][]piece{{{roleBad, "cannot read"}}}
		for _, text := range wrap(clean(t.Health.Why), w) {
			out = append(out, []piece{{roleDim, text}})
		}
		return out
	}
	out := [][]piece{s.fillLine(h, w)}
	if text := inertText(&h); text != "" {
		out = append(out, []piece{{roleWarn, text}})
	}
	for _, y := range t.Symptoms {
		if y != conntrack.Clash { // harmless, and counted below
			out = append(out, []piece{{roleWarn, signWarn + " " + symptomWords[y]}})
		}
	}
	out = append(out, s.flowFacts(w)...)
	pair := func(a string, x conntrack.Count, b string, y conntrack.Count) []piece {
		return []piece{{roleDim, left(a, 13)}, perSecond(t.Trend, x), {roleDim, "  " + left(b, 5)}, perSecond(t.Trend, y)}
	}
	out = append(out, pair("insert_failed", t.Trend.InsertFailed, "drop", t.Trend.Drop),
		pair("early_drop", t.Trend.EarlyDrop, "clash", t.Trend.ClashResolve))
	if d, ok := t.Window.FullIn(h); ok && d < 24*time.Hour {
		out = append(out, []piece{{roleDim, "full in "}, {roleWarn, span(d)}, {roleDim, " as it grows now"}})
	}
	return append(out, []piece{{roleDim, "read from " + clean(h.Source)}})
}

// fillLine is the capacity.
func (s *screen) fillLine(h conntrack.Health, w int) []piece {
	fill, ok := h.Fill()
	share, as := "", roleText
	if ok {
		share = fmt.Sprintf("%.0f %%", 100*fill)
		if fill >= conntrack.NearlyFull {
			as = roleBad
		}
	}
	text := figureText(h.Count) + " of " + figureText(h.Max)
	return []piece{{roleDim, "entries "}, {as, left(text, min(w-8-6, 24)) + right(share, 6)}}
}

// flowFacts is what of the connections was not as it should be when somebody looked last, and how long ago that was.
func (s *screen) flowFacts(w int) [][]piece {
	r := &s.view.Table.Flows
	v, known := r.Get()
	switch {
	case r.State == flannel.Unreadable:
		return [][]piece{{{roleDim, "connections "}, {roleBad, cut("cannot read: "+clean(r.Why), w-12)}}}
	case !known:
		return [][]piece{{{roleDim, "connections not looked at: "}, {roleKey, "c"}, {roleDim, " looks"}}}
	}
	var parts []string
	for _, k := range conntrack.Kinds {
		if n := v.Kinds[k].Flows; n > 0 {
			parts = append(parts, string(k)+" "+grouped(n))
		}
	}
	age := span(s.ago(r.At)) + " ago"
	if len(parts) == 0 {
		return [][]piece{{{roleGood, "none wrong of " + grouped(v.Pods)}, {roleDim, ", " + age}}}
	}
	out := [][]piece{{{roleWarn, signWarn + " " + parts[0]}, {roleDim, cut(" of "+grouped(v.Pods)+", "+age, w-width(parts[0])-2)}}}
	if len(parts) > 1 {
		out = append(out, []piece{{roleWarn, "  " + strings.Join(parts[1:], " · ")}})
	}
	return out
}

// symptomWords are the symptoms in a few words; the finding says more.
var symptomWords = map[conntrack.Symptom]string{
	conntrack.Full: "full: new ones are dropped", conntrack.Evicting: "evicts to make room",
	conntrack.PortRace: "SNAT port race", conntrack.Clash: "clashes, harmless",
}

// inertText says so where no rule makes the kernel track connections.
func inertText(h *conntrack.Health) string {
	if h.Inert() {
		return "inert: no rule tracks them"
	}
	return ""
}

// perSecond is a speed in seven columns.
func perSecond(t conntrack.Trend, c conntrack.Count) piece {
	v, ok := t.PerSecond(c)
	if !ok {
		return piece{roleDim, right(unknown, 7)}
	}
	as := roleText
	if v == 0 {
		as = roleDim
	}
	return piece{as, right(strings.TrimSpace(scaled(v))+"/s", 7)}
}

func figureText(c conntrack.Count) string {
	if !c.Known {
		return unknown
	}
	return grouped(c.N)
}

// grouped writes a number in groups of three digits.
func grouped(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
