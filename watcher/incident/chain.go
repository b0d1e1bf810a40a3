package incident

import (
	"slices"

	"flanwatch/flannel"
)

// chain is what is remembered of one chain while watching.
type chain struct {
	meter
	id     flannel.ChainID
	seen   bool // a good reading has told of it
	shape  shape
	listed bool // the last verdict speaks of it
	diff   flannel.ChainDiff
	since  flannel.Time // since when diff.State holds
	bare   flannel.Time // since when it has been present or not, empty or not; zero if that was before we watched
	lane   []Span

	changed flannel.Time // when its rules or jumps were last seen to change, zero if they were not
	changer *Who         // who did that, nil if unknown

	hindsight bool // an announcement told of a time without rules that is over, as a read has shown already; its end is to come

	wasGood bool // it has been good while we watched, and that was its last known state
	spell   int  // number of the incident that it is part of now, 0 if none
}

// shape is what is compared between two readings to tell events.
type shape struct {
	present bool
	rules   int
	hooks   int
	bodies  []uint64
}

// track finds the chain, or begins to follow it; nil if there are too many already.
func (s *State) track(id flannel.ChainID) *chain {
	if c := s.chains[id]; c != nil {
		return c
	}
	if len(s.chains) >= maxChains {
		return nil
	}
	c := &chain{id: id}
	c.legacy = id.Backend == flannel.IptablesLegacy
	c.counted = id.Backend != flannel.Nftables
	s.chains[id] = c
	return c
}

// setState takes the verdict on the chain and continues its lane.
func (c *chain) setState(d flannel.ChainDiff, at flannel.Time) {
	before := c.diff.State
	c.diff = d
	if before == d.State {
		return
	}
	c.since = at
	if len(c.lane) >= maxSpans {
		c.lane = append(make([]Span, 0, maxSpans), c.lane[maxSpans/4:]...) // views keep the old array
	}
	c.lane = append(c.lane, Span{From: at, State: d.State})
}

// own tells whether the chain is one that Flannel makes for itself.
func own(id flannel.ChainID) bool {
	if id.Backend == flannel.Nftables {
		return true
	}
	return id.Name == "FLANNEL-POSTRTG" || id.Name == "FLANNEL-FWD"
}

// mine tells for each entry whether it is Flannel's: all in a chain of its own, and in a base chain those that the verdict
// names.
func (c *chain) mine() func(int) bool {
	if own(c.id) {
		return func(int) bool { return true }
	}
	named := map[int]bool{}
	for _, r := range c.diff.Rules {
		for copies := range max(1, r.Times) {
			if r.Found > 0 {
				named[r.Found-1+copies] = true
			}
		}
	}
	return func(i int) bool { return named[i] }
}

// shapeOf gives the shape of a chain in a ruleset.
func (c *chain) shapeOf(rs *flannel.Ruleset) shape {
	ch := rs.Chain(c.id)
	if ch == nil || !ch.Present {
		return shape{hooks: hooks(rs, c.id)}
	}
	sh := shape{present: true, hooks: hooks(rs, c.id)}
	mine := c.mine()
	for i := range ch.Entries {
		if mine(i) {
			sh.rules++
			sh.bodies = append(sh.bodies, ch.Entries[i].Body)
		}
	}
	return sh
}

// hooks counts the jumps that lead from its base chain into an iptables chain, and whether the kernel calls a native one.
func hooks(rs *flannel.Ruleset, id flannel.ChainID) int {
	if id.Backend == flannel.Nftables {
		if c := rs.Chain(id); c != nil && c.Base != nil {
			return 1
		}
		return 0
	}
	c, n := rs.Chain(baseOf(id)), 0
	if c == nil || id == baseOf(id) {
		return 0
	}
	for i := range c.Entries {
		if t := c.Entries[i].Rule.Target; t.Kind == flannel.TargetJump && t.Chain == id.Name {
			n++
		}
	}
	return n
}

// emptied is the shape without its rules.
func (a shape) emptied(present bool) shape { return shape{present: present, hooks: a.hooks} }

func (a shape) equal(b shape) bool {
	return a.present == b.present && a.rules == b.rules && a.hooks == b.hooks && slices.Equal(a.bodies, b.bodies)
}
