package remediate

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"

	"flanwatch/conntrack"
	"flanwatch/flannel"
)

// Kind is the sort of a plan. It is the word that a person types to confirm one.
type Kind string

// The kinds of plans.
const (
	KindReapply Kind = "reapply"
	KindPurge   Kind = "purge"
	KindUndo    Kind = "undo"
	KindUnstick Kind = "unstick"
)

// Mark says what becomes of a line of a chain.
type Mark byte

// The marks, as a diff shows them.
const (
	Keep   Mark = ' '
	Remove Mark = '-'
	Add    Mark = '+'
)

// Raw is a rule as nf_tables holds it, good for writing the same rule again.
type Raw struct {
	Exprs    []byte `json:"exprs"`
	Userdata []byte `json:"userdata,omitempty"`
}

// Line is one rule of a chain that a plan changes: it stays, goes or comes.
type Line struct {
	Mark   Mark
	At     int // position before the change from 1, 0 for a rule that comes
	Rule   flannel.Rule
	Handle uint64 // nf_tables' number of a rule that is there
	Body   uint64 // hash of a rule that is there, without its counter
	Raw    *Raw   // of a rule that went, so that it comes back as it was
}

// Edit is what a plan does to one chain: its lines before are those that stay or go, its lines after those that stay or
// come, in order.
type Edit struct {
	Chain  flannel.ChainID
	Create bool               // the chain is not there and is made
	Delete bool               // the chain is removed
	Shared bool               // a base chain of others, in which only single lines are ours
	Base   *flannel.BaseChain // how a base chain that is made is called by the kernel
	Before *flannel.BaseChain // how a base chain that is removed was called

	Userdata []byte // of a chain that went: its comment
	Lines    []Line
}

// Changes tells whether the edit does anything.
func (e Edit) Changes() bool {
	return e.Create || e.Delete || slices.ContainsFunc(e.Lines, func(l Line) bool { return l.Mark != Keep })
}

// Count gives how many lines have a mark.
func (e Edit) Count(m Mark) int {
	n := 0
	for _, l := range e.Lines {
		if l.Mark == m {
			n++
		}
	}
	return n
}

// After gives the rules that the chain has after the change.
func (e Edit) After() []flannel.Rule {
	var out []flannel.Rule
	for _, l := range e.Lines {
		if l.Mark != Remove {
			out = append(out, l.Rule)
		}
	}
	return out
}

// TableEdit makes or removes a whole table. Only native tables of Flannel are removed.
type TableEdit struct {
	Table    flannel.TableID
	Create   bool
	Delete   bool
	Userdata []byte // of a table that went: its comment
}

// Plan is a change, complete and not yet carried out.
type Plan struct {
	ID      string // hash of the change and of the rules concerned; unrelated changes of the ruleset leave it as it is
	Kind    Kind
	Title   string   // the change in words
	Effects []string // what it does to pods
	Why     []string // the evidence
	Notes   []string // what a person should know before
	Guards  []Guard  // what was checked, all of them passed or judged
	Tables  []TableEdit
	Edits   []Edit // sorted by chain
	Undoes  string // the receipt that an undo takes back

	Flows []conntrack.Sample // connections to delete, which cannot be undone
	Parts []Part             // what a person can take in or leave out
}

// Empty tells whether nothing is to do.
func (p Plan) Empty() bool { return !p.ChangesRules() && len(p.Flows) == 0 }

// ChangesRules tells whether rules, chains or tables are changed.
func (p Plan) ChangesRules() bool { return len(p.Tables) > 0 || len(p.Edits) > 0 }

// Backends lists the backends that the plan changes.
func (p Plan) Backends() []flannel.Backend {
	return slices.DeleteFunc(slices.Clone(flannel.Backends), func(b flannel.Backend) bool {
		return !slices.ContainsFunc(p.Edits, func(e Edit) bool { return e.Chain.Backend == b }) &&
			!slices.ContainsFunc(p.Tables, func(t TableEdit) bool { return t.Table.Backend == b })
	})
}

// Of gives the edits of one table, the base chain's first, since a jump goes before the chain that it leads to; of native
// chains the one that masquerades, as Flannel makes them.
func (p Plan) Of(t flannel.TableID) []Edit {
	edits := slices.DeleteFunc(slices.Clone(p.Edits), func(e Edit) bool { return e.Chain.TableID() != t })
	slices.SortStableFunc(edits, func(a, b Edit) int { return order(a) - order(b) })
	return edits
}

func order(e Edit) int {
	switch {
	case e.Shared:
		return 0
	case e.Chain.Name == flannel.NativeMasq:
		return 1
	}
	return 2
}

// TablesOf lists the tables of one backend that the plan changes, in the order of their chains.
func (p Plan) TablesOf(b flannel.Backend) []flannel.TableID {
	var out []flannel.TableID
	add := func(t flannel.TableID) {
		if t.Backend == b && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	for _, e := range p.Edits {
		add(e.Chain.TableID())
	}
	for _, t := range p.Tables {
		add(t.Table)
	}
	return out
}

// finish drops what changes nothing, puts the rest in order and names the plan.
func (p *Plan) finish() {
	p.Edits = slices.DeleteFunc(p.Edits, func(e Edit) bool { return !e.Changes() })
	slices.SortFunc(p.Edits, func(a, b Edit) int { return a.Chain.Compare(b.Chain) })
	if p.Empty() {
		return
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00", p.Kind, p.Undoes)
	for _, t := range p.Tables {
		fmt.Fprintf(h, "table %v %t %t\x00", t.Table, t.Create, t.Delete)
	}
	for _, e := range p.Edits {
		e.hash(h)
	}
	p.hashFlows(h)
	p.ID = hex.EncodeToString(h.Sum(nil)[:8])
}

// hash writes what makes an edit the same one. Lines of others are left out, their number and place too: what they do is no
// concern of the plan. Handles and positions are left out as well, since a rule written again is the same rule.
func (e Edit) hash(h hash.Hash) {
	fmt.Fprintf(h, "chain %v %t %t\x00", e.Chain, e.Create, e.Delete)
	if !e.Shared {
		fmt.Fprintf(h, "base %v %v\x00", e.Base, e.Before)
	}
	for _, l := range e.Lines {
		if l.Mark == Keep && e.Shared {
			continue
		}
		fmt.Fprintf(h, "%c%s\x00", l.Mark, l.Rule)
		if l.Mark != Add {
			h.Write(binary.BigEndian.AppendUint64(nil, l.Body))
		}
	}
}
