package incident

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"flanwatch/conntrack"
	"flanwatch/flannel"
)

const (
	// birthSlack is how far the receipt of a birth can lie from that of the commit that let it happen: both take their time.
	birthSlack = 100 * time.Millisecond
	// followUp is how long after an incident the connections that it left bare are still followed.
	followUp = 30 * time.Minute
	// maxCurve bounds the points of a curve; beyond it every other one is left out.
	maxCurve = 480
)

// FlowsEffect is what an incident did to connections of pods to the outside, as far as that was looked at.
type FlowsEffect struct {
	// Since is when announcements of new connections began to be heard. Before that none is counted; zero: never.
	Since flannel.Time `json:"since,omitzero"`
	Lost  bool         `json:"lost,omitempty"` // some announcements were missed, so that Born is too low

	Born    uint64       `json:"born"`           // bare connections that began in the incident
	First   flannel.Time `json:"first,omitzero"` // when the first of them did
	Alive   uint64       `json:"alive"`          // of these, still bare when last looked at
	Replied uint64       `json:"replied"`        // of those alive, answered
	Others  uint64       `json:"others"`         // bare connections beside them whose birth is not known
	Looked  flannel.Time `json:"looked"`         // when last looked at
	Peak    uint64       `json:"peak"`           // the most of the curve
	Curve   []FlowPoint  `json:"curve"`          // oldest first
}

// FlowPoint says how many connections that began in the incident were bare at a moment. Between two looks at the table it is
// what was left at the first, with those that began since.
type FlowPoint struct {
	At   flannel.Time `json:"at"`
	Bare uint64       `json:"bare"`
}

// BornIn gives the number of the incident in which a bare connection began, 0 if it was in none that is known.
func BornIn(list []Incident, born flannel.Time) int {
	if i := ownerOf(list, born, born); i >= 0 && !born.IsZero() {
		return list[i].Number
	}
	return 0
}

// ownerOf finds the incident in which connections began between two moments, -1 if there is none: the last one in which a
// chain that masquerades was not as it should be.
func ownerOf(list []Incident, from, to flannel.Time) int {
	for i := len(list) - 1; i >= 0; i-- {
		inc := &list[i]
		begun := to.Sub(inc.Start) >= -birthSlack
		if begun && (inc.Open || from.Sub(inc.End) <= birthSlack) && inc.masquerading() {
			return i
		}
	}
	return -1
}

// masquerading tells whether a chain of the incident is one that masquerades.
func (i *Incident) masquerading() bool {
	return slices.ContainsFunc(i.Spells, func(sp Spell) bool {
		return sp.Chain.Table == flannel.TableNat || sp.Chain.Name == flannel.NativeMasq
	})
}

// recent are the incidents that a look at the connections can still tell something of.
func (s *State) recent() []Incident { return s.incidents[max(0, len(s.incidents)-16):] }

// effectOnFlows folds a look at the connections into the incidents in which they began.
func (s *State) effectOnFlows(r *flannel.Reading[conntrack.Survey], at flannel.Time) {
	v, known := r.Get()
	if !known {
		return
	}
	list := s.recent()
	shares := make([]FlowsEffect, len(list))
	points := make([][]FlowPoint, len(list))
	others := v.Kinds[conntrack.Bare].Flows
	for _, c := range v.Births.Cohorts {
		others -= min(others, c.Alive)
		i := ownerOf(list, c.From, c.To)
		if i < 0 {
			continue
		}
		share := &shares[i]
		if share.Born == 0 {
			share.First = c.From
		}
		share.Born, share.Alive, share.Replied = share.Born+c.Born, share.Alive+c.Alive, share.Replied+c.Replied
		points[i] = append(points[i], FlowPoint{c.To, c.Born})
	}
	for i := range list {
		if inc := &list[i]; inc.followed(at) {
			shares[i].Others, shares[i].Looked, shares[i].Since, shares[i].Lost = others, at, v.Births.Since, v.Births.Lost > 0
			inc.take(shares[i], points[i])
			inc.Severity, inc.Effects = effectsOf(inc) // not its kind: what told that may be forgotten by now
			s.incidentsChanged = true
		}
	}
}

