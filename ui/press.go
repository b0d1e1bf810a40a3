package ui

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
)

// intervals are the steps of the interval keys.
var intervals = []time.Duration{
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
	10 * time.Second, 30 * time.Second, time.Minute,
}

// press acts on a key.
func (m *model) press(msg tea.KeyPressMsg) tea.Cmd {
	defer m.tellFlows()
	key := msg.String()
	switch {
	case m.dialog != nil:
		return m.pressDialog(msg)
	case m.prompt != nil:
		return m.pressPrompt(key, msg.Text)
	case m.typing && m.edit(key, msg.Text):
		return nil
	}
	act, ok := actionOf(key, m.plays)
	if !ok {
		return nil
	}
	defer m.tellLook()
	if m.navigate(act) || m.choose(act) || m.play(act) {
		return nil
	}
	switch act {
	case actProbe:
		m.askProbe()
	case actQuit:
		return tea.Quit
	case actQuitKeep:
		m.redraw()
		m.lastKept = m.picture
		return tea.Quit
	case actSuspend:
		return tea.Suspend
	case actRedraw:
		return tea.ClearScreen
	case actCopy:
		return m.copy()
	case actExport:
		m.say(m.saved("screen", ansi.Strip(m.draw())+"\n"))
	case actTheme:
		m.theme = Themes[(slices.Index(Themes, m.theme)+1)%len(Themes)]
		m.paint()
		m.say("theme " + string(m.theme))
		return m.askBackground()
	case actPanels:
		m.toggle(panel(key[0] - '1'))
	case actRemedy:
		m.remedy()
	case actUndo:
		m.undo("")
	case actHistory:
		m.history()
	}
	return nil
}

// edit lets the filter take a key; it gives back false for those that keep their meaning while one types.
func (m *model) edit(key, text string) bool {
	filter := *m.filtered()
	switch key {
	case "enter":
		m.typing = false
	case "esc":
		m.typing = false
		m.setFilter("")
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(filter)
		m.setFilter(filter[:len(filter)-n])
	case "ctrl+u":
		m.setFilter("")
	case "ctrl+w":
		m.setFilter(filter[:strings.LastIndexByte(strings.TrimRight(filter, " "), ' ')+1])
	case "ctrl+c", "ctrl+z", "ctrl+l", "up", "down", "pgup", "pgdown":
		return false
	default:
		m.setFilter(filter + text)
	}
	return true
}

func (m *model) setFilter(f string) {
	*m.filtered(), m.dirty = f, true
}

// filtered is the filter of the page.
func (s *screen) filtered() *string {
	if s.page == pageFlows {
		return &s.flowFilter
	}
	return &s.filter
}

// navigate moves; it gives back false for other actions.
func (m *model) navigate(a action) bool {
	page := max(m.pageSize(), 1)
	const far = 1 << 30
	steps := map[action]int{actUp: -1, actDown: 1, actPageUp: -page, actPageDown: page, actTop: -far, actBottom: far}
	by, moves := steps[a]
	doc, text := m.document()
	switch {
	case !moves:
		return false
	case m.onLook():
		m.moveLook(by)
	case text:
		m.scroll = min(max(m.scroll+by, 0), max(len(doc.lines)-m.pageSize(), 0))
	case m.page == pageIncidents:
		m.incident.move(m.numbers(), by)
	case m.page == pageIncident:
		m.moveInIncident(by)
	case m.page == pageFlows:
		m.flow.move(flowKeys(m.flowRows()), by)
	case m.page == pagePaths:
		m.path.move(pathKeys(m.paths()), by)
	case m.page == pageFindings:
		m.finding.move(findingKeys(m.view.Findings), by)
	case m.page == pageHistory:
		m.receipt.move(receiptIDs(m.receipts), by)
	case m.page == pageLeftovers:
		m.leftover.move(leftoverKeys(m.leftoverRows()), by)
	case m.focus == panelChains:
		m.chains.move(idsOf(m.visible()), by)
		m.rule = 0
	case m.focus == panelRules:
		if c := m.current(); c != nil {
			m.rule = max(min(m.rule+by, len(c.Rules)-1), 0)
		}
	case m.focus == panelTimeline:
		m.event.move(keysOf(m.newestFirst()), by)
	}
	return true
}

// pageSize is how many rows of what has the focus are drawn.
func (m *model) pageSize() int {
	l := m.layout()
	switch {
	case m.page == pageFindings || m.page == pageLeftovers:
		return max(l.body/leastFinding, 1)
	case m.page == pageIncident:
		return l.body
	case m.page != pageDashboard:
		return l.body - 2
	case m.focus == panelTimeline:
		return l.events()
	}
	return l.rows[m.focus] - 1
}

