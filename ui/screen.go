package ui

import (
	"slices"
	"strings"
	"time"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/remediate"
	"flanwatch/watcher/incident"
)

// Mode says where the views come from.
type Mode string

// The modes. In the first two a picture grows old when no new view comes.
const (
	ModeLive   Mode = "LIVE"
	ModeDemo   Mode = "DEMO"
	ModeReplay Mode = "REPLAY"
)

// panel is one of the boxes of the dashboard.
type panel uint8

const (
	panelChains panel = iota
	panelRules
	panelTimeline
	panelTable
	panels
)

// page is what fills the space between banner and footer.
type page uint8

const (
	pageDashboard page = iota
	pageHelp
	pageChain     // one chain with its rules in full
	pageEvent     // one event in full
	pageIncidents // all incidents, and totals
	pageIncident  // one of them
	pageFindings  // all findings
	pageFinding   // one of them in full
	pageLeftovers // what Flannel left
	pagePaths     // what becomes of typical packets, and why
	pageBases     // the base chains of every backend
	pageOpened    // one chain of them, or reached from one
	pageHistory   // plans that were carried out
	pageFlows     // connections that are not as they should be
)

// parents are the pages that one comes back to from those that were not opened on the dashboard.
var parents = map[page]page{pageIncident: pageIncidents, pageFinding: pageFindings}

// screen is everything a picture is made of. Its draw method is a function of it and of nothing else.
type screen struct {
	width, height int
	pal           *palette
	ascii         bool
	loc           *time.Location

	mode     Mode
	detail   string // what is replayed, or which scenario plays
	status   string // one line about recording
	readOnly bool
	interval time.Duration // 0 where it cannot be changed

	view   *incident.View // nil before the first
	old    time.Duration  // time since the view came
	paused bool
	behind time.Duration // of a paused picture

	page   page
	scroll int // first line of a page
	focus  panel
	hidden [panels]bool
	chains selection[flannel.ChainID]
	rule   int // selected line of the rules panel
	event  selection[eventKey]

	incident selection[int] // by number
	cursor   int            // what of it the keys are on
	closer   int            // how many steps its zoom is wider than the one that fits it
	finding  selection[findingKey]
	leftover selection[leftoverKey]

	flow        selection[conntrack.Key]
	flowFilter  string
	flowOrder   flowOrder
	flowReverse bool
	listens     bool // somebody looks at connections while the list is open

	filter  string
	typing  bool // the filter of the page has the keys
	order   order
	reverse bool
	looks   bool // base chains can be looked at
	path    selection[pathKey]
	bases   selection[flannel.ChainID]
	trail   []visit // the chains opened one from the other
	zoom    int     // index into zooms, or autoZoom
	flash   string

	fromPaths bool // the first chain of the trail was opened from a path

	remedies bool // plans can be made
	plays    bool // it is a recording that can be played
	dialog   *dialog
	receipts []remediate.Receipt // as of the last look
	receipt  selection[string]   // by ID
	prompt   *prompt             // a line that is being typed, nil if none is
	probes   bool                // connections can be tried from a pod
}

// Smallest size at which something useful can be drawn.
const (
	minWidth  = 60
	minHeight = 15
)

// draw gives the picture: height lines of exactly width columns.
func (s *screen) draw() string {
	if s.width <= 0 || s.height <= 0 {
		return ""
	}
	out := strings.Join(s.lines(), "\n")
	if s.ascii {
		return toASCII(out)
	}
	return out
}

func (s *screen) lines() []string {
	if s.width < minWidth || s.height < minHeight {
		return s.tooSmall()
	}
	l := s.layout()
	body := s.body(l)
	if s.dialog != nil {
		body = s.cover(body)
	}
	out := append([]string{s.header(), s.topLine()}, body...)
	if l.status {
		out = append(out, s.statusLine())
	}
	return append(out, s.footer())
}

// topLine is the one sentence on top: about the node, or about the incident that is looked at.
func (s *screen) topLine() string {
	if i := s.opened(); i != nil {
		return s.incidentBanner(i)
	}
	return s.banner()
}