// followed tells whether a look at the connections at a moment tells something of an incident: births of an earlier session
// are no longer known.
func (i *Incident) followed(at flannel.Time) bool {
	return i.masquerading() && (i.Open || i.End.Session == at.Session && at.Sub(i.End) <= followUp)
}

// take replaces what was known by what a look tells. Views share the old value.
func (i *Incident) take(e FlowsEffect, born []FlowPoint) {
	e.Curve = append(e.Curve, FlowPoint{At: i.Start})
	if was := i.Flows; was != nil {
		e.Curve = slices.Clone(was.Curve)
		e.Peak, e.Lost = was.Peak, e.Lost || was.Lost
		if e.Since.IsZero() || !was.Since.IsZero() {
			e.Since = was.Since
		}
	}
	bare := e.Curve[len(e.Curve)-1].Bare
	for _, p := range born {
		if last := e.Curve[len(e.Curve)-1].At; p.At.Sub(last) <= 0 {
			continue // counted in an earlier look
		}
		bare += p.Bare
		e.Curve = append(e.Curve, FlowPoint{p.At, bare})
		e.Peak = max(e.Peak, bare)
	}
	e.Peak = max(e.Peak, e.Alive)
	e.Curve = append(e.Curve, FlowPoint{e.Looked, e.Alive})
	if len(e.Curve) > maxCurve {
		e.Curve = thinned(e.Curve)
	}
	i.Flows = &e
}

// thinned leaves out every other point but the last.
func thinned(list []FlowPoint) []FlowPoint {
	var out []FlowPoint
	for i, p := range list {
		if i%2 == 0 || i == len(list)-1 {
			out = append(out, p)
		}
	}
	return out
}

// text says it in a sentence, "" where nothing is known or nothing happened.
func (e *FlowsEffect) text() string {
	if e == nil || e.Born == 0 {
		return ""
	}
	least := ""
	if e.Lost {
		least = "at least "
	}
	return fmt.Sprintf("%s%s of pods to the outside began without source NAT; %d of them were still so when last looked at, %d answered",
		least, connections(e.Born), e.Alive, e.Replied)
}

func connections(n uint64) string {
	if n == 1 {
		return "1 connection"
	}
	return fmt.Sprintf("%d connections", n)
}

// FlowsWanted says how closely connections are to be looked at.
type FlowsWanted struct {
	Listen     bool                    // births are to be heard, which costs the data path some 3 µs for each new connection
	Often      bool                    // somebody reads the list
	Masquerade map[flannel.Family]bool // families in which pods are meant to leave with the node's address
}

// Same tells whether two wishes are for the same, nil being one for nothing.
func (w *FlowsWanted) Same(x *FlowsWanted) bool {
	if w == nil || x == nil {
		return w == x
	}
	return w.Listen == x.Listen && w.Often == x.Often && maps.Equal(w.Masquerade, x.Masquerade)
}

// WantsFlows says how closely connections are to be looked at, nil if not at all. While somebody reads the list or an
// incident is open, births are heard; after an incident, what it left bare is followed until nothing is.
func (s *State) WantsFlows(now flannel.Time, read bool) *FlowsWanted {
	w := &FlowsWanted{Masquerade: s.masquerade, Listen: read, Often: read}
	follow := false
	for i := range s.recent() {
		inc := &s.recent()[i]
		w.Listen = w.Listen || inc.Open
		f := inc.Flows
		follow = follow || !inc.Open && inc.followed(now) && (f == nil || f.Looked.Sub(inc.End) < 0 || f.Alive+f.Others > 0)
	}
	if !w.Listen && !follow {
		return nil
	}
	return w
}

// rememberMasquerade keeps in mind in which families pods are meant to be masqueraded: while the rules are missing that may
// be all that tells it.
func (s *State) rememberMasquerade() {
	due := s.verdict.Masquerade
	if slices.ContainsFunc(s.recent(), func(i Incident) bool { return i.Open && i.masquerading() }) {
		for f, was := range s.masquerade {
			if was && !due[f] {
				due = map[flannel.Family]bool{flannel.IPv4: due[flannel.IPv4], flannel.IPv6: due[flannel.IPv6]}
				due[f] = true
			}
		}
	}
	s.masquerade = due
}
