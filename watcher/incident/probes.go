package incident

import (
	"fmt"
	"slices"
	"time"

	"flanwatch/flannel"
)

// maxProbes bounds what is remembered of attempts to connect: those of about a minute.
const maxProbes = 600

// ProbeView is what attempts to connect from inside a pod have shown.
type ProbeView struct {
	Target, From string
	Attempts     int           // of all time
	Successes    int           // of all time
	Median       time.Duration // to connect, of the last successes; 0 if there were none
	Max          time.Duration // likewise
	Why          string        // why the attempts since Failing failed
	Failing      flannel.Time  // when the first failed attempt after the last success began, zero if there is none
	Recent       []ProbePoint  // the last attempts, in the order in which they ended

	newest flannel.Time // when the last successful attempt began
}

// ProbePoint is one attempt.
type ProbePoint struct {
	Began flannel.Time
	Took  time.Duration
	OK    bool
}

// ProbeEffect is how attempts to connect fared that were begun while an incident was open.
type ProbeEffect struct {
	Target   string        `json:"target"`
	From     string        `json:"from"`
	Attempts int           `json:"attempts"`
	Failed   int           `json:"failed"`
	Failing  time.Duration `json:"failing"` // from the first failed attempt to the first success after the last, or to the last
	first    flannel.Time  // when the first failed attempt began
	last     flannel.Time  // when the last one did
	back     flannel.Time  // when the first successful one after it did, zero if none has
}

// applyProbe folds an attempt, also into the incidents that were open when it began.
func (s *State) applyProbe(p *Probe, at flannel.Time) {
	v := &s.probe
	if v.Target != p.Target || v.From != p.From {
		*v = ProbeView{Target: p.Target, From: p.From}
	}
	for _, point := range p.points(at) {
		s.addProbe(p, point)
	}
}

// points are the attempts that an observation tells of. Several were made at a steady rate.
func (p *Probe) points(at flannel.Time) []ProbePoint {
	n := min(p.Count, maxProbes)
	if n <= 1 {
		return []ProbePoint{{Began: at.Add(-p.Took), Took: p.Took, OK: p.Why == ""}}
	}
	out := make([]ProbePoint, n)
	for i := range out {
		ago := p.First - (p.First-p.Last)/time.Duration(n-1)*time.Duration(i)
		out[i] = ProbePoint{Began: at.Add(-ago), Took: p.Took, OK: true}
	}
	out[n-1].Took = p.Max
	return out
}

func (s *State) addProbe(p *Probe, point ProbePoint) {
	v := &s.probe
	v.add(point, p.Why)
	if len(v.Recent) >= maxProbes {
		v.Recent = append(make([]ProbePoint, 0, maxProbes), v.Recent[maxProbes/4:]...) // views keep the old array
	}
	v.Recent = append(v.Recent, point)
	for i := max(0, len(s.incidents)-8); i < len(s.incidents); i++ {
		if inc := &s.incidents[i]; inc.feltBy(p, point, v.Recent) {
			s.reconsider(inc)
		}
	}
}

// add counts an attempt. Failures take longer to end than successes, so those that began before a success can come after it.
func (v *ProbeView) add(point ProbePoint, why string) {
	v.Attempts++
	switch after := v.newest.IsZero() || point.Began.Sub(v.newest) > 0; {
	case point.OK:
		v.Successes++
		if after {
			v.newest = point.Began
		}
		if !v.Failing.IsZero() && v.newest.Sub(v.Failing) > 0 {
			v.Failing, v.Why = flannel.Time{}, ""
		}
	case after && v.Failing.IsZero():
		v.Failing, v.Why = point.Began, why
	}
}

// feltBy adds an attempt to an incident that it tells something of: one that began while it was open, or the success that
// ends the failures.
func (i *Incident) feltBy(p *Probe, point ProbePoint, recent []ProbePoint) bool {
	within := point.Began.Sub(i.Start) >= 0 && (i.Open || point.Began.Sub(i.End) <= 0)
	if !within && (!point.OK || i.Probe == nil || !i.Probe.back.IsZero() || point.Began.Sub(i.Probe.last) <= 0) {
		return false
	}
	e := ProbeEffect{Target: p.Target, From: p.From}
	if i.Probe != nil {
		e = *i.Probe // views share the old one
	}
	if within {
		e.Attempts++
	}
	e.take(point, recent)
	i.Probe = &e
	return true
}

// take counts an attempt, the last of recent, which tell when attempts were successful again.
func (e *ProbeEffect) take(point ProbePoint, recent []ProbePoint) {
	if !point.OK {
		if e.Failed == 0 {
			e.first, e.last = point.Began, point.Began
		}
		e.Failed++
		e.first = earlier(e.first, point.Began)
		if point.Began.Sub(e.last) > 0 {
			e.last = point.Began
		}
	}
	if e.Failed == 0 {
		return
	}
	end := flannel.Time{}
	for _, p := range recent {
		if p.OK && p.Began.Sub(e.last) > 0 && (end.IsZero() || p.Began.Sub(end) < 0) {
			end = p.Began
		}
	}
	e.back = end
	if end.IsZero() {
		end = e.last
	}
	e.Failing = end.Sub(e.first)
}

func earlier(a, b flannel.Time) flannel.Time {
	if a.Sub(b) < 0 {
		return a
	}
	return b
}

// text says it in a sentence, "" where no attempt was begun in time.
func (e *ProbeEffect) text() string {
	switch {
	case e == nil:
		return ""
	case e.Failed == 0:
		return fmt.Sprintf("a pod could connect all the time, %d of %d attempts", e.Attempts, e.Attempts)
	}
	return fmt.Sprintf("pods could not connect for %s, %d of %d attempts", briefly(e.Failing), e.Failed, e.Attempts)
}

func briefly(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// probeView is nil while nothing has been tried.
func (s *State) probeView() *ProbeView {
	if s.probe.Attempts == 0 {
		return nil
	}
	v := s.probe
	v.Recent = v.Recent[:len(v.Recent):len(v.Recent)]
	var took []time.Duration
	for _, p := range v.Recent {
		if p.OK {
			took = append(took, p.Took)
		}
	}
	if len(took) > 0 {
		slices.Sort(took)
		v.Median, v.Max = took[len(took)/2], took[len(took)-1]
	}
	return &v
}
