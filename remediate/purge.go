package remediate

import (
	"fmt"
	"slices"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// Purge plans to remove what Flannel left and does not use: jumps, chains, native tables, and the rules that old versions
// wrote into the base chains. While Flannel runs that is only the residue of a dialect or backend that it does not use.
func Purge(f Facts, c Choice) (Plan, []Refusal) {
	a := diagnose.Assess(f.Facts, f.History)
	p := Plan{Kind: KindPurge, Why: a.Flannel.Evidence}
	e := editor{facts: f, plan: &p}
	var guards []Guard
	for _, left := range a.Leftover {
		guards = append(guards, e.purge(left, c)...)
	}
	p.Tables = e.tables
	guards = append(guards, p.purgeConnections(f, c)...)
	p.finish()
	guards = append(append(f.absence(a, p), guards...), f.steady(p)...)
	passed, refused := judged(guards, c)
	if len(refused) > 0 {
		return Plan{}, refused
	}
	p.Guards = passed
	describePurge(&p, f, a)
	p.Parts = []Part{connectionsPart(&p, f, c)}
	return p, nil
}

// absence is the guard on whether Flannel still needs what would be removed.
func (f Facts) absence(a diagnose.Assessment, p Plan) []Guard {
	s := a.Flannel.State
	if s == diagnose.FlannelUnknown {
		return []Guard{{
			Name: GuardUnknown, Why: "Whether Flannel runs here is not known, and a running Flannel may need it: " + processes(a) + ".",
			Change: "run flanwatch where it can read /proc of the node's processes",
		}}
	}
	if !p.Empty() {
		why := processes(a)
		if runs(s) {
			why = "Flannel runs here and does not use what is removed"
		}
		return []Guard{met(GuardLive, why)}
	}
	switch {
	case len(a.Due) == 0:
		return nil
	case s == diagnose.FlannelStarting:
		return []Guard{{
			Name: GuardStarting, Why: "Flannel is starting here and writes these rules: " + processes(a) + ".",
			Change: "delete its DaemonSet, or stop k3s or rke2, first",
		}}
	case runs(s):
		return []Guard{{
			Name: GuardLive, Why: "Flannel runs here and puts its rules back: " + processes(a) + ".",
			Change: "delete its DaemonSet, or stop k3s or rke2, first",
		}}
	}
	return []Guard{{
		Name: GuardStopped, Why: "Flannel stopped a moment ago and may come back: " + processes(a) + ".",
		Change: "wait ten minutes, or ask again with flanwatch purge",
	}}
}

// purge removes what is left in one backend and family. The guards tell of rules of others that stand in the way.
func (e *editor) purge(left diagnose.Leftover, c Choice) []Guard {
	var guards []Guard
	for _, id := range left.Chains {
		if c.wants(id) {
			guards = append(guards, e.purgeChain(id)...)
		}
	}
	for _, t := range left.Bare {
		e.purgeBare(t, left, c)
	}
	table := flannel.MasqChain(left.Backend, left.Family).TableID()
	if left.Table && len(guards) == 0 && len(c.Chains) == 0 {
		e.tables = append(e.tables, TableEdit{Table: table, Delete: true})
	}
	return guards
}

// purgeChain removes a chain of Flannel's own with every jump that leads there.
func (e *editor) purgeChain(id flannel.ChainID) []Guard {
	shapes := shapesOf(e.facts, id)
	own := e.edit(id)
	own.Delete = true
	var guards []Guard
	for i := range own.Lines {
		l := &own.Lines[i]
		l.Mark = Remove
		ours := commented(l.Rule) || slices.ContainsFunc(shapes, func(s flannel.Rule) bool { return like(l.Rule, s) })
		if !ours && len(guards) == 0 {
			guards = append(guards, Guard{
				Name: GuardForeign, Change: "move or delete that rule first",
				Why: fmt.Sprintf("%s holds a rule that Flannel did not write: %s", id.Short(), shown(l.Rule, id)),
			})
		}
	}
	if id.Backend == flannel.Nftables {
		return guards
	}
	base := e.edit(baseOf(id))
	base.Shared, base.Create = true, false
	for i := range base.Lines {
		l := &base.Lines[i]
		switch {
		case isHook(l.Rule, id.Name):
			l.Mark = Remove
		case jumps(l.Rule, id.Name) || l.Rule.Target.Chain == id.Name:
			guards = append(guards, Guard{
				Name: GuardForeign, Change: "delete that jump first",
				Why: fmt.Sprintf("A jump that Flannel did not write leads to %s: %s", id.Short(), shown(l.Rule, base.Chain)),
			})
		}
	}
	return guards
}

// purgeBare removes the rules of a generation without chains of its own: only those that are exactly its own.
func (e *editor) purgeBare(t flannel.Trace, left diagnose.Leftover, c Choice) {
	o := t.Options
	o.RandomFully = true
	for _, w := range flannel.Expected(t.Networks, t.Subnets, t.Generation, o, left.Backend, left.Family) {
		if !c.wants(w.ID) {
			continue
		}
		base := e.edit(w.ID)
		base.Shared, base.Create = true, false
		for i := range base.Lines {
			if l := &base.Lines[i]; slices.ContainsFunc(w.Rules, func(r flannel.Rule) bool { return like(l.Rule, r) }) {
				l.Mark = Remove
			}
		}
	}
}

// shown is a rule fit for a terminal.
func shown(r flannel.Rule, id flannel.ChainID) string {
	return flannel.Printable(r.Text(id.Backend, id.Family))
}
