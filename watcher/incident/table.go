package incident

import (
	"slices"
	"time"

	"flanwatch/conntrack"
	"flanwatch/flannel"
)

// symptomWindow is how far back the counters of connection tracking matter for what is wrong now.
const symptomWindow = time.Minute

// maxReadings bounds the readings within symptomWindow: as many as there are at the shortest interval.
const maxReadings = 601

// table is what is remembered of connection tracking.
type table struct {
	readings []flannel.Reading[conntrack.Health] // good ones of the last minute, oldest first
	last     flannel.Reading[conntrack.Health]
	flows    flannel.Reading[conntrack.Survey]
	symptoms []conntrack.Symptom
}

// TableView is connection tracking as of now.
type TableView struct {
	Health   flannel.Reading[conntrack.Health]
	Trend    conntrack.Trend // between the last two readings
	Window   conntrack.Trend // over the last minute, or since the first reading
	Symptoms []conntrack.Symptom
	Flows    flannel.Reading[conntrack.Survey] // the last look at every connection, with its time

	Masquerade map[flannel.Family]bool // families in which a pod's connection to the outside should be translated
}

// applyTable folds one reading of the counters.
func (s *State) applyTable(r flannel.Reading[conntrack.Health], at flannel.Time) {
	t := &s.table
	was := t.last
	t.last = r
	s.facts.Conntrack = r
	if r.State == flannel.Known {
		t.keep(r)
	} else {
		t.readings = t.readings[:0] // no speed spans the hole
	}
	symptoms := conntrack.Symptoms(r.Value, t.window())
	news := was.State != r.State || was.Why != r.Why || !slices.Equal(symptoms, t.symptoms)
	t.symptoms = symptoms
	if news || len(symptoms) > 0 && at.Sub(s.judged) >= reviewEvery {
		s.judge(at)
	}
}

// keep appends a reading, and forgets those that are too old to matter.
func (t *table) keep(r flannel.Reading[conntrack.Health]) {
	old := 0
	for old < len(t.readings) && (r.At.Sub(t.readings[old].At) > symptomWindow || len(t.readings)-old >= maxReadings) {
		old++
	}
	t.readings = append(slices.Delete(t.readings, 0, old), r)
}

// window is what the counters did in the last minute.
func (t *table) window() conntrack.Trend { return t.since(len(t.readings)) }

// since compares the last reading with the one so many before it, or the first.
func (t *table) since(back int) conntrack.Trend {
	n := len(t.readings)
	if n < 2 {
		return conntrack.Trend{}
	}
	return conntrack.Between(t.readings[max(0, n-1-back)], t.readings[n-1])
}

// applyFlows folds one look at every connection.
func (s *State) applyFlows(r *flannel.Reading[conntrack.Survey], at flannel.Time) {
	s.table.flows = *r
	s.table.flows.Value = r.Value.Clone()
	s.facts.Flows = s.table.flows
	s.effectOnFlows(&s.table.flows, at)
	s.judge(at)
}

func (t *table) view() TableView {
	return TableView{
		Health: t.last, Trend: t.since(1), Window: t.window(), Symptoms: t.symptoms, Flows: t.flows,
	}
}
