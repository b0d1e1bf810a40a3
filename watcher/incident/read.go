package incident

import (
	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// backend is what is remembered of one backend: the last ruleset that was read, ours to keep, and whose chains are
// followed.
type backend struct {
	name     flannel.Backend
	state    flannel.ReadState
	why      string
	rules    flannel.Ruleset
	followed []*chain // beside rules.Chains, nil for a chain that is not followed
	read     flannel.Time
	every    int64 // nanoseconds between the last two good reads
}

func (s *State) backend(name flannel.Backend) *backend {
	for i := range s.backends {
		if s.backends[i].name == name {
			return &s.backends[i]
		}
	}
	return nil
}

// applyRules folds one read of a backend.
func (s *State) applyRules(r *RulesRead, at flannel.Time) {
	b := s.backend(r.Backend)
	if b == nil {
		return
	}
	rs := &r.Ruleset.Value
	switch r.Ruleset.State {
	case flannel.Known:
	case flannel.Absent:
		rs = &flannel.Ruleset{Backend: r.Backend} // verified to hold nothing
	default:
		s.readFailed(b, &r.Ruleset, at)
		return
	}
	same := b.state == r.Ruleset.State && b.sameShape(rs)
	if same && s.count(b, rs, at) {
		return
	}
	s.readNews(b, rs, r.Ruleset, at)
}

// sameShape tells whether nothing but counters differs from what is remembered.
func (b *backend) sameShape(rs *flannel.Ruleset) bool {
	if len(rs.Chains) != len(b.rules.Chains) || rs.Revision != b.rules.Revision {
		return false
	}
	for i := range rs.Chains {
		was, is := &b.rules.Chains[i], &rs.Chains[i]
		if was.ID != is.ID || was.Present != is.Present || len(was.Entries) != len(is.Entries) {
			return false
		}
		for j := range is.Entries {
			if was.Entries[j].Handle != is.Entries[j].Handle || was.Entries[j].Body != is.Entries[j].Body {
				return false
			}
		}
	}
	return true
}

// count takes the counters of a ruleset that is otherwise as before. It does not allocate.
func (s *State) count(b *backend, rs *flannel.Ruleset, at flannel.Time) bool {
	if len(b.followed) != len(rs.Chains) {
		return false
	}
	b.noteRead(at)
	b.rules.Generation = rs.Generation
	for i := range rs.Chains {
		is := rs.Chains[i].Entries
		copy(b.rules.Chains[i].Entries, is)
		if c := b.followed[i]; c != nil && c.take(is[:len(c.meter.rules)], s.started, at) {
			s.noteRestart(c, at)
		}
	}
	return true
}

func (b *backend) noteRead(at flannel.Time) {
	if at.Session == b.read.Session {
		b.every = int64(at.Sub(b.read))
	}
	b.read = at
}

// readFailed folds a read that gave nothing: what was known stays known of the past, and no speed spans the hole.
func (s *State) readFailed(b *backend, r *flannel.Reading[flannel.Ruleset], at flannel.Time) {
	for _, c := range s.chains {
		if c.id.Backend == b.name {
			c.pause()
		}
	}
	was, why := b.state, b.why
	b.state, b.why = r.State, r.Why
	if was == r.State && why == r.Why {
		return
	}
	s.facts.Rules[b.name] = flannel.Miss[flannel.Ruleset](r.State, r.Why, r.Source, at)
	if r.State == flannel.Unreadable && was != flannel.Unreadable {
		s.note(Event{Time: at, Kind: EventReadFail, Severity: diagnose.Warning,
			Text: b.name.String() + " cannot be read: " + r.Why})
	}
	s.judge(at)
}

// readNews folds a read that differs in more than counters.
func (s *State) readNews(b *backend, rs *flannel.Ruleset, r flannel.Reading[flannel.Ruleset], at flannel.Time) {
	first, failed := b.read.IsZero(), b.state == flannel.Unreadable
	from := b.rules.Generation
	b.noteRead(at)
	b.state, b.why = r.State, r.Why
	b.rules = rs.Clone()
	r.Value = b.rules
	s.facts.Rules[b.name] = r
	if failed {
		s.note(Event{Time: at, Kind: EventReadBack, Severity: diagnose.Info, Text: b.name.String() + " can be read again"})
	}
	s.followOwn(b)
	who := s.who(b.name, from, rs.Generation)
	compare := func(inOwn bool) {
		for _, c := range s.sorted() {
			if c.id.Backend == b.name && own(c.id) == inOwn {
				s.compare(c, &b.rules, first, who, at)
			}
		}
	}
	compare(true) // first, since the verdict asks since when a chain has been empty
	s.judge(at)
	compare(false) // last, since the verdict says which rules of a base chain are Flannel's
	s.link(b)
}

// followOwn begins to follow every chain of Flannel's that the ruleset tells of, wanted or not.
func (s *State) followOwn(b *backend) {
	for i := range b.rules.Chains {
		if id := b.rules.Chains[i].ID; own(id) {
			s.track(id)
		}
	}
}

// compare tells what happened to a chain between two readings, and fits its counts to the new one.
func (s *State) compare(c *chain, rs *flannel.Ruleset, first bool, who *Who, at flannel.Time) {
	was, is := c.shape, c.shapeOf(rs)
	known := c.seen && !first
	c.shape, c.seen = is, true
	if known && (was.present != is.present || (was.rules == 0) != (is.rules == 0)) {
		c.bare = at
	}
	var entries []flannel.Entry
	if ch := rs.Chain(c.id); ch != nil {
		entries = ch.Entries[:min(len(ch.Entries), maxRules)]
	}
	_, fresh := c.follow(entries, c.mine())
	restarted := c.take(entries, s.started, at)
	if !known {
		return
	}
	if !was.equal(is) {
		s.noteChange(c, was, is, who, at)
		return
	}
	if restarted || fresh > 0 && is.rules > 0 && own(c.id) {
		s.noteRestart(c, at)
	}
}

// link puts the followed chains beside those of the ruleset, for the quick way.
func (s *State) link(b *backend) {
	b.followed = make([]*chain, len(b.rules.Chains))
	for i := range b.rules.Chains {
		b.followed[i] = s.chains[b.rules.Chains[i].ID]
	}
}
