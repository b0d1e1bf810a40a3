package incident

import (
	"slices"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

const (
	maxIncidents = 1000
	maxPerCause  = 64 // spells of one incident
	// oneCause is how close to each other spells of several chains begin if one cause hit them: a start of flanneld
	// empties and fills its four chains in turn, each some 0.1 s, beside very large legacy tables some seconds.
	oneCause = 2 * time.Second
)

// followSpells opens and closes spells by the verdict that was just reached.
func (s *State) followSpells(at flannel.Time) {
	for _, c := range s.sorted() {
		state := c.diff.State
		switch {
		case !c.listed:
			s.closeSpell(c, at, false)
		case bad(state) && s.readsAhead(c, at):
		case bad(state):
			s.openSpell(c, at)
			c.wasGood = false
		case state == flannel.ChainLeftover:
			s.closeSpell(c, at, false)
		case state != flannel.ChainUnreadable:
			s.endSpell(c, at)
			c.wasGood = true
		}
	}
}

// readAgain is how long after its rules the node's files may be read anew. flanneld writes its rules first.
const readAgain = 3 * time.Second

// readsAhead tells whether a chain that seems incomplete was just written in full, for networks that the node's files may
// name in a moment.
func (s *State) readsAhead(c *chain, at flannel.Time) bool {
	if c.diff.State != flannel.ChainPartial || c.spell != 0 || c.changed.IsZero() || at.Sub(c.changed) >= readAgain {
		return false
	}
	all := &s.backend(c.id.Backend).rules
	alone := flannel.Ruleset{Backend: c.id.Backend, Tables: all.Tables} // other chains may speak of the old networks still
	for _, ch := range all.Chains {
		if ch.ID == c.id || ch.ID == baseOf(c.id) {
			alone.Chains = append(alone.Chains, ch)
		}
	}
	for _, t := range flannel.Infer(&alone, nil, nil) {
		for _, w := range flannel.Expected(t.Networks, t.Subnets, t.Generation, t.Options, t.Backend, t.Family) {
			if w.ID == c.id && flannel.Compare(&alone, w).State == flannel.ChainOK {
				return true
			}
		}
	}
	return false
}

// endSpell ends the spell of a chain that is good. Where its rules were what they are now before that was known, they
// ended it.
func (s *State) endSpell(c *chain, at flannel.Time) {
	inc := s.incident(c.spell)
	if inc == nil {
		return
	}
	for _, sp := range inc.Spells {
		if sp.Chain == c.id && sp.Open && s.author == nil && c.changed.Sub(sp.From) > 0 {
			s.author = c.changer
			defer func() { s.author = nil }()
			s.closeSpell(c, c.changed, true)
			s.verifySince(inc)
			return
		}
	}
	s.closeSpell(c, at, true)
}

// bad tells whether a chain in the state does less than Flannel wants of it.
func bad(state flannel.ChainState) bool {
	switch state {
	case flannel.ChainEmpty, flannel.ChainAbsent, flannel.ChainUnreferenced, flannel.ChainPartial, flannel.ChainShadowed:
		return true
	}
	return false
}

// openSpell begins a spell, in the incident of the same cause if there is one. A chain that has not been good while we
// watched counts only where Flannel is known to run.
func (s *State) openSpell(c *chain, at flannel.Time) {
	if inc := s.incident(c.spell); inc != nil {
		now := s.circumstancesOf(c)
		now.others = now.others && at.Sub(inc.touched) < oneCause // what others lose later is another matter
		if facts := inc.facts.and(now); facts != inc.facts {
			inc.facts = facts
			s.reconsider(inc)
		}
		return
	}
	if !c.wasGood && (!runs(s.verdict.Flannel.State) || s.settingUp() && s.sameCause(c.id, 0, at) < 0) {
		return
	}
	s.beginSpell(c, c.diff.State, c.diff.Wanted-c.diff.Found, news{at: at, generation: s.generation(c.id.Backend)})
}

// beginSpell begins a spell in which a chain has lost rules.
func (s *State) beginSpell(c *chain, state flannel.ChainState, lost int, n news) {
	i := s.sameCause(c.id, n.generation, n.at)
	if i < 0 {
		i = s.newIncident(c, n.generation, n.at)
	}
	inc := &s.incidents[i]
	if len(inc.Spells) >= maxPerCause {
		return
	}
	c.spell = inc.Number
	inc.Open, inc.Complete, inc.touched = true, false, n.at
	inc.Spells = append(slices.Clip(inc.Spells), Spell{Chain: c.id, State: state, From: n.at, Open: true, Lost: lost})
	inc.facts = inc.facts.and(s.circumstancesOf(c))
	s.reconsider(inc)
}

// settingUp tells whether Flannel was started before our eyes and may not have come to all of its chains yet: one that was
// never good is not lost.
func (s *State) settingUp() bool {
	return s.verdict.Flannel.State == diagnose.FlannelStarting &&
		slices.ContainsFunc(s.starts, func(t flannel.Time) bool { return t.Sub(s.started) > 0 })
}

func runs(f diagnose.FlannelState) bool {
	return f == diagnose.FlannelLive || f == diagnose.FlannelStarting || f == diagnose.FlannelCrashing
}

// sameCause finds the incident that a new spell of a chain belongs to, -1 if it is a new one: it began in the same commit,
// or in the same two seconds without having gone through the same chain before.
func (s *State) sameCause(id flannel.ChainID, gen uint32, at flannel.Time) int {
	for i := len(s.incidents) - 1; i >= max(0, len(s.incidents)-8); i-- {
		inc := &s.incidents[i]
		again := slices.ContainsFunc(inc.Spells, func(sp Spell) bool { return sp.Chain == id })
		switch {
		case gen != 0 && inc.Generation == gen && oneSequence(inc.Spells[0].Chain.Backend, id.Backend):
			return i
		case at.Sub(inc.touched) > oneCause:
		case inc.Open, !again:
			return i
		}
	}
	return -1
}

func (s *State) newIncident(c *chain, gen uint32, at flannel.Time) int {
	if len(s.incidents) >= maxIncidents {
		s.incidents = slices.Delete(s.incidents, 0, maxIncidents/4)
	}
	s.incidentsSeen++
	inc := Incident{Number: s.incidentsSeen, Start: at, Before: !c.wasGood, By: s.author, Generation: gen, touched: at}
	inc.subnets = s.facts.Node.Subnets.Value
	inc.Uncertain = s.backend(c.id.Backend).lost
	s.incidents = append(s.incidents, inc)
	return len(s.incidents) - 1
}

// closeSpell ends the spell of a chain, and the incident with its last one.
func (s *State) closeSpell(c *chain, at flannel.Time, good bool) {
	number := c.spell
	c.spell = 0
	inc := s.incident(number)
	if number == 0 || inc == nil {
		return
	}
	inc.Spells = slices.Clone(inc.Spells)
	open, end := false, at
	for i := range inc.Spells {
		sp := &inc.Spells[i]
		if sp.Chain == c.id && sp.Open {
			sp.Open, sp.To = false, at
		}
		if open = open || sp.Open; !sp.Open && sp.To.Sub(end) > 0 {
			end = sp.To
		}
	}
	inc.touched = end
	switch {
	case good && end == at:
		inc.RecoveredBy = s.author
	case good:
	case s.switched(c.id):
		inc.facts.residue, inc.RecoveredBy = true, s.author
	default:
		inc.unrecovered = true
	}
	if !open {
		inc.Open, inc.End, inc.Complete = false, end, !inc.unrecovered
	}
	s.reconsider(inc)
}

func (s *State) incident(number int) *Incident {
	for i := len(s.incidents) - 1; i >= 0; i-- {
		if s.incidents[i].Number == number {
			return &s.incidents[i]
		}
	}
	return nil
}

// verify notes that a read of the backend showed what announcements had said: the rules are back.
func (s *State) verify(b *backend, at flannel.Time) {
	for i := max(0, len(s.incidents)-8); i < len(s.incidents); i++ {
		inc := &s.incidents[i]
		if !inc.Open && inc.Verified.IsZero() && inc.Complete && inc.Spells[0].Chain.Backend == b.name {
			inc.Verified = at
			s.incidentsChanged = true
		}
	}
}

// verifySince notes that a read has shown the rules already that ended an incident.
func (s *State) verifySince(inc *Incident) {
	read := s.backend(inc.Spells[0].Chain.Backend).read
	if !inc.Open && inc.Complete && inc.Verified.IsZero() && read.Sub(inc.End) >= 0 {
		inc.Verified = read
	}
}

// nameCulprit gives a late author to the incident that his event belongs to.
func (s *State) nameCulprit(e Event) {
	for i := max(0, len(s.incidents)-8); i < len(s.incidents); i++ {
		inc := &s.incidents[i]
		switch {
		case inc.By == nil && inc.Start == e.Time:
			inc.By = e.Who
		case inc.RecoveredBy == nil && !inc.Open && inc.End == e.Time:
			inc.RecoveredBy = e.Who
		default:
			continue
		}
		s.reconsider(inc)
	}
}

// repairPeriod is the least that Flannel's repair period can be by the repairs that were seen: the longest damage that
// Flannel itself put right, 0 if none was.
func (s *State) repairPeriod() time.Duration {
	var longest time.Duration
	for i := range s.incidents {
		inc := &s.incidents[i]
		byItself := inc.Kind != KindStartup && inc.Kind != KindTeardown && byFlannel(inc.RecoveredBy) == yes
		if inc.Open || !inc.Complete || inc.Before || !byItself {
			continue
		}
		if d := inc.Duration(inc.End); d <= time.Minute {
			longest = max(longest, d)
		}
	}
	return longest
}
