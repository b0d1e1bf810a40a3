package remediate

import (
	"slices"

	"flanwatch/flannel"
)

// keepAll makes lines of what is there, all of which stay.
func keepAll(c *flannel.Chain) []Line {
	if c == nil {
		return nil
	}
	lines := make([]Line, len(c.Entries))
	for i, e := range c.Entries {
		lines[i] = Line{Mark: Keep, At: i + 1, Rule: e.Rule, Handle: e.Handle, Body: e.Body}
	}
	return lines
}

// rewrite turns a chain into the wanted rules: those that stand in order stay, counters included, the rest of Flannel's goes
// and what is missing comes in its place. Rules of others stay where they are.
func rewrite(lines []Line, wanted []flannel.Rule, ours func(flannel.Rule) bool) []Line {
	serves := inOrder(lines, wanted)
	tail := len(lines) // behind which line the rest of the wanted rules comes
	for i, l := range slices.Backward(lines) {
		if serves[i] >= 0 || ours(l.Rule) {
			tail = i + 1
			break
		}
	}
	var out []Line
	next := 0
	emit := func(until int) {
		for ; next < until; next++ {
			out = append(out, Line{Mark: Add, Rule: wanted[next]})
		}
	}
	for i, l := range lines {
		if i == tail {
			emit(len(wanted))
		}
		switch {
		case serves[i] >= 0:
			emit(serves[i])
			next = serves[i] + 1
		case ours(l.Rule):
			l.Mark = Remove
		}
		out = append(out, l)
	}
	emit(len(wanted))
	return out
}

// inOrder finds the longest sequence of lines that are wanted rules in the wanted order, the earliest copies of each. It
// gives for each line the index of the wanted rule, -1 where it serves for none.
func inOrder(lines []Line, wanted []flannel.Rule) []int {
	n, m := len(lines), len(wanted)
	best := make([][]int, n+1) // best[i][j]: length for lines[i:] and wanted[j:]
	best[n] = make([]int, m+1)
	same := make([][]bool, n)
	for i := n - 1; i >= 0; i-- {
		best[i], same[i] = make([]int, m+1), make([]bool, m)
		for j := m - 1; j >= 0; j-- {
			best[i][j] = max(best[i+1][j], best[i][j+1])
			if same[i][j] = equal(lines[i].Rule, wanted[j]); same[i][j] {
				best[i][j] = max(best[i][j], best[i+1][j+1]+1)
			}
		}
	}
	serves := make([]int, n)
	j := 0
	for i := range lines {
		serves[i] = -1
		for k := j; k < m; k++ {
			if same[i][k] && best[i+1][k+1]+1 == best[i][j] {
				serves[i], j = k, k+1
				break
			}
		}
	}
	return serves
}

// equal tells whether two rules are the same to Flannel, which once misspelt its own comment.
func equal(a, b flannel.Rule) bool { return corrected(a).Equal(corrected(b)) }

func corrected(r flannel.Rule) flannel.Rule {
	i := slices.IndexFunc(r.Matches, func(m flannel.Match) bool {
		return m.Kind == flannel.MatchComment && m.Text == flannel.CommentMasqTypo
	})
	if i < 0 {
		return r
	}
	r.Matches = slices.Clone(r.Matches)
	r.Matches[i].Text = flannel.CommentMasq
	return r
}

// commented tells whether a rule carries one of Flannel's comments and is understood in full: nobody else writes those.
func commented(r flannel.Rule) bool {
	switch r.Comment() {
	case flannel.CommentMasq, flannel.CommentMasqTypo, flannel.CommentForward:
		return !r.Opaque()
	}
	return false
}

// jumps tells whether a rule leads into a chain.
func jumps(r flannel.Rule, chain string) bool {
	return (r.Target.Kind == flannel.TargetJump || r.Target.Kind == flannel.TargetGoto) && r.Target.Chain == chain
}

// isHook tells whether a rule sends every packet into a chain, as Flannel's jump does.
func isHook(r flannel.Rule, chain string) bool {
	return r.Target.Kind == flannel.TargetJump && r.Target.Chain == chain &&
		!slices.ContainsFunc(r.Matches, func(m flannel.Match) bool { return m.Kind != flannel.MatchComment })
}

// hookLines leaves one jump, that of Flannel's own wording if there is one, and puts it where the generation has it if there
// is none.
func hookLines(lines []Line, w flannel.Wanted) []Line {
	var hooks []int
	for i, l := range lines {
		if isHook(l.Rule, w.ID.Name) {
			hooks = append(hooks, i)
		}
	}
	if len(hooks) == 0 {
		hook := Line{Mark: Add, Rule: w.Hook}
		if w.HookFirst {
			return append([]Line{hook}, lines...)
		}
		return append(lines, hook)
	}
	stays := hooks[0]
	if i := slices.IndexFunc(hooks, func(i int) bool { return lines[i].Rule.Equal(w.Hook) }); i >= 0 {
		stays = hooks[i]
	}
	for _, i := range hooks {
		if i != stays {
			lines[i].Mark = Remove
		}
	}
	return lines
}

// baseOf names the base chain that leads to an iptables chain of Flannel's own.
func baseOf(id flannel.ChainID) flannel.ChainID {
	id.Name = flannel.ChainForward
	if id.Table == flannel.TableNat {
		id.Name = flannel.ChainPostrouting
	}
	return id
}

// builtin is what iptables-nft makes of a base chain that is not there.
func builtin(id flannel.ChainID) *flannel.BaseChain {
	if id.Table == flannel.TableNat {
		return &flannel.BaseChain{Type: "nat", Hook: "postrouting", Priority: 100, Policy: "accept"}
	}
	return &flannel.BaseChain{Type: "filter", Hook: "forward", Priority: 0, Policy: "accept"}
}
