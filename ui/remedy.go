package ui

import (
	"slices"
	"strings"
	"time"

	"flanwatch/flannel"
	"flanwatch/remediate"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"

	tea "charm.land/bubbletea/v2"
)

// concern is what a remedy is wanted for.
type concern struct {
	chains  []flannel.ChainID
	prefer  remediate.Kind
	unstick bool   // connections are what is wrong, not rules
	other   string // the command that helps where no plan does
}

// concerned is what the page is about: its finding, its incident, its chain; on the dashboard what the banner is about,
// else the selected chain.
func (s *screen) concerned() concern {
	switch s.page {
	case pageFlows:
		return concern{unstick: true}
	case pageFinding, pageFindings:
		return aboutFinding(s.selectedFinding())
	case pageIncident, pageIncidents:
		if i := s.selectedIncident(); i != nil {
			return concern{chains: i.Objects()}
		}
	case pageDashboard:
		if f := worst(s.view.Findings); f != nil {
			return aboutFinding(f)
		}
	}
	if c := s.current(); c != nil {
		return concern{chains: []flannel.ChainID{c.ID}}
	}
	return concern{}
}

func aboutFinding(f *diagnose.Finding) (c concern) {
	if f == nil {
		return c
	}
	if f.Chain != (flannel.ChainID{}) {
		c.chains = []flannel.ChainID{f.Chain}
	}
	switch f.Remedy {
	case string(remediate.KindReapply), string(remediate.KindPurge):
		c.prefer = remediate.Kind(f.Remedy)
	case string(remediate.KindUnstick):
		c.unstick = true
	case "", diagnose.RemedyNone:
	default:
		c.other = f.Remedy
	}
	return c
}

// ask hands a wish over under a new number.
func (m *model) ask(w Wish) {
	m.wishes++
	w.Number = m.wishes
	if m.dialog != nil {
		m.dialog.wish, m.dialog.answered = w, false
	}
	m.opt.Ask(w)
}

// begin opens a dialog with a wish.
func (m *model) begin(w Wish) {
	w.Opened = m.opt.Clock()
	m.dialog = &dialog{}
	m.ask(w)
}

// remedy opens the dialog for what the page is about.
func (m *model) remedy() {
	if !m.remedies || m.view == nil {
		m.say("no remedies here")
		return
	}
	c := m.concerned()
	if c.other != "" {
		m.say("what helps here is: flanwatch " + c.other)
		return
	}
	if c.unstick {
		m.begin(Wish{Do: DoMake, Kind: remediate.KindUnstick})
		return
	}
	m.begin(Wish{Do: DoOffer, Chains: c.chains, Kind: c.prefer})
}

// undo opens the plan that takes a receipt back, the last one if none is named.
func (m *model) undo(receipt string) {
	if !m.remedies || m.plays {
		m.say("no remedies here")
		return
	}
	m.begin(Wish{Do: DoMake, Kind: remediate.KindUndo, Receipt: receipt})
}

// history shows what was carried out here.
func (m *model) history() {
	if !m.remedies || m.plays {
		m.say("no remedies here")
		return
	}
	m.turn(pageHistory)
	if m.page == pageHistory {
		m.ask(Wish{Do: DoHistory})
	}
}

// askAgain keeps a dialog up to date: the plan is made anew from what is known now.
func (m *model) askAgain() {
	if m.dialog == nil {
		return
	}
	if w, due := m.dialog.remake(); due {
		m.ask(w)
	}
}

// answered takes an answer; one to an older wish says only how a second look ended.
func (m *model) answered(a Answer) {
	defer m.tellFlows()
	m.dirty = true
	if a.Receipts != nil {
		m.receipts = a.Receipts
		m.receipt.follow(receiptIDs(m.receipts))
		return
	}
	if m.dialog != nil && (a.Wish == m.dialog.wish.Number || m.dialog.wish.Do == DoApply && a.Outcome != nil) {
		was := m.dialog.phase
		m.dialog.take(a)
		m.dialog.looked = m.opt.Clock()
		if is := m.dialog.phase; is != was && was == phaseAsking {
			m.dialog.turned = m.opt.Clock()
		}
		return
	}
	if a.Outcome != nil && a.Outcome.Again != "" {
		m.say(a.Outcome.Again)
	}
}

// letGo is how long keys are ignored after a field has gone: whoever was typing must not press other keys by that.
const letGo = time.Second

