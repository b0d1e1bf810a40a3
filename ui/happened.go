package ui

import (
	"fmt"
	"slices"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

// happening is one line of what happened in an incident.
type happening struct {
	at         flannel.Time
	sign       string
	as         role
	text       string
	who        *incident.Who
	by         string // who it was where that is no program: flanwatch itself
	generation uint32
}

// Events belong to an incident from a little before it (the first of several chains) until a little after it.
const (
	eventsBefore = time.Second
	eventsAfter  = 2 * time.Second
)

// happenings are the facts about an incident in order of time: the events of its chains, or its spells where events of
// so long ago are no longer kept, and the read that saw the rules back in place.
func (s *screen) happenings(i *incident.Incident) []happening {
	out := s.eventsOf(i)
	if len(out) == 0 {
		out = s.spellsAsHappenings(i)
	}
	if !i.Verified.IsZero() {
		out = append(out, happening{at: i.Verified, sign: signDone, as: roleGood, text: "a read showed the rules back in place", by: "flanwatch"})
	}
	if h, ok := firstBare(i); ok {
		out = append(out, h)
	}
	slices.SortStableFunc(out, func(a, b happening) int { return int(a.at.Sub(b.at)) })
	return out
}

func (s *screen) eventsOf(i *incident.Incident) []happening {
	var out []happening
	objects := i.Objects()
	for n := range s.view.Events {
		e := &s.view.Events[n]
		if e.Time.Sub(i.Start) < -eventsBefore || !i.Open && e.Time.Sub(i.End) > eventsAfter || !concerns(e, objects) {
			continue
		}
		h := happening{at: e.Time, text: s.eventText(e), who: e.Who, generation: e.Generation}
		h.sign, h.as = eventSign(e)
		out = append(out, h)
	}
	return out
}

func (s *screen) spellsAsHappenings(i *incident.Incident) []happening {
	var out []happening
	for n, sp := range i.Spells {
		h := happening{at: sp.From, text: s.chainName(sp.Chain) + " " + string(sp.State)}
		h.sign, h.as = severitySign(i.Severity)
		if sp.Lost > 0 {
			h.text += fmt.Sprintf(", −%d rules", sp.Lost)
		}
		if n == 0 {
			h.who, h.generation = i.By, i.Generation
		}
		out = append(out, h)
		if !sp.Open && i.Complete {
			h = happening{at: sp.To, sign: signDone, as: roleGood, text: s.chainName(sp.Chain) + " as wanted again"}
			if sp.To == i.End {
				h.who = i.RecoveredBy
			}
			out = append(out, h)
		}
	}
	return out
}

// name says who it was, shortly where there is little room.
func (h *happening) name(short bool) string {
	switch {
	case h.by != "":
		return h.by
	case short:
		return shortWho(h.who)
	}
	return whoText(h.who)
}

// happenedBox lists what happened, with the distance from the first bad moment; the cursor is kept in sight.
func (s *screen) happenedBox(i *incident.Incident, rows int) box {
	list := s.happenings(i)
	b := box{title: "What happened", info: events(len(list)), focused: true}
	head := s.innerLine(groundPlain).gap(4).put(roleDim, left("TIME", 12)+right("FROM START", 15)+"  WHAT")
	at := min(s.cursor, len(list)-1)
	first := window(len(list), rows-1, at)
	drawn := list[first:min(first+max(rows-1, 0), len(list))]
	text, who, short := s.happenedColumns(drawn)
	b.lines = append(b.lines, head.to(happenedFixed+text+2).put(roleDim, cut("WHO", who)).full())
	for n := range drawn {
		h := &drawn[n]
		l := s.innerLine(groundPlain)
		if first+n == at {
			l.ground = groundSelect
			l.put(roleFocus, "▸ ")
		} else {
			l.gap(2)
		}
		from := ""
		if d := h.at.Sub(i.Start); d != 0 {
			from = offset(d)
		}
		l.put(h.as, h.sign).gap(1).put(roleDim, moment(h.at.Wall, s.view.Now.Wall, s.loc)).put(roleDim, right(from, 15)).gap(2)
		l.put(roleText, left(h.text, text)).gap(2).put(roleWho, cut(h.name(short), who))
		b.lines = append(b.lines, l.full())
	}
	return b
}

// happenedFixed is what stands before the text.
const happenedFixed = 4 + 12 + 15 + 2

// happenedColumns shares out the width: what happened comes before who started whom.
func (s *screen) happenedColumns(list []happening) (text, who int, short bool) {
	room := s.inner() - happenedFixed - 3
	for n := range list {
		text = max(text, width(list[n].text))
		who = max(who, width(list[n].name(false)))
	}
	if text+who > room {
		short, who = true, 0
		for n := range list {
			who = max(who, min(width(list[n].name(true)), room/3))
		}
	}
	return max(min(text, room-who), 0), who, short
}

// eventSign tells what broke something from what mended it.
func eventSign(e *incident.Event) (string, role) {
	switch e.Kind {
	case incident.EventAction:
		if e.Severity == diagnose.Info {
			return signNone, roleKey
		}
	case incident.EventRefilled, incident.EventHookBack, incident.EventReadBack:
		return signDone, roleGood
	}
	return severitySign(e.Severity)
}