// choose changes what is shown and how; it gives back false for other actions.
func (m *model) choose(a action) bool {
	switch a {
	case actHelp:
		m.turn(pageHelp)
	case actOpen:
		m.open()
	case actBack:
		m.back()
	case actLook:
		m.look()
	case actNextPanel:
		m.step(1)
	case actPrevPanel:
		m.step(int(panels) - 1)
	case actFilter:
		m.startFilter()
	case actSort:
		if m.page == pageFlows {
			m.flowOrder = (m.flowOrder + 1) % flowOrders
			break
		}
		m.order = (m.order + 1) % orders
	case actReverse:
		if m.page == pageFlows {
			m.flowReverse = !m.flowReverse
			break
		}
		m.reverse = !m.reverse
	case actPause:
		m.pause()
	case actSlower, actFaster:
		m.pace(a == actSlower)
	case actZoomIn, actZoomOut:
		m.zoomBy(on(a == actZoomOut, 2) - 1)
	case actIncidents:
		m.turn(pageIncidents)
	case actFindings:
		m.turn(pageFindings)
	case actFlows:
		m.turn(pageFlows)
	case actLeftovers:
		m.turn(pageLeftovers)
		if m.page == pageLeftovers && m.opt.Hunt != nil {
			m.opt.Hunt()
		}
	case actStepBack, actStepOn:
		m.stepCursor(on(a == actStepOn, 2) - 1)
	case actNextIncident, actPrevIncident:
		m.stepIncident(on(a == actNextIncident, 2) - 1)
	default:
		return false
	}
	return true
}

// startFilter gives the keys to the filter of the list of connections, or else to that of the chains.
func (m *model) startFilter() {
	m.typing = true
	if m.page == pageFlows {
		return
	}
	m.page, m.focus = pageDashboard, panelChains
	m.hidden[panelChains] = false
}

// turn shows a page, or leaves it if it is shown.
func (m *model) turn(p page) {
	if m.page == p {
		p = pageDashboard
	}
	m.page, m.scroll = p, 0
}

func (m *model) open() {
	switch {
	case m.page == pagePaths:
		m.openPath()
	case m.onLook():
		m.openLook()
	case m.view == nil:
	case m.page == pageIncidents && len(m.view.Incidents) > 0:
		m.incident.move(m.numbers(), 0) // a new one does not take its place
		m.turn(pageIncident)
		m.cursor, m.closer = 0, 0
	case m.page == pageHistory:
		if r := m.selectedReceipt(); r != nil {
			m.undo(r.ID)
		}
	case m.page == pageFindings && len(m.view.Findings) > 0:
		m.finding.move(findingKeys(m.view.Findings), 0)
		m.turn(pageFinding)
	case m.page != pageDashboard:
	case m.focus == panelTable:
		m.turn(pageFlows)
	case m.focus == panelTimeline && len(m.view.Events) > 0:
		m.turn(pageEvent)
	case m.focus != panelTimeline && m.current() != nil:
		m.turn(pageChain)
	}
}

func (m *model) back() {
	if m.onLook() {
		m.backLook()
		return
	}
	if m.page == pageFlows && m.flowFilter != "" {
		m.setFilter("")
		return
	}
	if m.page != pageDashboard {
		m.turn(parents[m.page])
		return
	}
	m.setFilter("")
}

// zoomBy takes one step closer (-1) or wider (1), on the timeline or in an incident.
func (m *model) zoomBy(by int) {
	if i := m.opened(); i != nil {
		fit := m.fittingZoom(i)
		m.closer = min(max(fit+m.closer+by, 0), len(incidentZooms)-1) - fit
		return
	}
	m.zoom = min(max(m.zoomLevel()+by, 0), len(zooms)-1)
}

// moveInIncident goes from one thing that happened to the next, or scrolls by more.
func (m *model) moveInIncident(by int) {
	if by == 1 || by == -1 {
		m.stepCursor(by)
		return
	}
	m.scroll = min(max(m.scroll+by, 0), max(len(m.incidentLines(m.pageSize()))-m.pageSize(), 0))
}

func (m *model) stepCursor(by int) {
	if i := m.opened(); i != nil {
		m.cursor = min(max(m.cursor+by, 0), max(len(m.happenings(i))-1, 0))
	}
}

