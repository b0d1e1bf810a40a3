package incident

import (
	"maps"
	"slices"

	"flanwatch/flannel"
)

// Clone gives a state that goes on by itself from here: whatever either folds later, the other does not see. A player keeps
// some to go back to.
func (s *State) Clone() *State {
	c := *s
	c.facts.Rules = maps.Clone(s.facts.Rules)
	c.chains = make(map[flannel.ChainID]*chain, len(s.chains))
	for id, ch := range s.chains {
		c.chains[id] = ch.clone()
	}
	for i := range c.backends {
		c.cloneBackend(&c.backends[i])
	}
	c.holds = maps.Clone(s.holds)
	c.bodies = maps.Clone(s.bodies)
	c.bases = maps.Clone(s.bases)
	c.starts = slices.Clone(s.starts)
	c.stops = slices.Clone(s.stops)
	c.ended = slices.Clone(s.ended)
	c.table.readings = slices.Clone(s.table.readings)
	c.incidents = slices.Clone(s.incidents)
	c.events = slices.Clip(s.events)
	c.commits = slices.Clip(s.commits)
	return &c
}

// cloneBackend makes a backend of s its own. The facts hold the same ruleset, whose counters are overwritten.
func (s *State) cloneBackend(b *backend) {
	b.rules = b.rules.Clone()
	if r := s.facts.Rules[b.name]; len(r.Value.Chains) > 0 {
		r.Value = b.rules
		s.facts.Rules[b.name] = r
	}
	b.followed = slices.Clone(b.followed)
	for i, ch := range b.followed {
		if ch != nil {
			b.followed[i] = s.chains[ch.id]
		}
	}
}

func (c *chain) clone() *chain {
	d := *c
	d.meter.rules = slices.Clone(c.meter.rules)
	d.meter.sums = maps.Clone(c.meter.sums)
	if c.history.points != nil {
		// With the same room behind it: when that is used up, what is old is forgotten.
		d.history.points = append(make([]float32, 0, cap(c.history.points)), c.history.points...)
	}
	d.lane = slices.Clip(c.lane)
	return &d
}
