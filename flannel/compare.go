package flannel

import "slices"

// Compare says how the chain that is there differs from the one that Flannel should have.
//
// The state is the worst that is true, in this order: unreadable (nobody looked for the chain, or for the base chain that
// should lead to it), absent, empty, unreferenced, partial, differs, ok. Empty comes before unreferenced because it is the
// graver loss: a jump alone would bring nothing back, and the missing jump is told by the hook's position 0 as well. The
// place of the hook is no difference; a second jump is one, as it walks the chain twice. Whether a rule of others decides
// first, and whether the chain is a leftover, is not judged here.
//
// In a chain that is not Flannel's own, only Flannel's rules are compared; Found positions still count all rules.
func Compare(rs *Ruleset, w Wanted) ChainDiff {
	d := ChainDiff{ID: w.ID, Wanted: len(w.Rules)}
	var chain *Chain
	if rs != nil {
		chain = rs.Chain(w.ID)
		d.Hook = findHook(rs, w)
	}
	if chain == nil {
		d.State = ChainUnreadable
		return d
	}
	a := align(chain.Entries, w)
	d.Rules, d.Found = a.lines(chain.Entries, w.Rules)
	d.State = chainState(rs, w, chain, d)
	return d
}

func chainState(rs *Ruleset, w Wanted, chain *Chain, d ChainDiff) ChainState {
	there := slices.ContainsFunc(d.Rules, func(l RuleDiff) bool { return l.Found > 0 })
	wrong := slices.ContainsFunc(d.Rules, func(l RuleDiff) bool { return l.Status != RuleOK })
	switch {
	case !chain.Present:
		return ChainAbsent
	case hooked(w) && rs.Chain(w.HookChain) == nil:
		return ChainUnreadable
	case !there:
		return ChainEmpty
	case unreferenced(rs, w, chain):
		return ChainUnreferenced
	case d.Found < d.Wanted:
		return ChainPartial
	case wrong, d.Hook.Copies > 1, hooked(w) && d.Hook.Position == 0, !sameBase(w.Base, chain.Base):
		return ChainDiffers
	}
	return ChainOK
}

// hooked tells whether a jump must lead into the chain.
func hooked(w Wanted) bool { return w.HookChain != ChainID{} }

// unreferenced tells whether no packet can come to the chain: nothing jumps to it, or it is a native chain that the kernel
// does not call. A jump with conditions is a reference, though not Flannel's hook.
func unreferenced(rs *Ruleset, w Wanted, chain *Chain) bool {
	if w.Base != nil {
		return chain.Base == nil
	}
	if !hooked(w) {
		return false
	}
	base := rs.Chain(w.HookChain).Entries
	return !slices.ContainsFunc(base, func(e Entry) bool { return leadsTo(e.Rule, w.ID.Name) })
}

func sameBase(want, have *BaseChain) bool {
	return want == nil || have != nil && *want == *have
}

func leadsTo(r Rule, chain string) bool {
	return (r.Target.Kind == TargetJump || r.Target.Kind == TargetGoto) && r.Target.Chain == chain
}

// findHook looks for the jumps that send every packet into the chain, whatever they say in a comment.
func findHook(rs *Ruleset, w Wanted) Hook {
	if !hooked(w) {
		return Hook{}
	}
	h := Hook{Chain: w.HookChain.Name}
	base := rs.Chain(w.HookChain)
	if base == nil {
		return h
	}
	h.Of = len(base.Entries)
	for i, e := range base.Entries {
		if !leadsTo(e.Rule, w.ID.Name) || !e.Rule.unconditional() {
			continue
		}
		if h.Copies++; h.Copies == 1 {
			h.Position, h.Entry = i+1, e
		}
	}
	return h
}

// unconditional tells whether every packet meets the rule.
func (r Rule) unconditional() bool {
	return !slices.ContainsFunc(r.Matches, func(m Match) bool { return m.Kind != MatchComment })
}
