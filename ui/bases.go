package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// visit is a chain that was opened, with the selected rule.
type visit struct {
	id   flannel.ChainID
	line int
}

// onLook tells whether a page shows what is read only while somebody looks at it.
func (s *screen) onLook() bool { return s.page == pageBases || s.page == pageOpened }

// lookBox is the page of base chains, or of an opened chain, in so many rows.
func (s *screen) lookBox(rows int) box {
	if s.page == pageBases {
		return s.basesPage(rows)
	}
	return s.openedPage(rows)
}

// hookRank is the order in which a packet can pass the hooks.
var hookRank = map[string]int{"ingress": 1, "prerouting": 2, "input": 3, "forward": 4, "output": 5, "postrouting": 6}

// baseRows gives all base chains as a packet of each family would meet them: by hook, then by priority.
func (s *screen) baseRows() []incident.Base {
	if s.view == nil {
		return nil
	}
	var rows []incident.Base
	for _, b := range s.view.Bases {
		rows = append(rows, b.Chains...)
	}
	slices.SortStableFunc(rows, func(a, b incident.Base) int {
		return cmp.Or(cmp.Compare(a.ID.Family, b.ID.Family), cmp.Compare(hookRank[a.Hook], hookRank[b.Hook]),
			cmp.Compare(a.Priority, b.Priority), a.ID.Compare(b.ID))
	})
	return rows
}

func basesIDs(rows []incident.Base) []flannel.ChainID {
	ids := make([]flannel.ChainID, len(rows))
	for i := range rows {
		ids[i] = rows[i].ID
	}
	return ids
}

// basesPage lists every base chain:
//
//	╭─ Base chains 12 ─────────────────────────────────────────────────────────────╮
//	│  FAM HOOK         PRIO BACKEND TABLE   CHAIN        RULES POLICY    DECIDED   │
//	│▸ v4  postrouting  -150 nft     mangle  POSTROUTING      2 accept     18.4kp   │
//	│  v4  postrouting   100 legacy  nat     POSTROUTING      5 accept      311 c   │
func (s *screen) basesPage(rows int) box {
	list := s.baseRows()
	b := box{title: fmt.Sprintf("Base chains %d", len(list)), info: "in a packet's order", focused: true}
	notes := s.basesNotes()
	if len(s.view.Bases) == 0 {
		b.lines = append(b.lines, s.lookNote(s.readingNote()))
		return b
	}
	table, name := 6, 11
	for _, c := range list {
		table, name = max(table, min(width(clean(c.ID.Table)), 20)), max(name, min(width(clean(c.ID.Name)), 28))
	}
	name = max(min(name, s.inner()-2-4-12-6-8-table-1-1-6-8-9-1), 6)
	b.lines = append(b.lines, s.innerLine(groundPlain).gap(2).put(roleDim, "FAM "+left("HOOK", 12)+right("PRIO", 5)+" "+
		left("BACKEND", 8)+left("TABLE", table+1)+left("CHAIN", name+1)+right("RULES", 6)+"  "+left("POLICY", 6)+right("DECIDED", 9)).full())
	height := max(rows-1-len(notes), 1)
	at := s.bases.index(basesIDs(list))
	for i := window(len(list), height, at); i < len(list) && height > 0; i, height = i+1, height-1 {
		b.lines = append(b.lines, s.baseLine(&list[i], table, name, i == at))
	}
	if len(list) == 0 {
		b.lines = append(b.lines, s.lookNote("there are none"))
	}
	b.lines = append(b.lines, notes...)
	return b
}

func (s *screen) baseLine(c *incident.Base, table, name int, selected bool) string {
	l, strong := s.lookLine(selected)
	l.put(roleText, c.ID.Family.Short()+"  "+left(c.Hook, 12)+right(fmt.Sprint(c.Priority), 5)+" "+left(backendShort[c.ID.Backend], 8))
	l.put(roleText, left(clean(c.ID.Table), table)+" ").put(strong, left(clean(c.ID.Name), name)+" ")
	l.put(roleText, right(fmt.Sprint(c.Rules), 6)).gap(2)
	as := roleText
	if c.Policy == "drop" {
		as = roleStrong
	}
	l.put(as, left(cmp.Or(c.Policy, unknown), 6))
	if !c.Counted {
		return l.put(roleDim, right(notApplicable, 9)).full()
	}
	return l.put(roleText, right(count(c.Counter.Packets)+packetsOr(c.Type == "nat"), 9)).full()
}

// basesNotes says what is missing from the list.
func (s *screen) basesNotes() []string {
	var notes []string
	for _, b := range s.view.Bases {
		switch {
		case b.State == flannel.Unreadable:
			text := b.Backend.String() + " cannot be read: " + clean(b.Why)
			notes = append(notes, s.innerLine(groundPlain).gap(2).put(roleBad, text).full())
		case b.State == flannel.Absent:
			notes = append(notes, s.lookNote(b.Backend.String()+": "+clean(b.Why)))
		case b.More > 0:
			notes = append(notes, s.lookNote(fmt.Sprintf("%s has %d more, which are not listed", b.Backend, b.More)))
		}
	}
	return notes
}

