package incident

import (
	"maps"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// Facts gives what is known now and what went before, as a verdict or a plan is made from. Nothing of it is shared with the
// state.
func (s *State) Facts(now flannel.Time) (diagnose.Facts, diagnose.History) {
	f := s.facts
	f.At = now
	f.Rules = maps.Clone(s.facts.Rules)
	for b, r := range f.Rules {
		r.Value = r.Value.Clone()
		f.Rules[b] = r
	}
	f.Node = cloneNode(&s.facts.Node)
	f.Procs.Value = cloneProcs(s.facts.Procs.Value)
	f.Around = s.facts.Around.Clone()
	f.Remains.Value = s.facts.Remains.Value.Clone()
	return f, s.history(now)
}