// pressDialog acts on a key while a dialog is open. Letters go to its field.
func (m *model) pressDialog(msg tea.KeyPressMsg) tea.Cmd {
	d := m.dialog
	key := msg.String()
	switch {
	case key == "ctrl+l":
		return tea.ClearScreen
	case d.phase == phaseRunning:
		m.say("it is being carried out; wait for its end")
		return nil
	case key == "ctrl+z":
		return tea.Suspend
	case key == "esc" || key == "ctrl+c":
		m.dialog = nil
	case key == "ctrl+y":
		return m.copyScript()
	case d.phase != phaseAsking && m.opt.Clock().Sub(d.turned) < letGo:
		// the end of a word that was being typed
	case d.phase == phaseDone && key == "u":
		m.undo(d.outcome.Receipt)
	case d.phase == phaseDone || d.phase == phaseNothing:
		m.dialog = nil
	case d.phase == phaseChoosing:
		m.chooseOffer(key)
	case d.phase == phaseAsking:
		m.typeWord(key, msg.Text)
	case key == "q":
		m.dialog = nil
	}
	return nil
}

func (m *model) chooseOffer(key string) {
	d := m.dialog
	switch key {
	case "up", "k":
		d.at = max(d.at-1, 0)
	case "down", "j", "tab":
		d.at = min(d.at+1, len(d.offers)-1)
	case "enter":
		d.show(d.offers[d.at])
	case "q":
		m.dialog = nil
	}
}

// typeWord lets the field take a key, or scrolls.
func (m *model) typeWord(key, text string) {
	d := m.dialog
	const far, page = 1 << 20, 8
	switch key {
	case "enter":
		m.confirm()
	case "tab", "shift+tab":
		d.commands, d.scroll = !d.commands, 0
	case "up":
		m.scrollDialog(-1)
	case "down":
		m.scrollDialog(1)
	case "pgup":
		m.scrollDialog(-page)
	case "pgdown":
		m.scrollDialog(page)
	case "home":
		m.scrollDialog(-far)
	case "end":
		m.scrollDialog(far)
	case "backspace":
		d.typed = d.typed[:max(len(d.typed)-1, 0)]
	case "ctrl+u", "ctrl+w":
		d.typed = ""
	default:
		if n := strings.Index("123456789", text); text != "" && n >= 0 {
			m.tickPart(n)
			return
		}
		m.typeLetter(text)
	}
}

// mostTyped bounds the field: no word is so long.
const mostTyped = 16

func (m *model) typeLetter(text string) {
	d := m.dialog
	switch {
	case len(text) != 1:
	case text[0] >= 'a' && text[0] <= 'z' && m.word() != "" && len(d.typed) < mostTyped:
		d.typed += text
	}
}

// tickPart takes a part of a plan in, or leaves it out: the plan is another one then, and wants its word anew.
func (m *model) tickPart(n int) {
	d := m.dialog
	if n >= len(d.offer.Dialog.Parts) {
		return
	}
	name := d.offer.Dialog.Parts[n].Name
	with := slices.DeleteFunc(slices.Clone(d.offer.Choice.With), func(p string) bool { return p == name })
	if len(with) == len(d.offer.Choice.With) {
		with = append(with, name)
	}
	d.typed, d.ticked, d.changed = "", true, nil
	d.offer.Choice.With = with
	w, _ := d.remake()
	m.ask(w)
}

// scrollDialog moves what is scrolled; drawing knows how much there is.
func (m *model) scrollDialog(by int) {
	p, rows := m.narrow(m.dialogWidth()).fitPlan(m.layout().body - 2)
	m.dialog.scroll = min(max(m.dialog.scroll+by, 0), max(len(p.text)-rows, 0))
}

// confirm carries the plan out if its word is whole.
func (m *model) confirm() {
	d := m.dialog
	word := m.word()
	switch {
	case m.readOnly:
		m.say("read-only: plans can be looked at, not carried out")
	case word == "" || d.typed != word:
		m.say("type " + word + " first")
	case m.stale():
		m.say("nothing was read for a while: look first whether the picture is still true")
	default:
		d.phase, d.steps, d.changed = phaseRunning, nil, nil
		m.ask(Wish{
			Do: DoApply, Kind: d.offer.Kind, Choice: d.offer.Choice, Receipt: d.offer.Receipt, ID: d.offer.Dialog.ID, Opened: d.wish.Opened,
		})
	}
}

// pasted says why what was pasted is not taken.
func (m *model) pasted() {
	m.dirty = true
	if m.word() != "" {
		m.dialog.typed = ""
		m.say("what is pasted does not confirm: type the word")
	}
}

// copyScript puts the commands of a plan on the clipboard.
func (m *model) copyScript() tea.Cmd {
	script := m.dialog.offer.Dialog.Script
	if script == "" || m.dialog.offer.Dialog.ID == "" {
		m.say("nothing to copy")
		return nil
	}
	return m.clip("script", script)
}

// concernsAction tells whether an action of flanwatch is about one of the chains.
func concernsAction(e *incident.Event, objects []flannel.ChainID) bool {
	for _, id := range e.Chains {
		for _, o := range objects {
			if id == o {
				return true
			}
		}
	}
	return false
}

// userText names the person behind a plan.
func userText(r remediate.Receipt) string {
	if r.By.User == "" {
		return unknown
	}
	return strings.TrimSpace(clean(r.By.User))
}
