package ui

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
)

// model is the one Bubble Tea model. It keeps the screen, and the picture last drawn: Bubble Tea asks for a view after
// every message, and most messages change nothing.
type model struct {
	screen
	opt     Options
	ctx     context.Context
	profile colorprofile.Profile
	theme   Theme
	dark    bool // the terminal's background, as far as it said

	wishes int // asked so far

	trying   bool   // a connection was asked for, and how it ended is not told yet
	attempts int    // to connect, when it was asked for
	tried    string // what was typed for it

	newest  *incident.View // what came last; differs from view while paused
	arrived time.Time      // when it came
	flashed time.Time

	reading   bool // the watcher was told that somebody reads the list of connections
	looking   bool // what the watcher was told of, see tellLook
	lookingAt flannel.ChainID

	picture  string
	drawn    time.Time
	dirty    bool
	draws    int    // pictures made, for tests
	lastKept string // the picture that Q leaves behind
}

func newModel(ctx context.Context, o Options) *model {
	m := &model{opt: o, ctx: ctx, theme: o.Theme, dark: true, profile: o.profile(), dirty: true}
	m.screen = screen{
		mode: o.Mode, detail: o.Detail, readOnly: o.ReadOnly, ascii: o.ASCII, loc: o.Location,
		zoom: autoZoom,
	}
	m.looks, m.listens = o.Look != nil, o.Flows != nil
	m.probes, m.tried = o.Probe != nil, o.Probed
	m.remedies, m.plays = o.Ask != nil && o.Answers != nil, o.Player != nil
	if o.SetInterval != nil {
		m.interval = o.Interval
	}
	m.arrived = o.Clock()
	m.paint()
	return m
}

type tickMsg struct{}

// Init waits for the first view, asks the terminal for its background and starts the clock.
func (m *model) Init() tea.Cmd {
	return tea.Batch(m.nextView(), m.nextAnswer(), m.askBackground(), m.tick(rest))
}

func (m *model) nextView() tea.Cmd {
	return m.opt.Mailbox.wait(m.ctx, func(v *incident.View) tea.Msg { return viewMsg{v} })
}

func (m *model) nextAnswer() tea.Cmd {
	if m.opt.Answers == nil {
		return nil
	}
	return m.opt.Answers.wait(m.ctx, func(a Answer) tea.Msg { return answerMsg{a} })
}

// askBackground asks the terminal how bright it is, where the theme depends on it.
func (m *model) askBackground() tea.Cmd {
	if m.theme != ThemeAuto {
		return nil
	}
	return tea.RequestBackgroundColor
}

func (m *model) tick(d time.Duration) tea.Cmd {
	return tea.Tick(d, func(time.Time) tea.Msg { return tickMsg{} })
}

// Update takes one message.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height, m.dirty = msg.Width, msg.Height, true
	case tea.ColorProfileMsg:
		m.profile, m.dirty = min(msg.Profile, m.opt.profile()), true
		m.paint()
	case tea.BackgroundColorMsg:
		m.dark, m.dirty = msg.IsDark(), true
		m.paint()
	case tea.ResumeMsg:
		m.dirty = true
	case viewMsg:
		m.receive(msg.view)
		return m, m.nextView()
	case answerMsg:
		m.answered(msg.answer)
		return m, m.nextAnswer()
	case tickMsg:
		return m, m.clockTick()
	case tea.PasteMsg:
		switch {
		case m.dialog != nil:
			m.pasted()
		case m.typing:
			m.setFilter(*m.filtered() + strings.Join(strings.Fields(msg.Content), " "))
		}
	case tea.KeyPressMsg:
		m.dirty = true
		return m, m.press(msg)
	}
	return m, nil
}

// View gives the picture, made anew only if something in it changed.
func (m *model) View() tea.View {
	if m.dirty && m.width > 0 {
		m.redraw()
	}
	v := tea.NewView(m.picture)
	v.AltScreen = true
	return v
}