func (s *screen) lookNote(text string) string {
	return s.innerLine(groundPlain).gap(2).put(roleDim, text).full()
}

func (s *screen) readingNote() string {
	if s.paused {
		return "the picture is paused; p lets it go on"
	}
	return "reading"
}

// lookLine begins a row that can be selected, and gives the role of what it is about.
func (s *screen) lookLine(selected bool) (*line, role) {
	l := s.innerLine(groundPlain)
	if !selected {
		return l.gap(2), roleText
	}
	l.ground = groundSelect
	return l.put(roleFocus, "▸ "), roleStrong
}

func packetsOr(connections bool) string {
	if connections {
		return "c"
	}
	return "p"
}

// openedChain is the chain that the page is about, nil where it was not read yet.
func (s *screen) openedChain() *incident.OpenedView {
	if s.view == nil || s.view.Opened == nil || len(s.trail) == 0 || s.view.Opened.ID != s.trail[len(s.trail)-1].id {
		return nil
	}
	return s.view.Opened
}

// openedPage shows the rules of a chain with their counters, and the selected one in full, as iptables-save -c would:
//
//	╭─ v4 mangle POSTROUTING ───────────────────────── nft · postrouting -150 · policy accept 18.4kp ─╮
//	│    #     RATE    TOTAL  BYTES  RULE                                                              │
//	│▸   1   12 p/s   18.4kp  1.20M  -s 10.1.0.0/16 -j EXTRA                                           │
func (s *screen) openedPage(rows int) box {
	last := s.trail[len(s.trail)-1]
	b := box{title: s.trailTitle(), info: backendShort[last.id.Backend], focused: true}
	c := s.openedChain()
	if c == nil {
		b.lines = append(b.lines, s.lookNote(s.readingNote()))
		return b
	}
	if c.Base != nil {
		b.info += fmt.Sprintf(" · %s %d · policy %s", c.Base.Hook, c.Base.Priority, cmp.Or(c.Base.Policy, unknown))
		if c.Base.Counted {
			b.info += " " + strings.TrimSpace(count(c.Base.Counter.Packets)) + packetsOr(s.countsConnections(c.ID))
		}
	}
	detail := s.openedDetail(c, last.line)
	b.lines = append(b.lines, s.innerLine(groundPlain).gap(2).put(roleDim, right("#", 4)+right("RATE", 9)+right("TOTAL", 9)+
		right("BYTES", 8)+"  RULE").full())
	height := max(rows-1-len(detail), 1)
	at := min(last.line, len(c.Rules)-1)
	for i := window(len(c.Rules), height, max(at, 0)); i < len(c.Rules) && height > 0; i, height = i+1, height-1 {
		b.lines = append(b.lines, s.openedLine(c, i, i == at))
	}
	for ; height > 0; height-- {
		b.lines = append(b.lines, s.innerLine(groundPlain).full())
	}
	b.lines = append(b.lines, detail...)
	return b
}

// trailTitle names the chain and those that led to it.
func (s *screen) trailTitle() string {
	title := clean(s.trail[0].id.Short())
	for _, v := range s.trail[1:] {
		title += " → " + clean(v.id.Name)
	}
	return title
}

func (s *screen) openedLine(c *incident.OpenedView, i int, selected bool) string {
	r := &c.Rules[i]
	l, strong := s.lookLine(selected)
	l.put(roleDim, right(fmt.Sprint(i+1), 4)).gap(1)
	unit := packetsOr(s.countsConnections(c.ID))
	switch {
	case !r.Counted:
		l.put(roleDim, right(notApplicable, 8)+right(notApplicable, 9)+right(notApplicable, 8))
	default:
		if r.Rate.Known {
			l.put(roleText, scaled(r.Rate.Packets)).put(roleDim, unit+"/s")
		} else {
			l.put(roleDim, right(unknown, 8))
		}
		l.put(roleText, right(count(r.Counter.Packets)+unit, 9)+right(count(r.Counter.Bytes), 8))
	}
	return l.gap(2).put(strong, ruleText(uncommented(r.Rule), c.ID)).full()
}

// uncommented leaves out comments, which would push what a rule does off the edge. The selected rule is shown with them.
func uncommented(r flannel.Rule) flannel.Rule {
	r.Matches = slices.DeleteFunc(slices.Clone(r.Matches), func(m flannel.Match) bool { return m.Kind == flannel.MatchComment })
	return r
}

// openedDetail says what the rows cannot: what is wrong, what was left out, and the selected rule in full.
func (s *screen) openedDetail(c *incident.OpenedView, at int) []string {
	var out []string
	switch {
	case c.State != flannel.Known && c.State != flannel.Absent:
		out = append(out, s.innerLine(groundPlain).gap(2).put(roleBad, "cannot be read: "+clean(c.Why)).full())
	case c.State == flannel.Absent:
		out = append(out, s.lookNote(clean(c.Why)))
	case len(c.Rules) == 0:
		out = append(out, s.lookNote("no rules"))
	}
	if c.More > 0 {
		out = append(out, s.lookNote(fmt.Sprintf("%d more rules, which are not listed", c.More)))
	}
	if at = min(at, len(c.Rules)-1); at < 0 {
		return out
	}
	for i, text := range wrap(savedRule(c, at), s.inner()-4) {
		if i == 4 {
			break
		}
		out = append(out, s.innerLine(groundPlain).gap(2).put(roleText, text).full())
	}
	return out
}

