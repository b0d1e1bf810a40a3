package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

// order is what the chains are sorted by.
type order uint8

const (
	bySeverity order = iota
	byName
	byRate
	byTotal
	orders
)

var orderNames = [orders]string{"severity", "name", "rate", "total"}

// grade is how bad a thing is, worst first.
type grade uint8

const (
	gradeBad grade = iota
	gradeWarn
	gradeUnknown
	gradeGood
)

var (
	gradeSigns = [...]string{gradeBad: signBad, gradeWarn: signWarn, gradeUnknown: signUnknown, gradeGood: signGood}
	gradeRoles = [...]role{gradeBad: roleBad, gradeWarn: roleWarn, gradeUnknown: roleWarn, gradeGood: roleGood}
)

func gradeOf(s flannel.ChainState) grade {
	switch s {
	case flannel.ChainOK:
		return gradeGood
	case flannel.ChainDiffers, flannel.ChainShadowed, flannel.ChainLeftover:
		return gradeWarn
	case flannel.ChainUnreadable, "":
		return gradeUnknown
	}
	return gradeBad
}

// stateWords are the states as the table says them, in at most eight columns.
var stateWords = map[flannel.ChainState]string{
	flannel.ChainUnreferenced: "unhooked", flannel.ChainUnreadable: "unknown", "": "unknown",
}

func stateWord(s flannel.ChainState) string {
	if w, ok := stateWords[s]; ok {
		return w
	}
	return string(s)
}

// chainRow is a chain with how bad it is.
type chainRow struct {
	*incident.ChainView
	grade grade
}

func idsOf(rows []chainRow) []flannel.ChainID {
	ids := make([]flannel.ChainID, len(rows))
	for i := range rows {
		ids[i] = rows[i].ID
	}
	return ids
}

// visible gives the chains that pass the filter, sorted.
func (s *screen) visible() []chainRow {
	if s.view == nil {
		return nil
	}
	rows := make([]chainRow, 0, len(s.view.Chains))
	words := strings.Fields(strings.ToLower(s.filter))
	for i := range s.view.Chains {
		c := &s.view.Chains[i]
		if matches(c, words) {
			rows = append(rows, chainRow{c, s.grade(c)})
		}
	}
	slices.SortStableFunc(rows, func(a, b chainRow) int {
		n := cmp.Or(s.compare(a, b), byImportance(a.ID, b.ID))
		if s.reverse {
			return -n
		}
		return n
	})
	return rows
}

// byImportance is the order of names: chains that masquerade before those that forward, whatever a backend calls them.
func byImportance(a, b flannel.ChainID) int {
	return cmp.Or(cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.Family, b.Family), on(isNat(b), 1)-on(isNat(a), 1), a.Compare(b))
}

func (s *screen) compare(a, b chainRow) int {
	switch s.order {
	case bySeverity:
		return cmp.Compare(a.grade, b.grade)
	case byRate:
		return cmp.Compare(b.Rate.Packets, a.Rate.Packets)
	case byTotal:
		return cmp.Compare(b.Total.Packets, a.Total.Packets)
	}
	return 0
}

// grade takes the word of the finding about a chain where there is one: an empty chain is no outage while flanneld is
// just starting.
func (s *screen) grade(c *incident.ChainView) grade {
	g := gradeOf(c.State)
	for _, f := range s.view.Findings {
		if f.Chain != c.ID {
			continue
		}
		switch f.Severity {
		case diagnose.Critical:
			return gradeBad
		case diagnose.Warning:
			return gradeWarn
		}
		return max(g, gradeWarn)
	}
	return g
}

