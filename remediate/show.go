package remediate

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"flanwatch/flannel"
)

// Dialog is a plan as a person sees it before it is carried out. Every text is fit for a terminal.
type Dialog struct {
	ID      string
	Title   string
	Effects []string
	Why     []string
	Diff    []DiffLine
	Sends   []string // what will be sent, one transaction each
	Checks  []string // guards that are met
	Notes   []string
	Backup  string // path
	Undo    string // command
	Word    string // to be typed
	Script  string // the same by hand
	Receipt string // ID of the receipt that it gets
	Parts   []Part // what can be left out, or taken in
}

// Part is a piece of a plan that a person ticks or not.
type Part struct {
	Name string // as --with takes it
	Text string // what it does
	On   bool
}

// DiffLine is one line of the diff.
type DiffLine struct {
	Mark Mark   // '+', '-' or blank
	Text string // without the mark
}

// context is how many lines of others are shown around a change.
const context = 1

// Show makes the dialog of a plan that would be carried out at that time with that state directory.
func (p Plan) Show(state string, at time.Time) Dialog {
	d := Dialog{
		ID: p.ID, Title: flannel.Printable(p.Title), Effects: p.Effects, Why: p.Why, Notes: p.Notes, Word: string(p.Kind),
		Script: p.Script(), Sends: p.Sends(),
	}
	d.Parts = p.Parts
	for _, g := range p.Guards {
		d.Checks = append(d.Checks, g.Why)
	}
	if p.Empty() {
		return d
	}
	id := ReceiptID(p, at)
	d.Receipt = id
	if p.ChangesRules() {
		d.Backup = filepath.Join(state, "backup", id+".rules")
		d.Undo = "flanwatch undo " + id
	}
	for _, b := range p.Backends() {
		for _, t := range p.TablesOf(b) {
			d.Diff = append(d.Diff, p.diff(t)...)
		}
	}
	d.Diff = append(d.Diff, p.flowLines()...)
	return d
}

// Sends says what goes to the kernel, one line for each transaction, in the order of sending.
func (p Plan) Sends() []string {
	var out []string
	messages := len(p.Tables)
	for _, b := range p.Backends() {
		if b == flannel.IptablesLegacy {
			for _, t := range p.TablesOf(b) {
				text := p.RestoreText(t)
				out = append(out, fmt.Sprintf("%s-restore --noflush, table %s, %s, under the lock",
					Program(b, t.Family), t.Name, count(strings.Count(text, "\n")-2, "line")))
			}
			continue
		}
		for _, e := range p.Edits {
			if e.Chain.Backend == b {
				messages += e.messages(p)
			}
		}
	}
	if messages > 0 {
		out = append(out, fmt.Sprintf("one nf_tables batch, %s, one generation", count(messages, "message")))
	}
	if n := len(p.Flows); n > 0 {
		out = append(out, count(n, "deletion")+" of connections, each looked at once more before")
	}
	return out
}

// messages counts what an edit adds to the batch: none where its table goes as a whole.
func (e Edit) messages(p Plan) int {
	for _, t := range p.Tables {
		if t.Delete && t.Table == e.Chain.TableID() {
			return 0
		}
	}
	n := e.Count(Add) + e.Count(Remove)
	if e.Create {
		n++
	}
	if e.Delete {
		n++
	}
	return n
}

// diff gives the lines of one table, in the words of iptables-save or nft.
func (p Plan) diff(t flannel.TableID) []DiffLine {
	head := Mark(Keep)
	for _, te := range p.Tables {
		switch {
		case te.Table == t && te.Create:
			head = Add
		case te.Table == t && te.Delete:
			head = Remove
		}
	}
	out := []DiffLine{{head, fmt.Sprintf("%s %s table %s", t.Backend, t.Family, t.Name)}}
	for _, e := range p.Of(t) {
		out = append(out, e.diff()...)
	}
	return out
}

func (e Edit) diff() []DiffLine {
	head := Mark(Keep)
	switch {
	case e.Create && !e.Delete:
		head = Add
	case e.Delete && !e.Create:
		head = Remove
	}
	before, after := e.Count(Keep)+e.Count(Remove), e.Count(Keep)+e.Count(Add)
	out := []DiffLine{{head, fmt.Sprintf("chain %s: now %s, then %d", flannel.Printable(e.Chain.Name), rules(before), after)}}
	skipped := 0
	flush := func() {
		if skipped > 0 {
			out = append(out, DiffLine{Keep, fmt.Sprintf("… %d more", skipped)})
		}
		skipped = 0
	}
	for i, l := range e.Lines {
		if e.Shared && l.Mark == Keep && !e.near(i) {
			skipped++
			continue
		}
		flush()
		text := shown(l.Rule, e.Chain)
		if e.Chain.Backend != flannel.Nftables {
			text = "-A " + flannel.Printable(e.Chain.Name) + " " + text
		}
		out = append(out, DiffLine{l.Mark, text})
	}
	flush()
	return out
}

// near tells whether a line stands beside one that changes.
func (e Edit) near(i int) bool {
	for j := max(0, i-context); j <= min(len(e.Lines)-1, i+context); j++ {
		if e.Lines[j].Mark != Keep {
			return true
		}
	}
	return false
}