func (m *model) redraw() {
	now := m.opt.Clock()
	m.old = now.Sub(m.arrived)
	if m.paused {
		m.behind = m.newest.Now.Sub(m.view.Now) + m.old
	}
	if m.flash != "" && now.Sub(m.flashed) >= flashTime {
		m.flash = ""
	}
	if m.opt.Status != nil {
		m.status = clean(m.opt.Status())
	}
	m.picture, m.drawn, m.dirty = m.draw(), now, false
	m.draws++
}

// rest is the least time between two pictures when nothing but numbers changed.
const rest = time.Second

// flashTime is how long a word about what was just done stays.
const flashTime = 6 * time.Second

// receive takes a view. It is drawn at once when something happened, else with the next picture.
func (m *model) receive(v *incident.View) {
	before := m.newest
	m.newest, m.arrived = v, m.opt.Clock()
	m.askAgain()
	if m.paused {
		return
	}
	m.view = v
	m.chains.follow(idsOf(m.visible()))
	m.bases.follow(basesIDs(m.baseRows()))
	m.event.follow(keysOf(m.newestFirst()))
	m.incident.follow(m.numbers())
	m.finding.follow(findingKeys(v.Findings))
	if m.page == pageFlows {
		m.flow.follow(flowKeys(m.flowRows()))
	}
	m.leftover.follow(leftoverKeys(m.leftoverRows()))
	m.tellProbe()
	// A tenth of grace: views at the same pace as pictures must not miss theirs by a hair.
	if before == nil || m.opt.Player != nil || happened(before, v) || m.arrived.Sub(m.drawn) >= rest-rest/10 {
		m.dirty = true
	}
}

// happened tells whether a view differs from the one before in more than numbers.
func happened(a, b *incident.View) bool {
	if len(a.Events) != len(b.Events) || len(a.Chains) != len(b.Chains) || len(a.Findings) != len(b.Findings) ||
		len(a.Leftovers) != len(b.Leftovers) || len(a.Faults) != len(b.Faults) || len(a.Incidents) != len(b.Incidents) || len(a.Backends) != len(b.Backends) || a.Flannel.State != b.Flannel.State {
		return true
	}
	if lookChanged(a, b) || a.Table.Flows.At != b.Table.Flows.At || a.Table.Health.State != b.Table.Health.State {
		return true
	}
	if n := len(a.Events); n > 0 && keyOf(&a.Events[n-1]) != keyOf(&b.Events[n-1]) {
		return true
	}
	for i := range a.Chains {
		if a.Chains[i].ID != b.Chains[i].ID || a.Chains[i].State != b.Chains[i].State || a.Chains[i].Found != b.Chains[i].Found {
			return true
		}
	}
	return slices.ContainsFunc(b.Backends, func(x incident.BackendView) bool {
		return !slices.ContainsFunc(a.Backends, func(y incident.BackendView) bool { return x.Backend == y.Backend && x.State == y.State })
	})
}

// clockTick draws a picture when none was drawn for a while, so that what counts up goes on and what grows old shows it.
// Where views come once a second they do it; the clock then stays a little behind them and does nothing.
func (m *model) clockTick() tea.Cmd {
	wait := rest
	if m.interval > 0 && m.interval <= rest {
		wait += rest / 4
	}
	since := m.opt.Clock().Sub(m.drawn)
	if since >= wait {
		m.dirty = m.mode != ModeReplay || m.flash != "" || m.paused || m.view == nil
		return m.tick(wait)
	}
	return m.tick(wait - since)
}

// paint makes the palette of the theme.
func (m *model) paint() {
	t := m.theme
	if t == ThemeAuto {
		t = ThemeDark
		if !m.dark {
			t = ThemeLight
		}
	}
	m.pal = newPalette(t, m.profile)
}

func (m *model) say(text string) {
	m.flash, m.flashed, m.dirty = text, m.opt.Clock(), true
}

// saved writes text to a new file and tells where.
func (m *model) saved(what, text string) string {
	f, err := os.CreateTemp(m.opt.Dir, "flanwatch-"+m.opt.Clock().UTC().Format("20060102T150405Z")+"-*.txt")
	if err != nil {
		return "cannot write " + what + ": " + clean(err.Error())
	}
	_, err = f.WriteString(text)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return "cannot write " + what + ": " + clean(err.Error())
	}
	return what + " written to " + clean(f.Name())
}
