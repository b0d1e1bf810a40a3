package ui

import (
	"fmt"

	"flanwatch/watcher/incident"
)

// incidentsPage lists the incidents, newest first, over their totals by kind:
//
//	╭─ Incidents ──────────────────────────────────────────────────────── 1 open · 7 incidents ─╮
//	│     #  KIND     OBJECTS     START           LASTED  WHO                 RECOVERED BY       │
//	│▸ ✓  7  flushed  v4 POSTRTG  12:04:27.118     4.8 s  iptables[48213]     iptables-restor[9] │
//	╰────────────────────────────────────────────────────────────────────────────────────────────╯
//	╭─ Closed ones by kind ──────────────────────────────────────────────────────────────────────╮
//	│  KIND                 COUNT       MIN    MEDIAN       MAX                                   │
func (s *screen) incidentsPage(body int) []string {
	totals := s.totalsBox()
	below := 0
	if n := min(len(totals.lines), body-8); n >= 2 { // at least three incidents stay in sight
		below = n + 2
	}
	out := s.frame(s.incidentsBox(body-below-2), body-below-2, true, false)
	if below > 0 {
		out = append(out, s.frame(totals, below-2, false, false)...)
	}
	return out
}

// numbers identifies the incidents in the order of the list.
func (s *screen) numbers() []int {
	n := len(s.view.Incidents)
	out := make([]int, n)
	for i := range s.view.Incidents {
		out[n-1-i] = s.view.Incidents[i].Number
	}
	return out
}

// selectedIncident is the incident that has the keys, nil if there is none.
func (s *screen) selectedIncident() *incident.Incident {
	if i := s.incident.index(s.numbers()); i >= 0 {
		return &s.view.Incidents[len(s.view.Incidents)-1-i]
	}
	return nil
}

// incidentColumns are the widths of the columns that differ by what is in them.
type incidentColumns struct {
	kind, objects, lasted, who, recovered int  // recovered 0: not drawn
	full                                  bool // programs with those who started them
}

func (s *screen) incidentsBox(rows int) box {
	list := s.view.Incidents
	b := box{title: "Incidents", info: incidentCount(list), focused: true}
	if len(list) == 0 {
		b.lines = append(b.lines, s.innerLine(groundPlain).gap(1).put(roleDim, "no incident since "+s.clock(s.view.Started.Wall)).full())
		return b
	}
	at := s.incident.index(s.numbers())
	first := window(len(list), rows-1, at)
	last := min(first+max(rows-1, 0), len(list))
	var drawn []*incident.Incident
	for i := first; i < last; i++ {
		drawn = append(drawn, &list[len(list)-1-i])
	}
	c := s.incidentColumns(drawn)
	head := s.innerLine(groundPlain).gap(6).put(roleDim, "#  "+left("KIND", c.kind+2)+left("OBJECTS", c.objects+2)+
		left("START", 14)+right("LASTED", c.lasted)+"  "+left("WHO", c.who))
	if c.recovered > 0 {
		head.gap(2).put(roleDim, "RECOVERED BY")
	}
	b.lines = append(b.lines, head.full())
	for i, n := range drawn {
		b.lines = append(b.lines, s.incidentRow(n, c, first+i == at))
	}
	return b
}

func incidentCount(list []incident.Incident) string {
	open := 0
	for i := range list {
		open += on(list[i].Open, 1)
	}
	text := fmt.Sprintf("%d incidents", len(list))
	switch {
	case len(list) == 0:
		return "no incidents"
	case len(list) == 1:
		text = "1 incident"
	}
	if open > 0 {
		text = fmt.Sprintf("%d open · ", open) + text
	}
	return text
}

// incidentColumns shares out the width: what happened to what, and when, comes before who put it right.
func (s *screen) incidentColumns(list []*incident.Incident) incidentColumns {
	c := s.columnsFor(list, true)
	if c.fixed()+c.recovered+2 > s.inner() {
		c = s.columnsFor(list, false)
	}
	if c.fixed()+c.recovered+2 > s.inner() {
		c.recovered = 0
	}
	c.objects = max(c.objects-max(c.fixed()-s.inner(), 0), 0)
	return c
}

