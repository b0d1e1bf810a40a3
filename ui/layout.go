package ui

import "flanwatch/watcher/incident"

// layout says how many rows each part of the dashboard gets.
type layout struct {
	body   int         // rows between banner and the last lines
	rows   [panels]int // rows inside each panel, 0 for one that is not drawn
	first  panel       // topmost panel that is drawn
	lanes  int         // rows of the timeline that show lanes, the axis included
	graph  int         // rows of the timeline that show the rate of the selected chain
	status bool        // a line of its own above the keys
	joined bool        // panels share their borders, to save rows
	beside bool        // the table stands beside the rules
	strip  bool        // the table is one line
}

// roomy is the height from which panels are boxes of their own and recording has a line of its own.
const roomy = 30

// leastGraph and mostGraph bound the height of the graph over the lanes.
const (
	leastGraph = 5
	mostGraph  = 9
)

// events is how many rows of the timeline are left for events.
func (l *layout) events() int { return l.rows[panelTimeline] - l.lanes - l.graph }

// claim is a wish for rows: of panel p (or its lanes) up to a total.
type claim struct {
	p     panel
	lanes bool
	upTo  int
}

// layout gives every panel its least, then fulfils wishes in order of what a person needs first. What is missing at a
// small size folds in the opposite order: lanes first, then rules.
func (s *screen) layout() layout {
	l := layout{status: s.height >= roomy, joined: s.height < roomy}
	l.body = s.height - 3
	if l.status {
		l.body--
	}
	if s.view == nil {
		return l
	}
	// The rules get room for the longest chain, so that nothing jumps when the selection moves.
	rows := s.visible()
	chains, rules := max(len(rows), 1), 1
	for _, r := range rows {
		rules = max(rules, len(r.Rules))
	}
	shown, borders := s.shown(&l)
	if l.joined {
		borders = shown + 1
	}
	free := l.body - borders
	if l.beside {
		rules = max(rules, leastTable)
	}
	for _, c := range []claim{
		{panelChains, false, 1 + min(chains, 3)},
		{panelTimeline, false, 2},
		{panelTable, false, 1},
		{panelRules, false, 1 + min(rules, 3)},
		{panelChains, false, 1 + min(chains, 4)},
		{panelTimeline, true, 1 + min(chains, 1)},
		{panelRules, false, 1 + min(rules, 6)},
		{panelTimeline, true, 1 + min(chains, 2)},
		{panelRules, false, 1 + min(rules, 8)},
		{panelChains, false, 1 + min(chains, 12)},
		{panelTimeline, true, 1 + min(chains, 4)},
		{panelTimeline, false, 6},
		{panelTable, false, leastTable},
		{panelChains, false, 1 + chains},
		{panelRules, false, 1 + rules},
		{panelTimeline, true, 1 + min(chains, 8)},
		{panelTimeline, false, 8},
	} {
		free -= l.grant(c, free, s.hidden[c.p] || c.p == panelTable && (l.beside || l.strip))
	}
	if c := s.current(); c != nil && c.Counted && l.lanes > 1 && free >= leastGraph {
		l.graph = min(free, mostGraph)
		free -= l.graph
	}
	for _, c := range []claim{
		{panelTimeline, false, l.body}, {panelRules, false, l.body}, {panelChains, false, l.body},
	} {
		free -= l.grant(c, free, s.hidden[c.p])
	}
	if !s.hidden[panelTimeline] {
		l.rows[panelTimeline] += l.lanes + l.graph
	}
	return l
}

// downwards lists the panels from top to bottom; the table stands beside the rules or below them.
var downwards = [panels]panel{panelChains, panelRules, panelTable, panelTimeline}

// leastTable is how many lines of the table tell what matters.
const leastTable = 6

// shown decides where the table goes, and counts the panels below each other and the rows of their borders.
func (s *screen) shown(l *layout) (panels, borders int) {
	table := !s.hidden[panelTable]
	l.beside = table && !l.joined && !s.hidden[panelRules] && s.width >= besideWidth
	l.strip = table && l.joined && !(s.hidden[panelChains] && s.hidden[panelRules] && s.hidden[panelTimeline])
	first := true
	for _, p := range downwards {
		if s.hidden[p] || p == panelTable && l.beside {
			continue
		}
		if first {
			l.first, first = p, false
		}
		panels++
		if p == panelTable && l.strip {
			continue
		}
		borders += 2
	}
	return panels, borders
}

// grant gives what is free towards a claim. Lanes come with their axis or not at all.
func (l *layout) grant(c claim, free int, hidden bool) int {
	have := &l.rows[c.p]
	if c.lanes {
		have = &l.lanes
	}
	n := min(c.upTo-*have, free)
	if hidden || n <= 0 || c.lanes && *have+n < 2 {
		return 0
	}
	*have += n
	return n
}

// current is the chain that the rules panel shows, nil if there is none.
func (s *screen) current() *incident.ChainView {
	rows := s.visible()
	if i := s.chains.index(idsOf(rows)); i >= 0 {
		return rows[i].ChainView
	}
	return nil
}