// body draws what stands between the top line and the last lines.
func (s *screen) body(l layout) []string {
	if b, ok := s.document(); ok {
		return s.text(b, l.body)
	}
	switch s.page {
	case pagePaths:
		return s.frame(s.pathsPage(l.body-2), l.body-2, true, false)
	case pageBases, pageOpened:
		return s.frame(s.lookBox(l.body-2), l.body-2, true, false)
	case pageIncidents:
		return s.incidentsPage(l.body)
	case pageIncident:
		return s.incidentPage(l.body)
	case pageFindings:
		return s.findingsPage(l.body)
	case pageHistory:
		return s.historyPage(l.body)
	case pageFlows:
		return s.flowsPage(l.body)
	case pageLeftovers:
		return s.leftoversPage(l.body)
	}
	return s.dashboard(l)
}

// document is the page of text that is shown, and false if something else is.
func (s *screen) document() (box, bool) {
	switch {
	case s.page == pageHelp:
		return s.helpPage(), true
	case s.view == nil:
		return s.notice(), true
	case s.page == pageFinding:
		return s.findingPage(), true
	case s.page == pageIncidents || s.page == pageIncident || s.page == pageFindings || s.page == pageHistory || s.page == pageFlows ||
		s.page == pageLeftovers || s.onLook():
		return box{}, false // what was seen stays there to be read
	case s.blind() || s.noFlannel():
		return s.notice(), true
	case s.page == pageChain:
		return s.chainPage(), true
	case s.page == pageEvent:
		return s.eventPage(), true
	}
	return box{}, false
}

// dashboard stacks the panels that are shown.
func (s *screen) dashboard(l layout) []string {
	var out []string
	draw := [panels]func(layout) box{
		panelChains: s.chainsPanel, panelRules: s.rulesPanel, panelTable: s.tablePanel, panelTimeline: s.timelinePanel,
	}
	for _, p := range downwards {
		switch {
		case p == panelTable && l.strip:
			out = append(out, s.tableStrip(l.first == p))
		case p == panelRules && l.beside:
			out = append(out, s.rulesAndTable(l)...)
		case l.rows[p] > 0 && (p != panelTable || !l.beside):
			out = append(out, s.frame(draw[p](l), l.rows[p], l.first == p, l.joined)...)
		}
	}
	if l.joined {
		out = append(out, s.bottom())
	}
	return out
}

// rulesAndTable draws the two panels side by side.
func (s *screen) rulesAndTable(l layout) []string {
	r := s.narrow(s.tableWidth())
	rules := s.narrow(s.width - r.width)
	out := rules.frame(rules.rulesPanel(l), l.rows[panelRules], true, false)
	for n, text := range r.frame(r.tablePanel(l), l.rows[panelRules], true, false) {
		out[n] += text
	}
	return out
}

func (s *screen) tooSmall() []string {
	out := make([]string, s.height)
	for i := range out {
		l := s.line()
		if i == s.height/2 {
			l.gap(max(0, (s.width-35)/2)).put(roleText, "flanwatch needs 60x15 characters")
		}
		out[i] = l.full()
	}
	return out
}

func (s *screen) line() *line { return &line{pal: s.pal, max: s.width} }

// several tells whether more than one backend holds rules of Flannel; only then is the backend worth a column.
func (s *screen) several() bool {
	return s.view != nil && len(s.view.Chains) > 0 &&
		slices.ContainsFunc(s.view.Chains, func(c incident.ChainView) bool { return c.ID.Backend != s.view.Chains[0].ID.Backend })
}

var backendShort = map[flannel.Backend]string{flannel.IptablesNft: "nft", flannel.IptablesLegacy: "legacy", flannel.Nftables: "native"}

// chainName names a chain as this screen has to.
func (s *screen) chainName(id flannel.ChainID) string {
	name := clean(id.Short())
	if s.several() {
		return backendShort[id.Backend] + " " + name
	}
	return name
}

// ago is how long before the picture's moment t was, counting on while no new view comes.
func (s *screen) ago(t flannel.Time) time.Duration { return s.view.Now.Sub(t) + s.extra() }

// extra is how much the clock went on since the view was made; a paused or replayed picture stands still.
func (s *screen) extra() time.Duration {
	if s.paused || s.mode == ModeReplay {
		return 0
	}
	return s.old
}

// stale tells whether views have stopped coming.
func (s *screen) stale() bool {
	return s.mode != ModeReplay && !s.paused && s.old > max(3*s.interval, 3*time.Second)
}
