package ui

import (
	"fmt"
	"math"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// bareSignal draws how many connections that began in the incident were bare. They outlive the repair: the kernel decides
// once for each connection.
func (s *screen) bareSignal(i *incident.Incident, w axisWindow) string {
	e, l := i.Flows, s.signal(w, "bare")
	if e == nil {
		return s.note(l.put(roleDim, unknown), w, roleDim, "not looked at")
	}
	if e.Since.IsZero() {
		return s.note(l.put(roleDim, unknown), w, roleDim, "beginnings were not heard")
	}
	values := make([]float64, w.columns)
	at := -1
	for c := range values {
		for at+1 < len(e.Curve) && s.columnOn(w, e.Curve[at+1].At) <= c {
			at++
		}
		values[c] = math.NaN()
		if at >= 0 && c <= s.columnOn(w, e.Curve[len(e.Curve)-1].At) {
			values[c] = float64(e.Curve[at].Bare)
		}
	}
	to := min(s.columnOn(w, s.view.Now), w.columns-1)
	if to >= 0 {
		l.put(roleGraph, sparkline(values[:to+1], s.columnOn(w, i.Start), s.ascii))
	}
	text := fmt.Sprintf("peak %s, %s left", grouped(e.Peak), grouped(e.Alive))
	if e.Peak == 0 {
		text = "none"
	}
	return s.note(l, w, roleText, text)
}

// bareFacts says what became of the connections that began while the rules were missing. What was counted, what is a lower
// bound and what nobody looked at look different.
func (s *screen) bareFacts(b *box, i *incident.Incident) {
	e := i.Flows
	if e == nil {
		s.fact(b, "bare", roleDim, unknown+" nobody looked at the connections")
		return
	}
	ago := span(s.ago(e.Looked)) + " ago"
	if e.Since.IsZero() {
		s.fact(b, "bare", roleDim, unknown+" beginnings of connections were not heard")
		s.fact(b, "others", roleText, fmt.Sprintf("%s bare in the table %s, begun at an unknown time", grouped(e.Others), ago))
		return
	}
	least := ""
	if e.Lost {
		least = "at least "
	}
	heard := ""
	if late := e.Since.Sub(i.Start); late > 0 {
		heard = ", heard from " + offset(late) + " on"
	}
	s.fact(b, "bare", roleText, least+grouped(e.Born)+" began in it"+heard)
	if e.Born > 0 {
		first := ""
		if !e.First.IsZero() {
			first = ", the first at " + offset(e.First.Sub(i.Start))
		}
		s.fact(b, "stuck", stuckRole(e.Alive), fmt.Sprintf("%s still bare %s%s", grouped(e.Alive), ago, first))
		s.fact(b, "answered", roleText, fmt.Sprintf("%s of these, %s not", grouped(e.Replied), grouped(e.Alive-min(e.Alive, e.Replied))))
	}
	if e.Others > 0 {
		s.fact(b, "others", roleText, fmt.Sprintf("%s bare, begun at an unknown time or in another incident", grouped(e.Others)))
	}
}

func stuckRole(n uint64) role {
	if n > 0 {
		return roleWarn
	}
	return roleText
}

// firstBare is the moment at which the first connection left bare, as one of the things that happened; false where unknown.
func firstBare(i *incident.Incident) (happening, bool) {
	if i.Flows == nil || i.Flows.First == (flannel.Time{}) {
		return happening{}, false
	}
	return happening{at: i.Flows.First, sign: signWarn, as: roleWarn, text: "first connection of a pod leaves bare", by: "conntrack"}, true
}
