package flannel

import (
	"cmp"
	"slices"
)

// alignment says what each rule that is there is to the wanted ones, and the other way round.
type alignment struct {
	entries []placing // in the chain's order, rules of others left out
	wanted  []int     // index into entries of the rule that serves for each wanted one, -1 if it is missing
	inOrder []bool    // whether that rule stands in the wanted order
}

// placing is one rule that is there.
type placing struct {
	index int   // position in the chain from 0
	likes []int // indices of the wanted rules that it equals, or differs from in --random-fully alone
	exact bool  // it equals them
	serve int   // the wanted rule that it serves for, -1 if none
}

// align finds which rule serves for which wanted one. Rules in order come first: the longest common subsequence, so that
// one rule that was moved is one rule misplaced. What is wanted beyond it is served by the first equal rule anywhere.
func align(entries []Entry, w Wanted) alignment {
	a := alignment{wanted: make([]int, len(w.Rules)), inOrder: make([]bool, len(w.Rules))}
	for j := range a.wanted {
		a.wanted[j] = -1
	}
	equals := equalGroups(w.Rules)
	for i, e := range entries {
		p := classify(e.Rule, w.Rules, equals)
		p.index = i
		if len(p.likes) > 0 || !w.Shared || flannels(e.Rule, w) {
			a.entries = append(a.entries, p)
		}
	}
	a.preferExact()
	for _, pair := range a.longestInOrder() {
		a.assign(pair[0], pair[1])
		a.inOrder[pair[1]] = true
	}
	for i := range a.entries {
		for _, j := range a.entries[i].likes {
			if a.entries[i].serve < 0 && a.wanted[j] < 0 {
				a.assign(i, j)
			}
		}
	}
	return a
}

func (a *alignment) assign(entry, wanted int) {
	a.entries[entry].serve = wanted
	a.wanted[wanted] = entry
}

// equalGroups gives for each wanted rule the indices of all that are equal to it: rules can be wanted twice, where the
// subnet is as large as the network.
func equalGroups(wanted []Rule) [][]int {
	groups := make([][]int, len(wanted))
	for i, r := range wanted {
		for j, s := range wanted {
			if r.identical(s) {
				groups[i] = append(groups[i], j)
			}
		}
	}
	return groups
}

// classify finds the wanted rules that a rule equals; where it equals none, those of which it is a variant.
func classify(r Rule, wanted []Rule, equals [][]int) placing {
	p := placing{serve: -1}
	if r.Opaque() {
		return p
	}
	r = corrected(r)
	if j := slices.IndexFunc(wanted, r.identical); j >= 0 {
		p.likes, p.exact = equals[j], true
	} else if j := slices.IndexFunc(wanted, r.variantOf); j >= 0 {
		p.likes = equals[j]
	}
	return p
}

// preferExact keeps a variant from serving for a rule that is there as wanted.
func (a *alignment) preferExact() {
	exact := make([]bool, len(a.wanted))
	for _, p := range a.entries {
		if p.exact {
			exact[p.likes[0]] = true
		}
	}
	for i, p := range a.entries {
		if !p.exact && len(p.likes) > 0 && exact[p.likes[0]] {
			a.entries[i].serve, a.entries[i].likes = beside, nil
		}
	}
}

// beside marks a variant of a rule that is there as wanted too.
const beside = -2

// longestInOrder gives pairs of entry and wanted rule that stand in the same order on both sides, as many as there can be
// (Hunt and Szymanski's method: entries times logarithm of wanted, however many copies there are).
func (a *alignment) longestInOrder() [][2]int {
	type node struct{ entry, wanted, before int }
	var nodes []node
	var ends []int // ends[k]: the node that ends a sequence of k+1 pairs with the lowest wanted index
	for i, p := range a.entries {
		for _, j := range slices.Backward(p.likes) {
			k, _ := slices.BinarySearchFunc(ends, j, func(n, j int) int { return cmp.Compare(nodes[n].wanted, j) })
			if k < len(ends) && nodes[ends[k]].wanted == j {
				continue // an earlier copy does as well
			}
			before := -1
			if k > 0 {
				before = ends[k-1]
			}
			nodes = append(nodes, node{i, j, before})
			if k == len(ends) {
				ends = append(ends, 0)
			}
			ends[k] = len(nodes) - 1
		}
	}
	var pairs [][2]int
	if len(ends) > 0 {
		for n := ends[len(ends)-1]; n >= 0; n = nodes[n].before {
			pairs = append(pairs, [2]int{nodes[n].entry, nodes[n].wanted})
		}
	}
	slices.Reverse(pairs)
	return pairs
}

