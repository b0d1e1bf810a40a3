package incident

import (
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// backend is what is remembered of one backend: the last ruleset, ours to keep, and whose chains are followed.
type backend struct {
	name     flannel.Backend
	state    flannel.ReadState
	why      string
	rules    flannel.Ruleset
	followed []*chain                // beside rules.Chains, nil for a chain that is not followed
	read     flannel.Time            // last good read
	every    time.Duration           // between the last two good reads
	past     map[flannel.ChainID]int // rules of others in base chains, before the last news
	others   []flannel.Mark          // as the last news of them told
	lost     bool                    // announcements were lost since the last good read
	booked   flannel.Time            // when rules was last carried on from an announcement
}

// overtaken is how long after an announcement a ruleset of an older generation is taken for one that was read before it.
const overtaken = time.Second

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
	if b.isOld(rs, at) {
		return
	}
	same := b.state == r.Ruleset.State && b.sameShape(rs)
	if same && s.count(b, rs, at) {
		return
	}
	s.readNews(b, rs, &r.Ruleset, at)
}

// isOld tells whether the ruleset was read before a commit that has been folded already.
func (b *backend) isOld(rs *flannel.Ruleset, at flannel.Time) bool {
	return rs.Generation != 0 && !b.booked.IsZero() && at.Sub(b.booked) < overtaken && before(rs.Generation, b.rules.Generation)
}

// before compares generations, which wrap around.
func before(a, b uint32) bool { return int32(a-b) < 0 }

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

// count takes the counters of a ruleset that is otherwise as before. It does not allocate. It says whether it could: a
// chain followed since the last news has its counts to be made first.
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
			s.noteRestart(c, s.whoSince(b, rs.Generation-1), at)
		}
	}
	s.verify(b, at)
	b.lost = false
	return true
}

func (b *backend) noteRead(at flannel.Time) {
	if at.Session == b.read.Session {
		b.every = at.Sub(b.read)
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
		s.note(Event{
			Time: at, Kind: EventReadFail, Severity: diagnose.Warning,
			Text: b.name.String() + " cannot be read: " + flannel.Printable(r.Why),
		})
	}
	s.judge(at)
}

// readNews folds a read that differs in more than counters.
func (s *State) readNews(b *backend, rs *flannel.Ruleset, r *flannel.Reading[flannel.Ruleset], at flannel.Time) {
	n := news{at: s.announced(b, rs.Generation, at), read: at, first: b.read.IsZero(), counters: true, generation: rs.Generation}
	n.who = s.who(b, b.rules.Generation, rs.Generation)
	if b.state == flannel.Unreadable {
		s.note(Event{Time: at, Kind: EventReadBack, Severity: diagnose.Info, Text: b.name.String() + " can be read again"})
	}
	b.noteRead(at)
	b.state, b.why = r.State, r.Why
	b.change(rs.Clone())
	b.booked = flannel.Time{}
	s.remember(&b.rules)
	s.facts.Rules[b.name] = flannel.Reading[flannel.Ruleset]{
		Value: b.rules, State: r.State, Why: r.Why, Source: r.Source, At: r.At,
	}
	s.take(b, n)
	s.verify(b, at)
	b.lost = false
}

// announced is when the ruleset that a read at a time shows came about: when its commit was announced, if that was just
// before.
func (s *State) announced(b *backend, generation uint32, at flannel.Time) flannel.Time {
	for i := len(s.commits) - 1; i >= 0 && generation != 0; i-- {
		c := &s.commits[i]
		if d := at.Sub(c.at); d < 0 || d > overtaken {
			break
		}
		if c.generation == generation && oneSequence(c.backend, b.name) {
			return c.at
		}
	}
	return at
}

// change puts the next ruleset in place of the last.
func (b *backend) change(next flannel.Ruleset) {
	b.past = map[flannel.ChainID]int{}
	for i := range b.rules.Chains {
		if c := &b.rules.Chains[i]; !own(c.ID) {
			b.past[c.ID] = foreign(c)
		}
	}
	b.rules = next
}

// news says how a new ruleset of a backend became known.
type news struct {
	at       flannel.Time // when it came about, as near as that is known
	read     flannel.Time // when its counters were read
	who      *Who
	first    bool // nothing was known before, so nothing happened
	counters bool // its counters are values of this moment

	generation uint32 // of the ruleset, 0 for legacy
}

// take folds b.rules, which has just changed, into chains, verdict and incidents.
func (s *State) take(b *backend, n news) {
	for i := range b.rules.Chains {
		if id := b.rules.Chains[i].ID; own(id) {
			s.track(id)
		}
	}
	s.author = n.who
	s.compare(b, n, true) // before the verdict, which asks since when a chain has been empty
	s.judge(n.at)
	s.compare(b, n, false) // after it, since it says which rules of a base chain are Flannel's
	s.author = nil
	s.link(b)
	s.followOthers(b, n)
}

func (s *State) compare(b *backend, n news, inOwn bool) {
	for _, c := range s.sorted() {
		if c.id.Backend == b.name && own(c.id) == inOwn {
			s.compareChain(c, &b.rules, n)
		}
	}
}

// compareChain tells what happened to a chain between two rulesets, and fits its counts to the new one.
func (s *State) compareChain(c *chain, rs *flannel.Ruleset, n news) {
	was, is := c.shape, c.shapeOf(rs)
	known := c.seen && !n.first
	c.shape, c.seen = is, true
	if known && (was.present != is.present || (was.rules == 0) != (is.rules == 0)) {
		c.bare = n.at
	}
	var entries []flannel.Entry
	if ch := rs.Chain(c.id); ch != nil {
		entries = ch.Entries[:min(len(ch.Entries), maxRules)]
	}
	fresh := c.follow(entries, c.mine())
	restarted := false
	switch {
	case n.counters:
		restarted = c.meter.take(entries, s.started, n.read)
	case len(entries) == 0:
		c.pause()
	}
	switch {
	case !known:
	case !was.equal(is):
		c.changed, c.changer = n.at, n.who
		s.noteChange(c, was, is, n)
	case restarted, fresh > 0 && is.rules > 0 && own(c.id):
		s.noteRestart(c, n.who, n.at)
	}
}

// link puts the followed chains beside those of the ruleset, for the quick way.
func (s *State) link(b *backend) {
	b.followed = make([]*chain, len(b.rules.Chains))
	for i := range b.rules.Chains {
		b.followed[i] = s.chains[b.rules.Chains[i].ID]
	}
}
