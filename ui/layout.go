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
	shown, borders := 0, 0
	for p := range panels {
		if s.hidden[p] {
			continue
		}
		if shown == 0 {
			l.first = p
		}
		shown++
		borders += 2
	}
	if l.joined {
		borders = shown + 1
	}
	free := l.body - borders
	for _, c := range []claim{
		{panelChains, false, 1 + min(chains, 3)},
		{panelTimeline, false, 2},
		{panelRules, false, 1 + min(rules, 3)},
		{panelChains, false, 1 + min(chains, 4)},
		{panelTimeline, true, 1 + min(chains, 2)},
		{panelRules, false, 1 + min(rules, 8)},
		{panelChains, false, 1 + min(chains, 12)},
		{panelTimeline, true, 1 + min(chains, 4)},
		{panelTimeline, false, 6},
		{panelChains, false, 1 + chains},
		{panelRules, false, 1 + rules},
		{panelTimeline, true, 1 + min(chains, 8)},
		{panelTimeline, false, 8},
	} {
		free -= l.grant(c, free, s.hidden[c.p])
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