// lines gives the comparison in the wanted order, and how many wanted rules are there. A rule that serves for none stands
// after the last rule in order before it; identical copies of it make one line.
func (a *alignment) lines(entries []Entry, wanted []Rule) ([]RuleDiff, int) {
	var out []RuleDiff
	found, next := 0, 0
	emitWanted := func(until int) {
		for ; next < until; next++ {
			line := a.wantedLine(next, entries, wanted)
			if line.Found > 0 {
				found++
			}
			out = append(out, line)
		}
	}
	copies := map[spare]int{} // where the line of the first copy is
	for _, p := range a.entries {
		if p.serve >= 0 {
			if a.inOrder[p.serve] {
				emitWanted(p.serve + 1)
			}
			continue
		}
		line := p.spareLine(entries[p.index].Rule)
		key := p.spare(line)
		if at, again := copies[key]; again {
			out[at].Times++
			continue
		}
		copies[key] = len(out)
		out = append(out, line)
	}
	emitWanted(len(wanted))
	return out, found
}

func (a *alignment) wantedLine(j int, entries []Entry, wanted []Rule) RuleDiff {
	line := RuleDiff{Rule: wanted[j], Status: RuleMissing, Want: j + 1, Times: 1}
	if a.wanted[j] < 0 {
		return line
	}
	p := a.entries[a.wanted[j]]
	line.Rule, line.Found = entries[p.index].Rule, p.index+1
	switch {
	case !a.inOrder[j]:
		line.Status = RuleMisplaced
	case !p.exact:
		line.Status = RuleVariant
	default:
		line.Status = RuleOK
	}
	return line
}

// spareLine is the line of a rule that serves for no wanted one.
func (p placing) spareLine(r Rule) RuleDiff {
	line := RuleDiff{Rule: r, Status: RuleExtra, Found: p.index + 1, Times: 1}
	switch {
	case r.Opaque():
		line.Status = RuleOpaque
	case p.serve == beside:
		line.Status = RuleVariant
	case len(p.likes) > 0:
		line.Status = RuleDuplicate
	}
	return line
}

// spare tells rules apart that serve for none: by the wanted rule that they repeat, else by their words.
type spare struct {
	repeats int
	text    string
}

func (p placing) spare(line RuleDiff) spare {
	if line.Status == RuleDuplicate && p.exact {
		return spare{repeats: p.likes[0]}
	}
	return spare{repeats: -1, text: line.Rule.String()}
}

// variantOf tells whether two rules differ in --random-fully alone.
func (r Rule) variantOf(s Rule) bool {
	if r.Target.Kind != TargetMasquerade || r.Target.RandomFully == s.Target.RandomFully {
		return false
	}
	r.Target.RandomFully = s.Target.RandomFully
	return r.identical(s)
}

// corrected gives the rule with Flannel's own misspelling of its comment put right.
func corrected(r Rule) Rule {
	i := slices.IndexFunc(r.Matches, func(m Match) bool { return m.Kind == MatchComment && m.Text == CommentMasqTypo })
	if i < 0 {
		return r
	}
	r.Matches = slices.Clone(r.Matches)
	r.Matches[i].Text = CommentMasq
	return r
}

// flannels tells whether a rule in a shared chain is Flannel's by its comment, where the wanted ones have one too. The
// jump into a chain of Flannel's own belongs to a later generation.
func flannels(r Rule, w Wanted) bool {
	if len(w.Rules) == 0 || w.Rules[0].Comment() == "" || leadsTo(r, ChainMasq) || leadsTo(r, ChainFwd) {
		return false
	}
	return hasFlannelComment(r)
}

func hasFlannelComment(r Rule) bool {
	switch r.Comment() {
	case CommentMasq, CommentMasqTypo, CommentForward:
		return true
	}
	return false
}
