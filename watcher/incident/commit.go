package incident

import (
	"slices"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// commit is a change that was announced, kept to give events their author.
type commit struct {
	backend    flannel.Backend
	generation uint32 // 0 for legacy
	at         flannel.Time
	who        Who
}

// maxBodies bounds the rules whose text is remembered by their hash.
const maxBodies = 4096

// applyCommit folds an announced change: its author is given to the events of his generation that were told before he was
// known, and the rulesets are carried on by what it says, so that a chain that was empty for no time at all is seen.
func (s *State) applyCommit(c *Commit, at flannel.Time) {
	s.noteAuthor(c, at)
	if c.Backend == flannel.IptablesLegacy {
		return
	}
	if c.Lost {
		s.markLost()
		s.note(Event{
			Time: at, Kind: EventUncertain, Severity: diagnose.Warning, Generation: c.Generation,
			Text: "announcements of changes were lost: what happened just before is not certain",
		})
		return
	}
	for i := range s.backends {
		b := &s.backends[i]
		if b.name == flannel.IptablesLegacy || b.state != flannel.Known {
			continue
		}
		if !before(b.rules.Generation, c.Generation) {
			s.hindsight(b, c, at)
			continue
		}
		if next, ok := s.book(b, c, at); ok {
			b.change(next)
			b.booked = at
			r := s.facts.Rules[b.name]
			r.Value, r.At = next, at
			s.facts.Rules[b.name] = r
			s.take(b, news{at: at, who: &s.commits[len(s.commits)-1].who, generation: c.Generation})
		}
	}
}

// markLost says of both nf_tables backends that times are uncertain until the next read.
func (s *State) markLost() {
	for i := range s.backends {
		s.backends[i].lost = s.backends[i].name != flannel.IptablesLegacy
	}
	for i := range s.incidents {
		if inc := &s.incidents[i]; inc.Open && inc.Spells[0].Chain.Backend != flannel.IptablesLegacy {
			inc.Uncertain, s.incidentsChanged = true, true
		}
	}
}

// hindsight folds an announcement that was overtaken by a read of what came after it: a chain that was empty between two
// reads has been empty all the same.
func (s *State) hindsight(b *backend, c *Commit, at flannel.Time) {
	who := &s.commits[len(s.commits)-1].who
	for _, ch := range c.Changes {
		f := s.chains[ch.Chain]
		if f == nil || ch.Chain.Backend != b.name || !own(ch.Chain) {
			continue
		}
		n := news{at: at, who: who, generation: c.Generation}
		s.author = who
		switch none := ch.Deleted || ch.Rules == 0; {
		case none && len(ch.Removed) > 0 && f.shape.rules > 0 && f.spell == 0 && f.wasGood:
			f.hindsight = true
			s.noteChange(f, f.shape, f.shape.emptied(!ch.Deleted), n)
			s.beginSpell(f, flannel.ChainEmpty, len(ch.Removed), n)
		case !none && f.hindsight:
			f.hindsight = false
			s.noteChange(f, f.shape.emptied(true), f.shape, n)
			s.closeSpell(f, at, true)
		}
		s.author = nil
	}
}

// book carries the ruleset of a backend on by a commit. It says no if the commit does not concern the backend, or tells
// of something that is not known in full: then the next read will tell.
func (s *State) book(b *backend, c *Commit, at flannel.Time) (flannel.Ruleset, bool) {
	touched := false
	next := b.rules.Clone()
	for _, t := range c.Tables {
		if t.Table.Backend == b.name {
			touched = true
			bookTable(&next, t)
		}
	}
	for _, ch := range c.Changes {
		if ch.Chain.Backend != b.name {
			continue
		}
		touched = true
		if !s.bookChain(&next, ch) {
			return next, false
		}
	}
	if !touched {
		return next, false
	}
	for _, ch := range c.Changes {
		if f := s.chains[ch.Chain]; f != nil {
			f.close(ch, s.started, at)
		}
	}
	next.Generation = c.Generation
	return next, true
}

func bookTable(rs *flannel.Ruleset, t TableChange) {
	rs.Tables = slices.DeleteFunc(rs.Tables, func(id flannel.TableID) bool { return id == t.Table && t.Deleted })
	if t.Created && !rs.HasTable(t.Table) {
		rs.Tables = append(rs.Tables, t.Table)
	}
	if !t.Deleted {
		return
	}
	for i := range rs.Chains {
		if c := &rs.Chains[i]; c.ID.TableID() == t.Table {
			*c = flannel.Chain{ID: c.ID}
		}
	}
}

func (s *State) bookChain(rs *flannel.Ruleset, ch ChainChange) bool {
	c := rs.Chain(ch.Chain)
	if c == nil {
		return false
	}
	if ch.Deleted {
		*c = flannel.Chain{ID: c.ID}
		return true
	}
	if ch.Created {
		// What the kernel calls a base chain for is not in the announcement: it will be what it was.
		base := s.bases[c.ID]
		if base == nil && (c.ID.Backend == flannel.Nftables || !own(c.ID)) {
			return false
		}
		*c = flannel.Chain{ID: c.ID, Present: true, Base: base}
	}
	if !ch.Created {
		for _, r := range ch.Removed {
			i := slices.IndexFunc(c.Entries, func(e flannel.Entry) bool { return e.Handle == r.Handle })
			if i < 0 {
				return false
			}
			c.Entries = slices.Delete(c.Entries, i, i+1)
		}
	}
	for _, r := range ch.Added {
		e, known := s.bodies[r.Body]
		at := 0
		switch {
		case r.After != 0:
			at = 1 + slices.IndexFunc(c.Entries, func(e flannel.Entry) bool { return e.Handle == r.After })
		case r.Last:
			at = len(c.Entries)
		}
		if !known || r.After != 0 && at == 0 {
			return false
		}
		e.Handle = r.Handle
		c.Entries = slices.Insert(c.Entries, at, e)
	}
	return ch.Rules < 0 || ch.Rules == len(c.Entries)
}

// remember keeps the text of every rule, to know it again when only its hash is announced, and the place of base chains.
func (s *State) remember(rs *flannel.Ruleset) {
	for i := range rs.Chains {
		if c := &rs.Chains[i]; c.Base != nil && len(s.bases) < maxChains {
			s.bases[c.ID] = c.Base
		}
		for _, e := range rs.Chains[i].Entries {
			if len(s.bodies) >= maxBodies {
				clear(s.bodies)
			}
			s.bodies[e.Body] = flannel.Entry{Rule: e.Rule, Body: e.Body, Counted: e.Counted}
		}
	}
}

// close takes the last values of the counters of rules that are gone. Where all of them are, the speed up to that moment
// is exact.
func (c *chain) close(ch ChainChange, start, at flannel.Time) {
	closed := 0
	for _, r := range ch.Removed {
		i := slices.IndexFunc(c.meter.rules, func(t tally) bool { return t.handle == r.Handle })
		if i >= 0 && r.Counted {
			c.add(i, r.Counter, at)
			closed++
		}
	}
	if closed > 0 && closed == len(c.meter.rules) && c.good {
		c.measure(start, at)
	}
}

// noteAuthor keeps the author of a commit, and gives him to events that had to do without.
func (s *State) noteAuthor(c *Commit, at flannel.Time) {
	if len(s.commits) >= maxCommits {
		s.commits = append(make([]commit, 0, maxCommits), s.commits[maxCommits/4:]...) // events point into the old array
	}
	s.commits = append(s.commits, commit{c.Backend, c.Generation, at, c.Who.clone()})
	if c.Generation == 0 {
		return
	}
	late := func(e Event) bool {
		return e.Who == nil && e.Generation == c.Generation && oneSequence(e.Chain.Backend, c.Backend)
	}
	recent := max(0, len(s.events)-64)
	if !slices.ContainsFunc(s.events[recent:], late) {
		return
	}
	s.events = slices.Clone(s.events)
	who := &s.commits[len(s.commits)-1].who
	for i := recent; i < len(s.events); i++ {
		if late(s.events[i]) {
			s.events[i].Who = who
			s.nameCulprit(s.events[i])
		}
	}
}

// oneSequence tells whether two backends count their commits together: both nf_tables backends do.
func oneSequence(a, b flannel.Backend) bool {
	return a == b || a != 0 && b != 0 && a != flannel.IptablesLegacy && b != flannel.IptablesLegacy
}

// who names the author of a change of a backend between two generations, the earlier one excluded (legacy: since the last
// read): nil if none is known, or if more than one program wrote meanwhile.
func (s *State) who(b *backend, from, to uint32) *Who {
	var found *Who
	for i := range s.commits {
		c := &s.commits[i]
		switch {
		case !oneSequence(c.backend, b.name):
			continue
		case b.name == flannel.IptablesLegacy && c.at.Sub(b.read) <= 0: // legacy tables have no number, but one lock
			continue
		case b.name != flannel.IptablesLegacy && c.generation-from-1 >= to-from: // numbers wrap around
			continue
		}
		if found != nil && found.Comm != c.who.Comm {
			return nil
		}
		found = &c.who
	}
	return found
}

func (s *State) whoSince(b *backend, from uint32) *Who { return s.who(b, from, b.rules.Generation) }

// clone copies what belongs to the sender.
func (w Who) clone() Who {
	if w.Origin != nil {
		o := *w.Origin
		o.Cmdline.Value = slices.Clone(o.Cmdline.Value)
		o.Parents.Value = slices.Clone(o.Parents.Value)
		w.Origin = &o
	}
	return w
}