func matches(c *incident.ChainView, words []string) bool {
	text := strings.ToLower(backendShort[c.ID.Backend] + " " + c.ID.String() + " " + c.ID.Short() + " " + stateWord(c.State))
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// chainColumns says which columns fit. Columns go in a fixed order when there is less room: the total, the bits, then the
// graph, then the hook.
type chainColumns struct {
	backend, table, name int
	hook, bits, total    bool
	graph                int // columns of the sparkline
}

// stateWidth is the column of the state, with a space before the border.
const stateWidth = 11

// perTick is the time of one column of a sparkline, in seconds: a minute in twenty columns, five in sixty. A bar lasts, so
// that a second changes one column of a row and not all of them.
func perTick(columns int) int {
	if columns > 20 {
		return 5
	}
	return 3
}

func (s *screen) chainColumns(rows []chainRow) chainColumns {
	c := chainColumns{table: 6, name: 11, hook: true, bits: true, total: true}
	if s.several() {
		c.backend = 8
	}
	for _, r := range rows {
		c.table = max(c.table, min(width(clean(r.ID.Table)), 12))
		c.name = max(c.name, min(width(clean(r.ID.Name)), 28))
	}
	room := func() int {
		fixed := 2 + c.backend + 4 + c.table + 1 + c.name + 1 + 5 + 2 + 8 + 1 + stateWidth
		return s.inner() - fixed - on(c.hook, 6) - on(c.bits, 6) - on(c.total, 8) - 2
	}
	if room() < 20 {
		c.total = false
	}
	if room() < 20 {
		c.bits = false
	}
	if room() < 10 {
		c.hook = false
	}
	if over := -room(); over > 0 {
		c.name = max(c.name-over, 6)
	}
	for _, n := range []int{60, 40, 20, 10} {
		if room() >= n {
			c.graph = n
			break
		}
	}
	return c
}

func on(b bool, n int) int {
	if b {
		return n
	}
	return 0
}

// chainsPanel draws one row per chain:
//
//	╭─ ¹Chains 4 ───────────────────────────────────────────────────────────────── sort severity ↓ ─╮
//	│  FAM TABLE  CHAIN           RULES  HOOK     RATE  BIT/S   TOTAL  LAST 60 s            STATE    │
//	│▸ v4  nat    FLANNEL-POSTRTG   0/6   1/2        –      ·   311kc  ▃▃▄▃▃▅▃▂▃▄▃▃▄▃▅▃▂··· ✗ empty  │
//	│  v4  filter FLANNEL-FWD       2/2   1/3 18.4kp/s   142M  9.21Gp  ▅▅▆▅▅▇▆▅▅▆▅▅▅▆▅▆▅▅▃▂ ● ok     │
func (s *screen) chainsPanel(l layout) box {
	rows := s.visible()
	at := s.chains.index(idsOf(rows))
	b := box{number: "¹", title: fmt.Sprintf("Chains %d", len(rows)), focused: s.focus == panelChains, info: s.sortInfo()}
	if n := len(s.view.Chains); n != len(rows) {
		b.title = fmt.Sprintf("Chains %d of %d", len(rows), n)
	}
	if s.filter != "" {
		b.title += " /" + clean(s.filter)
	}
	c := s.chainColumns(rows)
	b.lines = append(b.lines, s.chainHead(c))
	height := l.rows[panelChains] - 1
	for i := window(len(rows), height, at); i < len(rows) && height > 0; i, height = i+1, height-1 {
		b.lines = append(b.lines, s.chainLine(rows[i], c, i == at))
	}
	if len(rows) == 0 {
		b.lines = append(b.lines, s.innerLine(groundPlain).gap(2).put(roleDim, "no chain matches; esc clears the filter").full())
	}
	return b
}

func (s *screen) sortInfo() string {
	arrow := " ↓"
	if s.reverse {
		arrow = " ↑"
	}
	return "sort " + orderNames[s.order] + arrow
}

func (s *screen) chainHead(c chainColumns) string {
	l := s.innerLine(groundPlain).gap(2)
	if c.backend > 0 {
		l.put(roleDim, left("BACKEND", c.backend))
	}
	l.put(roleDim, "FAM "+left("TABLE", c.table+1)+left("CHAIN", c.name+1)+"RULES")
	if c.hook {
		l.put(roleDim, right("HOOK", 6))
	}
	l.put(roleDim, right("RATE", 10))
	if c.bits {
		l.put(roleDim, right("BIT/S", 6))
	}
	if c.total {
		l.put(roleDim, right("TOTAL", 8))
	}
	if c.graph > 0 {
		l.gap(2).put(roleDim, left("LAST "+period(seconds(c.graph*perTick(c.graph))), c.graph))
	}
	return l.to(s.stateColumn(l.w)).put(roleDim, "STATE").full()
}

func (s *screen) chainLine(r chainRow, c chainColumns, selected bool) string {
	l := s.innerLine(groundPlain)
	name := roleText
	if selected {
		l.ground, name = groundSelect, roleStrong
		l.put(roleFocus, "▸ ")
	} else {
		l.gap(2)
	}
	if c.backend > 0 {
		l.put(roleText, left(backendShort[r.ID.Backend], c.backend))
	}
	l.put(roleText, r.ID.Family.Short()+"  "+left(clean(r.ID.Table), c.table)+" ")
	l.put(name, left(clean(r.ID.Name), c.name)+" ")
	found := roleText
	if r.Found < r.Wanted {
		found = gradeRoles[r.grade]
	}
	l.put(found, right(foundOf(r.ChainView), 5))
	if c.hook {
		l.put(hookRole(r), right(hookText(r.ChainView), 6))
	}
	l.gap(2).pieces(rateCell(r.ChainView)...)
	if c.bits {
		l.put(roleText, right(bitsCell(r.ChainView), 6))
	}
	if c.total {
		l.put(roleText, right(totalCell(r.ChainView), 8))
	}
	if c.graph > 0 {
		end := l.w + 2 + c.graph
		l.gap(2).pieces(s.graph(r.ChainView, c.graph)).to(end)
	}
	return l.to(s.stateColumn(l.w)).put(gradeRoles[r.grade], gradeSigns[r.grade]+" "+stateWord(r.State)).full()
}

// stateColumn is where the state stands when a row has used so many columns: at the border, or near the graph where the
// border is far away.
func (s *screen) stateColumn(used int) int { return min(s.inner()-stateWidth, used+4) }

func foundOf(c *incident.ChainView) string {
	if c.State == flannel.ChainUnreadable {
		return unknown
	}
	return fmt.Sprintf("%d/%d", c.Found, c.Wanted)
}

// hookText is the place of the jump in its base chain; a native chain is a base chain itself.
func hookText(c *incident.ChainView) string {
	switch {
	case c.State == flannel.ChainUnreadable:
		return unknown
	case c.Hook.Chain == "":
		return notApplicable
	case c.Hook.Position == 0:
		return "none"
	}
	return fmt.Sprintf("%d/%d", c.Hook.Position, c.Hook.Of)
}

func hookRole(r chainRow) role {
	if r.Hook.Chain != "" && r.Hook.Position == 0 && r.State != flannel.ChainUnreadable {
		return gradeRoles[min(r.grade, gradeWarn)]
	}
	return roleText
}

// rateCell is eight columns: the number in plain text, its unit dim.
func rateCell(c *incident.ChainView) []piece {
	switch {
	case !c.Counted:
		return []piece{{roleDim, right(notApplicable, 8)}}
	case !c.Rate.Known:
		return []piece{{roleDim, right(unknown, 8)}}
	}
	return []piece{{roleText, scaled(c.Rate.Packets)}, {roleDim, unitOf(c.ID) + "/s"}}
}

func bitsCell(c *incident.ChainView) string {
	switch {
	case !c.Counted || isNat(c.ID):
		return notApplicable
	case !c.Rate.Known:
		return unknown
	}
	return scaled(8 * c.Rate.Bytes)
}

func totalCell(c *incident.ChainView) string {
	if !c.Counted {
		return notApplicable
	}
	return count(c.Total.Packets) + unitOf(c.ID)
}

// graph draws the chain's rate. Its columns stand on whole multiples of their length: a bar moves on and never changes.
func (s *screen) graph(c *incident.ChainView, n int) piece {
	if !c.Counted {
		return piece{roleDim, "no counters"}
	}
	tick := int64(perTick(n))
	end := (s.view.Bucket/tick+1)*tick - 1
	unwatched := n - int(end/tick) - 1
	return piece{roleGraph, sparkline(c.History.Window(end, n, int(tick)), unwatched, s.ascii)}
}
