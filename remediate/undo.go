package remediate

import (
	"fmt"
	"slices"

	"flanwatch/flannel"
)

// Undo plans to take back what a receipt tells: what came goes, and what went comes back to its former place among the rules
// of others, which may have changed meanwhile. It refuses where somebody has rewritten the rules concerned since.
func Undo(r Receipt, f Facts, c Choice) (Plan, []Refusal) {
	p := Plan{Kind: KindUndo, Undoes: r.ID}
	guards := []Guard{r.usable(), r.placed(f)}
	for _, t := range r.Tables {
		if t.Table.Backend == flannel.Nftables || t.Create {
			p.Tables = append(p.Tables, undoTable(t, f, &guards)...)
		}
	}
	for _, e := range r.Edits {
		back, g := undoEdit(e, f)
		p.Edits = append(p.Edits, back)
		guards = append(guards, g)
	}
	p.finish()
	guards = append(guards, f.steady(p)...)
	passed, refused := judged(guards, c)
	if len(refused) > 0 {
		return Plan{}, refused
	}
	p.Guards = passed
	describeUndo(&p, r)
	return p, nil
}

func (r Receipt) usable() Guard {
	g := Guard{Name: GuardReceipt, Change: "choose another receipt; flanwatch history lists them"}
	if r.Kind == KindUnstick {
		g.Why = "Connections that were deleted cannot be brought back."
		return g
	}
	switch r.Result {
	case ResultVerified, ResultUnverified, ResultStarted:
		return met(GuardReceipt, fmt.Sprintf("applied %s", r.Time.UTC().Format("2006-01-02 15:04:05 UTC")))
	case ResultUndone:
		g.Why = "It was taken back already."
	default:
		g.Why = "It was not carried out, so there is nothing to take back."
	}
	return g
}

func (r Receipt) placed(f Facts) Guard {
	g := Guard{Name: GuardReceipt, Judge: true}
	switch {
	case r.Place == (Place{}) || f.Place == (Place{}) || r.Place == f.Place:
		return met(GuardReceipt, "applied in this network namespace")
	case r.Place.Boot != f.Place.Boot:
		g.Why, g.Change = "The node was started again since: its rules were made anew.", "reapply or purge instead"
	default:
		g.Why, g.Change = "It was carried out in another network namespace.", "name that namespace with --netns"
	}
	return g
}

// undoTable takes back what was done to a whole table. A table of iptables-nft that was made stays: it is empty of ours.
func undoTable(t TableEdit, f Facts, guards *[]Guard) []TableEdit {
	switch {
	case t.Create && t.Table.Backend == flannel.Nftables && f.hasTable(t.Table):
		return []TableEdit{{Table: t.Table, Delete: true}}
	case t.Delete && f.hasTable(t.Table):
		*guards = append(*guards, rewritten("table %s %s was made again since.", t.Table.Family, t.Table.Name))
	case t.Delete:
		return []TableEdit{{Table: t.Table, Create: true, Userdata: t.Userdata}}
	}
	return nil
}

func rewritten(format string, args ...any) Guard {
	return Guard{
		Name: GuardRewritten, Why: sentence(fmt.Sprintf(format, args...)),
		Change: "look at what is there now; reapply or purge may be what you want",
	}
}

// undoEdit turns one edit round.
func undoEdit(e Edit, f Facts) (Edit, Guard) {
	c, there := f.chain(e.Chain)
	if c == nil && e.Chain.Backend != flannel.IptablesLegacy {
		return Edit{}, rewritten("%s cannot be read.", where(e.Chain))
	}
	current := keepAll(c)
	gone := e.Delete && !e.Create
	switch {
	case gone && there:
		return Edit{}, rewritten("%s was made again since.", where(e.Chain))
	case !gone && !there:
		return Edit{}, rewritten("%s was removed since.", where(e.Chain))
	case e.Shared:
		return undoShared(e, current)
	}
	after := afterLines(e)
	if i := differ(after, current); i >= 0 {
		return Edit{}, rewritten("%s was rewritten since (line %d).", where(e.Chain), i+1)
	}
	back := Edit{
		Chain: e.Chain, Create: e.Delete, Delete: e.Create, Base: e.Before, Before: e.Base, Userdata: e.Userdata,
	}
	next := 0
	for _, l := range e.Lines {
		if l.Mark == Remove {
			back.Lines = append(back.Lines, Line{Mark: Add, Rule: l.Rule, Raw: l.Raw})
			continue
		}
		now := current[next]
		if next++; l.Mark == Add {
			now.Mark = Remove
		}
		back.Lines = append(back.Lines, now)
	}
	return back, met(GuardRewritten, where(e.Chain)+" is as it was left")
}

// afterLines are the lines that an edit left.
func afterLines(e Edit) []Line {
	return slices.DeleteFunc(slices.Clone(e.Lines), func(l Line) bool { return l.Mark == Remove })
}

// differ gives the first line in which two contents of a chain differ, -1 if none.
func differ(a, b []Line) int {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || !same(a[i], b[i]) {
			return i
		}
	}
	return -1
}

// same tells whether two lines are one rule: by the kernel's number where there is one, else by the words.
func same(a, b Line) bool {
	if a.Handle != 0 && b.Handle != 0 && a.Handle != b.Handle {
		return false
	}
	return a.Rule.String() == b.Rule.String()
}

