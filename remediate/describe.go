package remediate

import (
	"fmt"
	"slices"
	"strings"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// describeReapply puts a plan of reapply into words.
func describeReapply(p *Plan, f Facts, a diagnose.Assessment) {
	p.Title = "Nothing to do: Flannel's rules are as they should be"
	if p.Empty() {
		return
	}
	var parts []string
	for _, e := range p.Edits {
		if text := reapplyText(e); text != "" {
			parts = append(parts, text)
		}
	}
	p.Title = sentence(strings.Join(parts, "; "))
	p.Effects = reapplyEffects(*p)
	p.Notes = append(p.Notes, f.flanneldNotes(a)...)
	for _, w := range a.Due {
		if i := slices.IndexFunc(p.Edits, func(e Edit) bool { return e.Chain == w.ID }); i < 0 || w.Shared {
			continue
		} else if n := foreignLines(p.Edits[i]); n > 0 {
			p.Notes = append(p.Notes, fmt.Sprintf("%s that Flannel did not write stay in %s", rules(n), w.ID.Short()))
		}
	}
	if len(f.Node.Others) > 0 {
		p.Notes = append(p.Notes, "sources disagree about the networks; the rules are for those from "+flannel.Printable(f.Node.Networks.Source))
	}
	if _, known := f.Node.RandomFully.Get(); !known && slices.ContainsFunc(p.Edits, addsMasquerade) {
		p.Notes = append(p.Notes, "flanneld's flags are not known; --random-fully is Flannel's default")
	}
}

func reapplyText(e Edit) string {
	add, remove := e.Count(Add), e.Count(Remove)
	name := where(e.Chain)
	switch {
	case e.Shared && add > 0 && remove == 0:
		return "put " + rules(add) + " into " + name
	case e.Shared && add == 0:
		return "remove " + rules(remove) + " that stand in " + name + " again"
	case e.Create && !e.Delete:
		return fmt.Sprintf("make %s with %s", name, rules(add))
	case remove == 0:
		return fmt.Sprintf("re-apply %s to %s", rules(add), name)
	case add == 0:
		return fmt.Sprintf("remove %s from %s", rules(remove), name)
	}
	return fmt.Sprintf("put %s of %s right", rules(max(add, remove)), name)
}

func reapplyEffects(p Plan) []string {
	masq, forward := false, false
	for _, e := range p.Edits {
		masq = masq || e.Chain.Table == flannel.TableNat || e.Chain.Name == flannel.NativeMasq
		forward = forward || e.Chain.Table == flannel.TableFilter || e.Chain.Name == flannel.NativeForward
	}
	var out []string
	if masq {
		out = append(out, "Pods of this node reach the outside with masquerade again.")
	}
	if forward {
		out = append(out, "Forwarded traffic of pods is accepted again.")
	}
	if masq {
		out = append(out, "Connections opened meanwhile keep the addresses that they were opened with.")
	}
	return out
}

// flanneldNotes say what flanneld may do at the same time.
func (f Facts) flanneldNotes(a diagnose.Assessment) []string {
	switch {
	case a.Flannel.State == diagnose.FlannelCrashing:
		return []string{"Flannel does not stay up: each of its starts empties the chains again"}
	case !runs(a.Flannel.State):
		return []string{"Flannel does not run now: when it starts it empties and fills its chains itself"}
	case a.Flannel.Dialect == diagnose.DialectNftables:
		return []string{"in nftables mode flanneld repairs nothing until it is started again"}
	}
	if d, known := f.Node.Resync.Get(); known && d > 0 {
		return []string{fmt.Sprintf("flanneld resyncs every %v and may get there first", d)}
	}
	return []string{"flanneld resyncs every few seconds and may get there first"}
}

func addsMasquerade(e Edit) bool {
	return slices.ContainsFunc(e.Lines, func(l Line) bool { return l.Mark == Add && l.Rule.Target.Kind == flannel.TargetMasquerade })
}

func foreignLines(e Edit) int {
	n := 0
	for _, l := range e.Lines {
		if l.Mark == Keep && !commented(l.Rule) && e.Chain.Backend != flannel.Nftables {
			n++
		}
	}
	return n
}

// describePurge puts a plan of purge into words.
func describePurge(p *Plan, f Facts, a diagnose.Assessment) {
	p.Title = "Nothing to do: Flannel left nothing here"
	if p.Empty() {
		return
	}
	p.Title = purgeTitle(*p)
	p.Effects = purgeEffects(*p)
	if runs(a.Flannel.State) {
		p.Title += ", which Flannel does not use"
	} else {
		p.Effects = append([]string{"Flannel is gone from this node: " + processes(a) + "."}, p.Effects...)
	}
	if plugin, link := f.otherCNI(); plugin != "" {
		p.Notes = append(p.Notes, fmt.Sprintf("%s owns this node now (interface %s)", plugin, link))
	} else if !runs(a.Flannel.State) {
		p.Notes = append(p.Notes, "no other network plugin is seen: pods that still use these rules lose their way to the outside")
	}
	if w := f.Node.Written; !w.IsZero() && !runs(a.Flannel.State) {
		p.Notes = append(p.Notes, fmt.Sprintf("%s was written %s ago, which proves nothing", flannel.Printable(f.Node.Networks.Source),
			f.At.Wall.Sub(w).Round(1e9)))
	}
	for _, b := range flannel.Backends {
		if r := f.Rules[b]; r.State == flannel.Unreadable {
			p.Notes = append(p.Notes, fmt.Sprintf("%s could not be read (%s): what it holds stays", b, flannel.Printable(r.Why)))
		}
	}
	if len(p.Flows) > 0 {
		p.Effects = append(p.Effects, conntrack.Plan{Flows: p.Flows}.Effect()...)
		return
	}
	p.Notes = append(p.Notes, "connections that these rules translated stay translated until they end")
}

func purgeTitle(p Plan) string {
	chains, jumpsGone, bare := 0, 0, 0
	for _, e := range p.Edits {
		if e.Delete {
			chains++
			continue
		}
		for _, l := range e.Lines {
			switch {
			case l.Mark != Remove:
			case l.Rule.Target.Kind == flannel.TargetJump:
				jumpsGone++
			default:
				bare++
			}
		}
	}
	var parts []string
	for _, part := range []struct {
		n    int
		what string
	}{{chains, "chain"}, {jumpsGone, "jump"}, {bare, "old rule"}, {len(p.Tables), "native table"}} {
		if part.n > 0 {
			parts = append(parts, count(part.n, part.what))
		}
	}
	flows := count(len(p.Flows), "connection")
	switch {
	case len(parts) == 0:
		return "Delete " + flows + " that a rule of Flannel translated"
	case len(p.Flows) == 0:
		return "Remove " + strings.Join(parts, ", ") + " of Flannel"
	}
	return "Remove " + strings.Join(parts, ", ") + " of Flannel, and delete " + flows + " that it translated"
}

func purgeEffects(p Plan) []string {
	masq, forward := false, false
	for _, e := range p.Edits {
		for _, l := range e.Lines {
			masq = masq || l.Mark == Remove && l.Rule.Target.Kind == flannel.TargetMasquerade
			forward = forward || l.Mark == Remove && l.Rule.Target.Kind == flannel.TargetAccept
		}
	}
	var out []string
	if masq {
		out = append(out, "Traffic of pods is no longer translated by Flannel's rules.")
	}
	if forward {
		out = append(out, "Forwarded traffic of Flannel's networks is no longer accepted by Flannel's rules.")
	}
	if len(out) == 0 && p.ChangesRules() {
		out = append(out, "None: what is removed does nothing.")
	}
	return out
}

// where names a chain with its backend.
func where(id flannel.ChainID) string { return id.Backend.String() + " " + id.Short() }

func rules(n int) string { return count(n, "rule") }

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func sentence(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
