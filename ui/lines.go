package ui

import (
	"fmt"
	"strings"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// Lines writes views as lines of text, for where there is no terminal: each event once, as it comes, and one line on the
// state of things per view.
type Lines struct {
	Location *time.Location // UTC by default
	last     eventKey
	started  bool
}

// Next gives the lines of a view, without line feeds.
func (l *Lines) Next(v *incident.View) []string {
	loc := l.Location
	if loc == nil {
		loc = time.UTC
	}
	s := screen{view: v, loc: loc, mode: ModeLive, width: 80}
	var out []string
	for _, e := range l.fresh(v.Events) {
		out = append(out, eventLine(e, loc))
	}
	h := s.headline()
	text := h.word + " " + h.text
	if h.who != "" {
		text += ", " + h.by + h.who
	}
	if h.more > 0 {
		text += fmt.Sprintf(", +%d more", h.more)
	}
	for i := range v.Chains {
		text += " | " + chainStatus(&s, &v.Chains[i])
	}
	return append(out, v.Now.Wall.In(loc).Format(lineTime)+"  "+text)
}

// lineTime is long enough to stand alone in a log.
const lineTime = "2006-01-02T15:04:05.000Z07:00"

// fresh gives the events that have not been written.
func (l *Lines) fresh(events []incident.Event) []*incident.Event {
	first := 0
	for i := len(events) - 1; i >= 0 && l.started; i-- {
		if keyOf(&events[i]) == l.last {
			first = i + 1
			break
		}
	}
	var out []*incident.Event
	for i := first; i < len(events); i++ {
		out = append(out, &events[i])
	}
	if n := len(events); n > 0 {
		l.last, l.started = keyOf(&events[n-1]), true
	}
	return out
}

func eventLine(e *incident.Event, loc *time.Location) string {
	line := e.Time.Wall.In(loc).Format(lineTime) + "  " + string(e.Severity) + ": "
	if e.Chain != (flannel.ChainID{}) {
		line += e.Chain.Backend.String() + " "
	}
	line += clean(e.Text)
	if who := whoText(e.Who); who != "" {
		line += ", by " + who
	}
	return line
}

func chainStatus(s *screen, c *incident.ChainView) string {
	rate := "no counters"
	switch {
	case c.Counted && c.Rate.Known:
		rate = strings.TrimSpace(scaled(c.Rate.Packets)) + " " + unitOf(c.ID) + "/s"
	case c.Counted:
		rate = "rate unknown"
	}
	return fmt.Sprintf("%s %s %s, %s", s.chainName(c.ID), stateWord(c.State), foundOf(c), rate)
}
