package incident

import (
	"slices"

	"flanwatch/flannel"
)

// View is the picture of the state as of now. It shares nothing that later observations change.
func (s *State) View(now flannel.Time) *View {
	v := &View{
		Now:      now,
		Started:  s.started,
		Bucket:   s.bucket(now),
		Node:     s.facts.Node,
		Flannel:  s.verdict.Flannel,
		Findings: s.verdict.Findings,

		Leftovers: s.verdict.Remains,
		Hunted:    flannel.Reading[struct{}]{State: s.facts.Remains.State, Why: s.facts.Remains.Why, At: s.facts.Remains.At},
		Settings:  s.facts.Around.Settings,

		Events: s.events[:len(s.events):len(s.events)],
		Faults: s.faults,
		Table:  s.table.view(),
		Probe:  s.probeView(),
	}
	v.Paths = PathsView{State: s.facts.Paths.State, Why: s.facts.Paths.Why, Read: s.facts.Paths.At, List: s.verdict.Paths}
	v.Table.Masquerade = s.masquerade
	v.Bases, v.Opened = s.look.view()
	if s.incidentsChanged {
		s.picture, s.incidentsChanged = slices.Clone(s.incidents), false
	}
	v.Incidents = s.picture
	for i := range s.backends {
		if b := &s.backends[i]; b.state != flannel.Unread {
			v.Backends = append(v.Backends, BackendView{b.name, b.state, b.why, b.rules.Generation, b.read})
		}
	}
	for _, c := range s.sorted() {
		if c.listed {
			v.Chains = append(v.Chains, s.chainView(c))
		}
	}
	return v
}

// bucket is the newest bucket that can hold a value: that of the last read, unless reads are overdue.
func (s *State) bucket(now flannel.Time) int64 {
	newest := now.Sub(s.started)
	for i := range s.backends {
		b := &s.backends[i]
		if b.read.IsZero() || b.state == flannel.Unreadable {
			continue
		}
		if late := now.Sub(b.read); late >= 0 && late <= max(2*Step, 2*b.every) {
			newest = min(newest, b.read.Sub(s.started))
		}
	}
	return int64(max(0, newest-1) / Step) // a read at the very end of a bucket filled that one
}

func (s *State) chainView(c *chain) ChainView {
	v := ChainView{
		ID:      c.id,
		State:   c.diff.State,
		Since:   c.since,
		Wanted:  c.diff.Wanted,
		Found:   c.diff.Found,
		Hook:    c.diff.Hook,
		Counted: c.counted,
		Rate:    c.rate,
		Total:   c.total,
		History: c.history.Series,
		Lane:    c.lane[:len(c.lane):len(c.lane)],
		Rules:   make([]RuleView, len(c.diff.Rules)),
	}
	rs := &s.backend(c.id.Backend).rules
	v.Hook.Entry = hookEntry(rs, c.id, v.Hook)
	var entries []flannel.Entry
	if ch := rs.Chain(c.id); ch != nil {
		entries = ch.Entries
	}
	for i, d := range c.diff.Rules {
		v.Rules[i] = c.ruleView(d, entries)
	}
	return v
}

// hookEntry gives the jump with its counter as it is now.
func hookEntry(rs *flannel.Ruleset, id flannel.ChainID, h flannel.Hook) flannel.Entry {
	id.Name = h.Chain
	if ch := rs.Chain(id); ch != nil && h.Position > 0 && h.Position <= len(ch.Entries) {
		return ch.Entries[h.Position-1]
	}
	return h.Entry
}

// ruleView adds up the copies that the line stands for.
func (c *chain) ruleView(d flannel.RuleDiff, entries []flannel.Entry) RuleView {
	v := RuleView{RuleDiff: d}
	first := d.Found - 1
	if first < 0 || first >= min(len(entries), len(c.meter.rules)) {
		return v
	}
	v.Counted = entries[first].Counted
	v.Counter, v.Rate = entries[first].Counter, c.meter.rules[first].rate
	body, copies := entries[first].Body, d.Times-1
	v.Total = c.meter.sums[body]
	for i := first + 1; copies > 0 && i < min(len(entries), len(c.meter.rules)); i++ {
		if entries[i].Body == body {
			v.Counter = plus(v.Counter, entries[i].Counter)
			v.Rate.Packets += c.meter.rules[i].rate.Packets
			v.Rate.Bytes += c.meter.rules[i].rate.Bytes
			copies--
		}
	}
	return v
}