// stepIncident opens the next or the previous incident in time.
func (m *model) stepIncident(by int) {
	if m.opened() == nil {
		return
	}
	was := m.incident.key
	m.incident.move(m.numbers(), -by)
	if m.incident.key == was {
		m.say("there is no other incident in that direction")
		return
	}
	m.cursor, m.closer, m.scroll = 0, 0, 0
}

// step gives the keys to another panel that is shown.
func (m *model) step(by int) {
	m.page = pageDashboard
	for range panels {
		m.focus = downwards[(slices.Index(downwards[:], m.focus)+by)%int(panels)]
		if !m.hidden[m.focus] {
			return
		}
	}
}

// toggle shows or hides a panel; the last one stays.
func (m *model) toggle(p panel) {
	shown := 0
	for _, h := range m.hidden {
		shown += on(!h, 1)
	}
	if !m.hidden[p] && shown == 1 {
		m.say("the last panel stays")
		return
	}
	m.hidden[p] = !m.hidden[p]
	if m.hidden[m.focus] {
		m.step(1)
	}
}

// pause holds the picture; views go on coming, and the newest is shown when it ends.
func (m *model) pause() {
	if m.view == nil {
		return
	}
	m.paused = !m.paused
	if !m.paused {
		m.view = m.newest
	}
}

func (m *model) pace(slower bool) {
	if m.interval == 0 {
		return
	}
	next := m.interval
	if slower {
		if i := slices.IndexFunc(intervals, func(d time.Duration) bool { return d > m.interval }); i >= 0 {
			next = intervals[i]
		}
	} else {
		for _, d := range intervals {
			if d < m.interval {
				next = d
			}
		}
	}
	if next == m.interval {
		return
	}
	m.interval = next
	m.opt.SetInterval(next)
	m.say("counters are read every " + period(next))
}

// copy puts what is selected on the clipboard. Terminals do not answer whether they took it; those known not to get a
// file as well.
func (m *model) copy() tea.Cmd {
	text := m.selected()
	if text == "" {
		m.say("nothing to copy")
		return nil
	}
	return m.clip("copy", text)
}

// clip puts text on the clipboard, and into a file as well where the terminal is known not to take it.
func (m *model) clip(what, text string) tea.Cmd {
	if m.opt.silentClipboard() {
		m.say("this terminal may not take it; " + m.saved(what, text))
	} else {
		m.say(what + " copied to the terminal's clipboard")
	}
	return tea.SetClipboard(text)
}

// selected is what has the keys, as text.
func (m *model) selected() string {
	var b strings.Builder
	doc, text := m.document()
	switch {
	case m.view == nil:
	case m.page == pagePaths:
		return m.pathCopy()
	case m.onLook():
		return m.lookCopy()
	case m.page == pageFlows:
		return m.flowCopy()
	case m.page == pageIncidents || m.page == pageIncident:
		return m.incidentReport()
	case m.page == pageHistory:
		return m.historyCopy()
	case m.page == pageFindings:
		if f := m.selectedFinding(); f != nil {
			return textOf(m.findingText(f))
		}
	case m.page == pageLeftovers:
		if r := m.selectedLeftover(); r != nil {
			return textOf(m.leftoverText(r))
		}
	case m.page == pageEvent:
		if e := m.selectedEvent(); e != nil {
			return eventLine(e, m.loc) + "\n"
		}
	case text:
		return textOf(doc)
	case m.focus == panelTimeline:
		if e := m.selectedEvent(); e != nil {
			return eventLine(e, m.loc) + "\n"
		}
	case m.current() == nil:
	case m.focus == panelRules:
		if c := m.current(); m.rule < len(c.Rules) {
			return "-A " + clean(c.ID.Name) + " " + ruleText(c.Rules[m.rule].Rule, c.ID) + "\n"
		}
	default:
		c := m.current()
		b.WriteString("# " + clean(c.ID.String()) + ": " + string(c.State) + ", " + foundOf(c) + " wanted rules found\n")
		for i := range c.Rules {
			b.WriteString(ruleCopy(c.ID, &c.Rules[i]) + "\n")
		}
	}
	return b.String()
}

// textOf gives the lines of a box as text.
func textOf(b box) string {
	var out strings.Builder
	for _, l := range b.lines {
		out.WriteString(strings.TrimRight(ansi.Strip(l), " ") + "\n")
	}
	return out.String()
}

// ruleCopy is a rule with a sign in front where it is not as wanted.
func ruleCopy(id flannel.ChainID, r *incident.RuleView) string {
	sign, _, _ := ruleMark(r)
	return left(sign, 3) + ruleText(r.Rule, id)
}
