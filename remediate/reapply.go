package remediate

import (
	"fmt"
	"slices"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// Reapply plans to put back what Flannel should have here: in the dialect, generation and backend that flanneld uses, and
// never a rule that its flags exclude. Without refusals an empty plan means that nothing is to do.
func Reapply(f Facts, c Choice) (Plan, []Refusal) {
	a := diagnose.Assess(f.Facts, f.History)
	p := Plan{Kind: KindReapply, Why: a.Flannel.Evidence}
	guards := []Guard{f.presence(a), f.networks()}
	guards = append(guards, f.dialect(a, c)...)
	guards = append(guards, f.readable(a)...)
	guards = append(guards, f.ownedByOther()...)
	e := editor{facts: f, plan: &p}
	for _, w := range a.Due {
		if len(w.Rules) > 0 && c.wants(w.ID) {
			e.reapply(w)
		}
	}
	p.Tables = append(p.Tables, e.tables...)
	p.finish()
	guards = append(guards, f.variants(p)...)
	guards = append(guards, f.steady(p)...)
	if p.Empty() {
		guards = append(guards, f.masq(a)...)
	}
	passed, refused := judged(guards, c)
	if len(refused) > 0 {
		return Plan{}, refused
	}
	p.Guards = passed
	describeReapply(&p, f, a)
	return p, nil
}

// editor collects the edits of a plan.
type editor struct {
	facts  Facts
	plan   *Plan
	tables []TableEdit
}

// edit gives the edit of a chain, made when it is first asked for.
func (e *editor) edit(id flannel.ChainID) *Edit {
	if i := slices.IndexFunc(e.plan.Edits, func(x Edit) bool { return x.Chain == id }); i >= 0 {
		return &e.plan.Edits[i]
	}
	c, there := e.facts.chain(id)
	n := Edit{Chain: id, Lines: keepAll(c)}
	if c != nil {
		n.Before = c.Base
	}
	n.Create = !there
	e.plan.Edits = append(e.plan.Edits, n)
	return &e.plan.Edits[len(e.plan.Edits)-1]
}

// reapply puts one chain right.
func (e *editor) reapply(w flannel.Wanted) {
	if rs, known := e.facts.ruleset(w.ID.Backend); !known || flannel.Compare(rs, w).State == flannel.ChainOK {
		return
	}
	own := e.edit(w.ID)
	own.Shared = w.Shared
	own.Lines = rewrite(own.Lines, w.Rules, e.ours(w))
	switch {
	case w.Base != nil && own.Create:
		own.Base = w.Base
	case w.Base != nil && (own.Before == nil || *own.Before != *w.Base):
		own.renew(w)
	case w.Shared && own.Create:
		own.Base = builtin(w.ID)
	}
	e.makeTable(w.ID.TableID())
	if w.HookChain == (flannel.ChainID{}) {
		return
	}
	base := e.edit(w.HookChain)
	base.Shared = true
	if base.Create {
		base.Base = builtin(w.HookChain)
	}
	base.Lines = hookLines(base.Lines, w)
}

// renew removes a chain that the kernel calls in the wrong place, and makes it again.
func (e *Edit) renew(w flannel.Wanted) {
	e.Delete, e.Create, e.Base = true, true, w.Base
	for i := range e.Lines {
		e.Lines[i].Mark = Remove
	}
	e.Lines = slices.DeleteFunc(e.Lines, func(l Line) bool { return l.At == 0 })
	for _, r := range w.Rules {
		e.Lines = append(e.Lines, Line{Mark: Add, Rule: r})
	}
}

// makeTable makes the table of a chain if it is missing. iptables-legacy makes its tables itself.
func (e *editor) makeTable(t flannel.TableID) {
	if t.Backend == flannel.IptablesLegacy || e.facts.hasTable(t) ||
		slices.ContainsFunc(e.tables, func(x TableEdit) bool { return x.Table == t }) {
		return
	}
	e.tables = append(e.tables, TableEdit{Table: t, Create: true})
}

// ours tells which rules of a chain are Flannel's: by its comments, and where its rules have none by their exact shape.
func (e *editor) ours(w flannel.Wanted) func(flannel.Rule) bool {
	shapes := shapesOf(e.facts, w.ID)
	return func(r flannel.Rule) bool {
		if jumps(r, flannel.ChainMasq) || jumps(r, flannel.ChainFwd) {
			return false
		}
		return commented(r) || slices.ContainsFunc(w.Rules, func(s flannel.Rule) bool { return like(r, s) }) ||
			!w.Shared && slices.ContainsFunc(shapes, func(s flannel.Rule) bool { return like(r, s) })
	}
}

// shapesOf gives the rules without comment that Flannel writes into a chain, for the networks that its own rules speak of.
func shapesOf(f Facts, id flannel.ChainID) []flannel.Rule {
	rs, known := f.ruleset(id.Backend)
	if !known || id.Backend != flannel.Nftables {
		return nil
	}
	var out []flannel.Rule
	for _, t := range flannel.Infer(rs, f.Node.Networks.Value, f.Node.Subnets.Value) {
		if t.Family != id.Family {
			continue
		}
		for _, w := range flannel.Expected(t.Networks, t.Subnets, t.Generation, everything, id.Backend, id.Family) {
			if w.ID == id {
				out = append(out, w.Rules...)
			}
		}
	}
	return out
}

var everything = flannel.Options{RandomFully: true, Forward: true, Masq: true}

// like tells whether two rules are the same but for --random-fully.
func like(a, b flannel.Rule) bool {
	if a.Target.Kind == flannel.TargetMasquerade && b.Target.Kind == flannel.TargetMasquerade {
		a.Target.RandomFully = b.Target.RandomFully
	}
	return equal(a, b)
}

// variants is the guard on masquerading rules that are there with and without --random-fully, where nothing tells which of
// them flanneld wants.
func (f Facts) variants(p Plan) []Guard {
	if _, known := f.Node.RandomFully.Get(); known {
		return nil
	}
	for _, e := range p.Edits {
		with, without := false, false
		for _, l := range e.Lines {
			if l.Mark != Add && l.Rule.Target.Kind == flannel.TargetMasquerade && commented(l.Rule) {
				with = with || l.Rule.Target.RandomFully
				without = without || !l.Rule.Target.RandomFully
			}
		}
		if with && without {
			return []Guard{{
				Name: GuardFlags, Judge: true, Change: "make flanneld's command line readable",
				Why: fmt.Sprintf("%s masquerades with and without --random-fully, and flanneld's flags are not known.", e.Chain.Short()),
			}}
		}
	}
	return nil
}
