package incident

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

const (
	// startReach is how long after its start flanneld may take to come to its chains: it waits for its node first. Where
	// nothing says who wrote, only a start that we saw counts, and less long.
	startReach      = time.Minute
	startReachBlind = 15 * time.Second
	// stopReach is how far from the loss of its rules flanneld may be seen to have stopped. v0.25.0–v0.26.7 remove them
	// a second after SIGTERM and end at once; processes are looked for about once a second.
	stopReach = 5 * time.Second
	// flapWindow and flapTimes: damaged that often within that time is more than one hand.
	flapWindow = time.Minute
	flapTimes  = 3
	// flapMemory is how long damage speaks against a repair: what happens every minute or two goes on.
	flapMemory = 5 * time.Minute
)

// reconsider tells kind, severity, effects and precedents of an incident anew.
func (s *State) reconsider(inc *Incident) {
	inc.Kind = s.kindOf(inc)
	inc.Severity, inc.Effects = effectsOf(inc)
	inc.SameCause = s.precedents(inc)
	s.incidentsChanged = true
}

// reconsiderRecent looks at the last incidents again, since processes are seen to start and stop later than their rules.
func (s *State) reconsiderRecent() {
	for i := max(0, len(s.incidents)-8); i < len(s.incidents); i++ {
		if inc := &s.incidents[i]; s.facts.At.Sub(inc.touched) < startReach {
			s.reconsider(inc)
		}
	}
}

func (s *State) kindOf(inc *Incident) Kind {
	first := inc.Spells[0].State
	switch {
	case inc.facts.residue && !s.endedWith(inc):
		return KindResidue
	case s.startedBefore(inc) && !s.endedWith(inc):
		return KindStartup
	case s.tornDown(inc):
		return KindTeardown
	case s.flaps(inc):
		return KindFlapping
	case inc.facts.others && !inc.Before: // of what went before we looked nothing tells with what else
		return KindRulesetFlush
	case inc.facts.table:
		return KindTableGone
	case first == flannel.ChainUnreferenced:
		return KindHookLost
	case first == flannel.ChainPartial:
		return KindPartial
	}
	return KindFlushed
}

// startedBefore tells whether this is the first incident after a start of flanneld, and may be its doing.
func (s *State) startedBefore(inc *Incident) bool {
	reach, since := startReachBlind, s.started
	switch byFlannel(inc.By) {
	case no:
		return false
	case yes:
		reach, since = startReach, flannel.Time{}
	}
	return slices.ContainsFunc(s.starts, func(t flannel.Time) bool {
		if d := inc.Start.Sub(t); d < 0 || d > reach || !since.IsZero() && t.Sub(since) < 0 {
			return false
		}
		return !slices.ContainsFunc(s.incidents, func(other Incident) bool {
			return other.Number < inc.Number && other.Start.Sub(t) >= 0
		})
	})
}

// tornDown tells whether a stopping flanneld took its rules along.
func (s *State) tornDown(inc *Incident) bool {
	if !inc.facts.hookLost && !inc.facts.table {
		return false
	}
	by := byFlannel(inc.By)
	return by == yes || by == unknown && s.stoppedNear(inc)
}

// endedWith tells whether the very flanneld that took its jump or table away was found gone right after. One that empties
// its chains at its start lives on.
func (s *State) endedWith(inc *Incident) bool {
	if !inc.facts.hookLost && !inc.facts.table || inc.By == nil || inc.By.Origin == nil {
		return false
	}
	return slices.ContainsFunc(inc.By.Origin.Parents.Value, func(a Ancestor) bool {
		return isFlannel(a.Comm) && slices.ContainsFunc(s.ended, func(e ended) bool {
			d := e.at.Sub(inc.Start)
			return e.pid == a.PID && d >= 0 && d < stopReach
		})
	})
}

// answer is yes, no, or not known.
type answer uint8

const (
	unknown answer = iota
	no
	yes
)

// byFlannel tells whether a program was started by Flannel, as far as its descent is known.
func byFlannel(w *Who) answer {
	if w == nil {
		return unknown
	}
	line := descent(w)
	if slices.ContainsFunc(append(line, w.Comm), isFlannel) {
		return yes
	}
	if len(line) == 0 {
		return unknown
	}
	return no
}

func isFlannel(comm string) bool {
	return comm == "flanneld" || comm == "k3s" || strings.HasPrefix(comm, "k3s-")
}

func (s *State) stoppedNear(inc *Incident) bool {
	return slices.ContainsFunc(s.stops, func(t flannel.Time) bool {
		d := t.Sub(inc.Start)
		return d > -stopReach && d < stopReach
	})
}

// flaps tells whether a chain of the incident has been damaged again and again.
func (s *State) flaps(inc *Incident) bool {
	times := 0
	for _, other := range s.incidents {
		if other.Number > inc.Number || inc.Start.Sub(other.Start) > flapWindow || other.Kind == KindStartup {
			continue
		}
		if slices.ContainsFunc(other.Spells, func(sp Spell) bool { return sp.Chain == inc.Spells[0].Chain }) {
			times++
		}
	}
	return times >= flapTimes
}