// undoShared finds our lines among those of others.
func undoShared(e Edit, current []Line) (Edit, Guard) {
	after := afterLines(e)
	at := align(after, current)
	back := Edit{Chain: e.Chain, Shared: true}
	for i, l := range after {
		if l.Mark != Add {
			continue
		}
		if at[i] < 0 {
			return Edit{}, rewritten("%s was rewritten since: %s is not there.", where(e.Chain), shown(l.Rule, e.Chain))
		}
		current[at[i]].Mark = Remove
	}
	for _, l := range e.Lines {
		if l.Mark == Remove && surplus(e.Lines, current, l.Rule) {
			return Edit{}, rewritten("%s was rewritten since: %s is back.", where(e.Chain), shown(l.Rule, e.Chain))
		}
	}
	before := insertions(e.Lines, at, len(current))
	for i := range len(current) + 1 {
		for _, l := range before[i] {
			back.Lines = append(back.Lines, Line{Mark: Add, Rule: l.Rule, Raw: l.Raw})
		}
		if i < len(current) {
			back.Lines = append(back.Lines, current[i])
		}
	}
	return back, met(GuardRewritten, "our lines in "+where(e.Chain)+" are as they were left")
}

// surplus tells whether there are more copies of a rule than were left.
func surplus(lines, current []Line, r flannel.Rule) bool {
	text := r.String()
	n := 0
	for _, l := range current {
		if l.Rule.String() == text {
			n++
		}
	}
	for _, l := range lines {
		if l.Mark != Remove && l.Rule.String() == text {
			n--
		}
	}
	return n > 0
}

// insertions gives for each line that went the line of today before which it comes back: next to the neighbour that is still
// there, the one before it first, else the nearest one.
func insertions(lines []Line, at []int, size int) map[int][]Line {
	out := map[int][]Line{}
	left := 0 // lines that were left, so far
	for _, l := range lines {
		if l.Mark != Remove {
			left++
			continue
		}
		place := anchor(at, left, size)
		out[place] = append(out[place], l)
	}
	return out
}

// anchor finds the place between the lines that were left for one that stood behind the first n of them.
func anchor(at []int, n, size int) int {
	for d := range len(at) + 1 {
		if i := n - 1 - d; i >= 0 && at[i] >= 0 {
			return at[i] + 1
		}
		if i := n + d; i < len(at) && at[i] >= 0 {
			return at[i]
		}
	}
	if n == 0 {
		return 0
	}
	return size
}

// align finds each line of a in b, in order, -1 where it is gone. Equal beginnings and ends are taken as they are; between
// them the longest common subsequence counts, or, where that would take too long, what occurs once.
func align(a, b []Line) []int {
	at := make([]int, len(a))
	for i := range at {
		at[i] = -1
	}
	lo := 0
	for lo < len(a) && lo < len(b) && same(a[lo], b[lo]) {
		at[lo] = lo
		lo++
	}
	hi, top := len(a), len(b)
	for hi > lo && top > lo && same(a[hi-1], b[top-1]) {
		hi, top = hi-1, top-1
		at[hi] = top
	}
	const affordable = 1 << 22
	if (hi-lo)*(top-lo) <= affordable {
		subsequence(a[lo:hi], b[lo:top], at[lo:hi], lo)
	} else {
		unique(a[lo:hi], b[lo:top], at[lo:hi], lo)
	}
	return at
}

func subsequence(a, b []Line, at []int, offset int) {
	n, m := len(a), len(b)
	best := make([][]int32, n+1)
	for i := range best {
		best[i] = make([]int32, m+1)
	}
	for i := n - 1; i >= 0; i-- {
		for j := m - 1; j >= 0; j-- {
			if same(a[i], b[j]) {
				best[i][j] = best[i+1][j+1] + 1
			} else {
				best[i][j] = max(best[i+1][j], best[i][j+1])
			}
		}
	}
	for i, j := 0, 0; i < n && j < m; {
		switch {
		case same(a[i], b[j]):
			at[i] = j + offset
			i, j = i+1, j+1
		case best[i+1][j] >= best[i][j+1]:
			i++
		default:
			j++
		}
	}
}

// unique pairs lines that occur once on both sides and keep their order.
func unique(a, b []Line, at []int, offset int) {
	where := map[string]int{}
	for j, l := range b {
		if _, again := where[l.key()]; again {
			where[l.key()] = -1
		} else {
			where[l.key()] = j
		}
	}
	last := -1
	for i, l := range a {
		if j, ok := where[l.key()]; ok && j > last {
			at[i], last = j+offset, j
		}
	}
}

func (l Line) key() string { return fmt.Sprintf("%d %s", l.Handle, l.Rule) }

func describeUndo(p *Plan, r Receipt) {
	p.Title = fmt.Sprintf("Take back %s of %s", r.Kind, r.Time.UTC().Format("2006-01-02 15:04:05 UTC"))
	p.Why = []string{"it was: " + flannel.Printable(r.Title)}
	if p.Empty() {
		p.Title = "Nothing to do: nothing is left to take back"
		return
	}
	switch r.Kind {
	case KindReapply:
		p.Effects = []string{"What was put back goes again: pods can lose their way to the outside."}
	case KindPurge:
		p.Effects = []string{"The rules that were removed act on traffic again."}
	default:
		p.Effects = []string{"What the undo took back is done again."}
	}
	p.Notes = []string{"rules come back at their former places among those of others"}
}