func (s *screen) columnsFor(list []*incident.Incident, full bool) incidentColumns {
	c := incidentColumns{objects: len("OBJECTS"), lasted: len("LASTED"), recovered: len("RECOVERED BY"), full: full}
	for _, i := range list {
		c.kind = max(c.kind, width(string(i.Kind)))
		c.objects = max(c.objects, width(s.objectsText(i)))
		c.lasted = max(c.lasted, width(s.lasted(i)))
		c.who = max(c.who, width(c.program(i.By)))
		c.recovered = max(c.recovered, width(s.recoveredCell(i, c)))
	}
	return c
}

// fixed is the width of all columns but the last.
func (c *incidentColumns) fixed() int {
	return 7 + 2 + c.kind + 2 + c.objects + 2 + 12 + 2 + c.lasted + 2 + c.who
}

func (c *incidentColumns) program(w *incident.Who) string {
	switch {
	case w == nil:
		return unknown
	case c.full:
		return whoText(w)
	}
	return clean(w.Comm)
}

func (s *screen) incidentRow(i *incident.Incident, c incidentColumns, selected bool) string {
	l := s.innerLine(groundPlain)
	if selected {
		l.ground = groundSelect
		l.put(roleFocus, "▸ ")
	} else {
		l.gap(2)
	}
	sign, as := incidentSign(i)
	l.put(as, sign).put(roleStrong, right(fmt.Sprint(i.Number), 4)).gap(2)
	l.put(roleText, left(string(i.Kind), c.kind+2)+left(s.objectsText(i), c.objects)).gap(2)
	l.put(roleDim, moment(i.Start.Wall, s.view.Now.Wall, s.loc)).put(roleText, right(s.lasted(i), c.lasted+2)).gap(2)
	l.put(roleWho, left(c.program(i.By), c.who))
	if c.recovered > 0 {
		l.gap(2).put(roleWho, cut(s.recoveredCell(i, c), c.recovered))
	}
	return l.full()
}

// incidentSign tells an open incident by how bad it is, and a closed one by whether everything came back.
func incidentSign(i *incident.Incident) (string, role) {
	switch {
	case i.Open:
		return severitySign(i.Severity)
	case i.Complete:
		return signDone, roleGood
	}
	return signNone, roleWarn
}

// lasted is how long an incident has lasted, with a sign where the true figure is another: it began before watching did,
// or announcements were lost.
func (s *screen) lasted(i *incident.Incident) string {
	d := i.Duration(s.view.Now)
	if i.Open {
		d += s.extra()
	}
	switch {
	case i.Before:
		return "≥ " + span(d)
	case i.Uncertain:
		return "~ " + span(d)
	}
	return span(d)
}

func (s *screen) recoveredCell(i *incident.Incident, c incidentColumns) string {
	switch {
	case i.Open:
		return "still open"
	case !i.Complete && i.RecoveredBy == nil:
		return "not back"
	}
	return c.program(i.RecoveredBy)
}

// objectsText names the first chain concerned as the lanes of the timeline do, and counts the others.
func (s *screen) objectsText(i *incident.Incident) string {
	list := i.Objects()
	text := s.laneName(list[0])
	if len(list) > 1 {
		text += fmt.Sprintf(" +%d", len(list)-1)
	}
	return text
}

func (s *screen) totalsBox() box {
	b := box{title: "Closed ones by kind"}
	for n, t := range incident.Totals(s.view.Incidents) {
		if n == 0 {
			b.lines = append(b.lines, s.innerLine(groundPlain).gap(2).put(roleDim,
				left("KIND", 20)+right("COUNT", 6)+right("MIN", 14)+right("MEDIAN", 14)+right("MAX", 14)).full())
		}
		b.lines = append(b.lines, s.innerLine(groundPlain).gap(2).put(roleText, left(string(t.Kind), 20)).
			put(roleStrong, right(fmt.Sprint(t.Count), 6)).
			put(roleText, right(span(t.Min), 14)+right(span(t.Median), 14)+right(span(t.Max), 14)).full())
	}
	return b
}