// savedRule is a rule as iptables-save -c writes it, with its counters to the last packet.
func savedRule(c *incident.OpenedView, i int) string {
	r := &c.Rules[i]
	text := "-A " + clean(c.ID.Name) + " " + ruleText(r.Rule, c.ID)
	if !r.Counted {
		return text
	}
	return fmt.Sprintf("[%d:%d] %s", r.Counter.Packets, r.Counter.Bytes, text)
}

// countsConnections tells whether the rules of an opened chain see only the first packet of each connection, as all do
// that are reached from a base chain of the type nat.
func (s *screen) countsConnections(id flannel.ChainID) bool {
	if len(s.trail) > 0 {
		for _, b := range s.view.Bases {
			for i := range b.Chains {
				if b.Chains[i].ID == s.trail[0].id {
					return b.Chains[i].Type == "nat"
				}
			}
		}
	}
	return isNat(id)
}

// look shows the paths, then the base chains where they can be looked at, and then leaves them.
func (m *model) look() {
	switch {
	case m.page == pagePaths && m.looks:
		m.turn(pageBases)
	case m.page == pagePaths, m.onLook():
		m.turn(pageDashboard)
	default:
		m.turn(pagePaths)
	}
}

// moveLook moves the selection of the page.
func (m *model) moveLook(by int) {
	if m.page == pageBases {
		m.bases.move(basesIDs(m.baseRows()), by)
		return
	}
	if c := m.openedChain(); c != nil {
		v := &m.trail[len(m.trail)-1]
		v.line = max(min(v.line+by, len(c.Rules)-1), 0)
	}
}

// openLook opens the selected base chain, or the chain that the selected rule jumps to.
func (m *model) openLook() {
	if m.page == pageBases {
		if ids := basesIDs(m.baseRows()); len(ids) > 0 {
			m.page, m.trail, m.fromPaths = pageOpened, []visit{{id: ids[m.bases.index(ids)]}}, false
		}
		return
	}
	c := m.openedChain()
	if c == nil || len(c.Rules) == 0 {
		return
	}
	to := c.Rules[min(m.trail[len(m.trail)-1].line, len(c.Rules)-1)].Rule.Target
	if to.Kind != flannel.TargetJump && to.Kind != flannel.TargetGoto {
		m.say("this rule leads to no chain")
		return
	}
	next := c.ID
	next.Name = to.Chain
	m.trail = append(m.trail, visit{id: next})
}

// backLook goes back one chain, then to the list, then to the dashboard.
func (m *model) backLook() {
	switch {
	case m.page == pageBases:
		m.turn(pageDashboard)
	case len(m.trail) > 1:
		m.trail = m.trail[:len(m.trail)-1]
	case m.fromPaths:
		m.page = pagePaths
	default:
		m.page = pageBases
	}
}

// tellLook lets the watcher know what somebody looks at now, if that has changed.
func (m *model) tellLook() {
	var id flannel.ChainID
	if m.page == pageOpened {
		id = m.trail[len(m.trail)-1].id
	}
	if m.opt.Look == nil || m.onLook() == m.looking && id == m.lookingAt {
		return
	}
	m.looking, m.lookingAt = m.onLook(), id
	if id == (flannel.ChainID{}) {
		m.opt.Look(m.looking, nil)
		return
	}
	m.opt.Look(true, &id)
}

// lookCopy is what is selected on the page, as text.
func (m *model) lookCopy() string {
	if m.page == pageBases {
		rows := m.baseRows()
		i := m.bases.index(basesIDs(rows))
		if i < 0 {
			return ""
		}
		c := &rows[i]
		text := fmt.Sprintf("%s: type %s hook %s priority %d; policy %s; %d rules", clean(c.ID.String()), clean(c.Type), c.Hook,
			c.Priority, cmp.Or(c.Policy, unknown), c.Rules)
		if c.Counted {
			text += fmt.Sprintf(" [%d:%d]", c.Counter.Packets, c.Counter.Bytes)
		}
		return text + "\n"
	}
	if c := m.openedChain(); c != nil && len(c.Rules) > 0 {
		return savedRule(c, min(m.trail[len(m.trail)-1].line, len(c.Rules)-1)) + "\n"
	}
	return ""
}

// lookChanged tells whether what somebody looks at differs in more than numbers.
func lookChanged(a, b *incident.View) bool {
	if len(a.Bases) != len(b.Bases) || (a.Opened == nil) != (b.Opened == nil) {
		return true
	}
	was, is := a.Opened, b.Opened
	return is != nil && (was.ID != is.ID || was.State != is.State || len(was.Rules) != len(is.Rules))
}
