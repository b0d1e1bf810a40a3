package incident

import (
	"fmt"
	"maps"
	"slices"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// note appends an event. The list is only ever appended to or replaced, since views share it.
func (s *State) note(e Event) {
	if len(s.events) >= maxEvents {
		s.events = append(make([]Event, 0, maxEvents), s.events[maxEvents/4:]...)
	}
	s.events = append(s.events, e)
}

// noteChange tells how a chain changed, the gravest thing first.
func (s *State) noteChange(c *chain, was, is shape, n news) {
	gen := n.generation
	add := func(kind EventKind, sev diagnose.Severity, text string) {
		s.note(Event{Time: n.at, Kind: kind, Severity: sev, Chain: c.id, Text: text, Who: n.who, Generation: gen})
	}
	grave := diagnose.Warning
	if c.id.Table == "nat" || c.id.Name == "postrtg" {
		grave = diagnose.Critical
	}
	if !c.listed || c.diff.State == flannel.ChainLeftover {
		grave = diagnose.Info
	}
	switch {
	case was.present && !is.present:
		add(EventDeleted, grave, c.label()+" deleted"+lost(was.rules))
	case !was.present && is.present:
		add(EventCreated, diagnose.Info, fmt.Sprintf("%s created, %s", c.label(), rules(is.rules)))
	case was.rules > 0 && is.rules == 0:
		add(EventEmptied, grave, c.label()+" emptied"+lost(was.rules))
	case was.rules == 0 && is.rules > 0:
		add(EventRefilled, diagnose.Info, fmt.Sprintf("%s refilled, +%s", c.label(), rules(is.rules)))
	case !slices.Equal(was.bodies, is.bodies):
		if gone, fresh := changes(was.bodies, is.bodies); gone+fresh > 0 {
			add(EventChanged, diagnose.Warning, fmt.Sprintf("%s changed, +%d −%s", c.label(), fresh, rules(gone)))
		} else {
			add(EventChanged, diagnose.Warning, c.label()+" has its rules in another order")
		}
	}
	switch {
	case was.hooks > 0 && is.hooks == 0:
		add(EventHookLost, grave, c.label()+" lost its jump: nothing leads to it")
	case was.hooks == 0 && is.hooks > 0:
		add(EventHookBack, diagnose.Info, c.label()+" has its jump again")
	case was.hooks != is.hooks:
		add(EventChanged, diagnose.Info, fmt.Sprintf("%s is jumped to %d times, before %d", c.label(), is.hooks, was.hooks))
	}
}

func (s *State) noteRestart(c *chain, who *Who, at flannel.Time) {
	s.note(Event{
		Time: at, Kind: EventRestarted, Severity: diagnose.Info, Chain: c.id, Who: who,
		Text: c.label() + " counts from 0 again: same rules, new counters", Generation: s.generation(c.id.Backend),
	})
}

func (s *State) generation(name flannel.Backend) uint32 { return s.backend(name).rules.Generation }

// changes counts what one list has that the other has not, copies included.
func changes(was, is []uint64) (gone, fresh int) {
	n := map[uint64]int{}
	for _, b := range was {
		n[b]++
	}
	for _, b := range is {
		n[b]--
	}
	for v := range maps.Values(n) {
		if v > 0 {
			gone += v
		} else {
			fresh -= v
		}
	}
	return gone, fresh
}

func (c *chain) label() string { return c.id.Short() }

func lost(n int) string {
	if n == 0 {
		return ""
	}
	return ", −" + rules(n)
}

func rules(n int) string {
	if n == 1 {
		return "1 rule"
	}
	return fmt.Sprintf("%d rules", n)
}

func (s *State) sorted() []*chain {
	return slices.SortedFunc(maps.Values(s.chains), func(a, b *chain) int { return a.id.Compare(b.id) })
}