// flapping gives the chains that were damaged again and again in the last minutes.
func (s *State) flapping(at flannel.Time) map[flannel.ChainID]diagnose.Flap {
	var out map[flannel.ChainID]diagnose.Flap
	for i := range s.incidents {
		inc := &s.incidents[i]
		byItself := inc.Kind == KindStartup || inc.Kind == KindTeardown || inc.Kind == KindResidue
		if at.Sub(inc.Start) > flapMemory || byItself || inc.By != nil && inc.By.Comm == "flanwatch" {
			continue
		}
		if out == nil {
			out = map[flannel.ChainID]diagnose.Flap{}
		}
		for _, id := range inc.Objects() {
			f := diagnose.Flap{Times: out[id].Times + 1, In: flapMemory}
			if inc.By != nil {
				f.By = inc.By.Comm
			}
			out[id] = f
		}
	}
	maps.DeleteFunc(out, func(_ flannel.ChainID, f diagnose.Flap) bool { return f.Times < flapTimes })
	return out
}

// circumstancesOf looks at the rules around a chain that has just turned bad.
func (s *State) circumstancesOf(c *chain) circumstances {
	rs := &s.backend(c.id.Backend).rules
	if c.id.Backend == flannel.Nftables {
		return circumstances{table: !rs.HasTable(c.id.TableID())}
	}
	f := circumstances{hookLost: c.shape.rules == 0 && c.shape.hooks == 0}
	if c.shape.rules == 0 && s.othersLost(c.id) {
		f.others = true
	}
	return f
}

func (c circumstances) and(d circumstances) circumstances {
	return circumstances{c.hookLost || d.hookLost, c.table || d.table, c.others || d.others, c.residue || d.residue}
}

// othersLost tells whether the base chain that leads to a chain lost rules of others, or its whole table went, with the
// news that is being folded.
func (s *State) othersLost(id flannel.ChainID) bool {
	b := s.backend(id.Backend)
	if !b.rules.HasTable(id.TableID()) {
		return true
	}
	base := baseOf(id)
	if c := b.rules.Chain(base); c != nil && !c.Present && s.bases[base] != nil {
		return true
	}
	return b.past[base] > 0 && foreign(b.rules.Chain(base)) == 0
}

// foreign counts rules in a base chain that do not lead to Flannel's chains.
func foreign(c *flannel.Chain) int {
	if c == nil {
		return 0
	}
	n := 0
	for i := range c.Entries {
		if t := c.Entries[i].Rule.Target.Chain; t != flannel.ChainMasq && t != flannel.ChainFwd {
			n++
		}
	}
	return n
}

// baseOf names the base chain that leads to an iptables chain of Flannel's.
func baseOf(id flannel.ChainID) flannel.ChainID {
	id.Name = flannel.ChainForward
	if id.Table == flannel.TableNat {
		id.Name = flannel.ChainPostrouting
	}
	return id
}

// switched tells whether a chain is left over because flanneld goes on in the dialect of the other backend.
func (s *State) switched(id flannel.ChainID) bool {
	native := s.verdict.Flannel.Dialect == diagnose.DialectNftables
	return runs(s.verdict.Flannel.State) && native == (id.Backend != flannel.Nftables)
}

// effectsOf says what an incident did to pods.
func effectsOf(inc *Incident) (diagnose.Severity, []string) {
	severity, effects := diagnose.Warning, []string{}
	add := func(text string) {
		if !slices.Contains(effects, text) {
			effects = append(effects, text)
		}
	}
	for _, sp := range inc.Spells {
		f, whose := sp.Chain.Family.Short(), "pods"
		for _, p := range flannel.Of(sp.Chain.Family, inc.subnets) {
			whose = "pods in " + p.String()
		}
		switch {
		case sp.Chain.Table == flannel.TableNat, sp.Chain.Name == flannel.NativeMasq:
			if sp.State != flannel.ChainPartial {
				severity = diagnose.Critical
			}
			add(fmt.Sprintf("%s masquerading: new connections of %s to the outside left with pod addresses", f, whose))
		default:
			add(fmt.Sprintf("%s forwarding: traffic of %s passed only where FORWARD's policy and other rules let it", f, whose))
		}
	}
	if inc.facts.residue {
		severity = diagnose.Info
	}
	for _, text := range []string{inc.Probe.text(), inc.Flows.text()} {
		if text != "" {
			add(text)
		}
	}
	for i := range inc.Owners {
		add(inc.Owners[i].text())
	}
	return severity, effects
}

// precedents lists earlier incidents of the same kind by the same program.
func (s *State) precedents(inc *Incident) []int {
	out := []int{}
	for _, other := range s.incidents {
		if other.Number < inc.Number && other.Kind == inc.Kind && sameProgram(other.By, inc.By) {
			out = append(out, other.Number)
		}
	}
	return out[max(0, len(out)-16):]
}

// sameProgram compares whole lines of descent where they are known, since iptables alone says little.
func sameProgram(a, b *Who) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Comm == b.Comm && slices.Equal(descent(a), descent(b))
}

func descent(w *Who) []string {
	var out []string
	if w.Origin != nil {
		for _, p := range w.Origin.Parents.Value {
			out = append(out, p.Comm)
		}
	}
	return out
}
