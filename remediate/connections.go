package remediate

import (
	"fmt"
	"hash"
	"slices"
	"strings"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// PartConnections is the part of a purge that deletes connections which keep the translation of a rule that goes.
const PartConnections = "connections"

// Gone says what became of a connection that a plan deletes.
type Gone struct {
	Kind conntrack.Kind `json:"kind"`
	Flow conntrack.Flow `json:"flow"` // both its tuples, with the kernel's number of the entry
	Fate Fate           `json:"fate"`
	Why  string         `json:"why,omitempty"` // for FateLeft
}

// Fate is what became of a connection.
type Fate string

// The fates. Planned stays where flanwatch died on the way.
const (
	FatePlanned Fate = "planned"
	FateDeleted Fate = "deleted"
	FateGone    Fate = "gone" // it had ended by itself
	FateLeft    Fate = "left" // it was another one by then, or could not be deleted
)

// Unstick plans to delete connections that keep a wrong translation, of the kinds chosen or of all that a deletion helps.
// Bare ones are left alone while the rules are missing: they would begin anew as bare.
func Unstick(f Facts, c Choice) (Plan, []Refusal) {
	p := Plan{Kind: KindUnstick}
	survey, known := f.Flows.Get()
	if !known {
		return Plan{}, []Refusal{f.unseen()}
	}
	kinds := c.Kinds
	if len(kinds) == 0 {
		kinds = []conntrack.Kind{conntrack.Bare, conntrack.Translated, conntrack.Stale}
	}
	var refused []Refusal
	a := diagnose.Assess(f.Facts, f.History)
	for _, found := range a.Findings {
		if found.ID == "flows-bare" && found.Refused != "" && slices.Contains(kinds, conntrack.Bare) {
			kinds = slices.DeleteFunc(slices.Clone(kinds), func(k conntrack.Kind) bool { return k == conntrack.Bare })
			why := "Bare connections are left alone: " + found.Refused + "."
			refused = append(refused, Refusal{Name: GuardRules, Why: why, Change: "flanwatch reapply, or flanneld's own repair"})
			p.Notes = append(p.Notes, why)
		}
	}
	p.Flows = conntrack.Unstick(&survey, kinds...).Flows
	p.finish()
	if p.Empty() {
		if len(refused) > 0 {
			return Plan{}, refused
		}
		p.Title = "Nothing to do: no connection keeps a wrong translation"
		return p, nil
	}
	p.Title = "Delete " + count(len(p.Flows), "connection")
	p.Effects = conntrack.Plan{Flows: p.Flows}.Effect()
	return p, nil
}

// unseen is the guard on whether connections could be read.
func (f Facts) unseen() Guard {
	why := f.Flows.Why
	if why == "" {
		why = "nobody looked at them"
	}
	return Guard{
		Name: GuardReadable, Why: "The connections could not be read: " + flannel.Printable(why) + ".",
		Change: "run flanwatch as root, in the node's network namespace",
	}
}

// purgeConnections takes in, if that is chosen, the connections that Flannel's rules translated from pod to pod. It gives the
// guard on whether they can be told.
func (p *Plan) purgeConnections(f Facts, c Choice) []Guard {
	if !slices.Contains(c.With, PartConnections) {
		return nil
	}
	survey, known := f.Flows.Get()
	if !known {
		return []Guard{f.unseen()}
	}
	p.Flows = conntrack.Unstick(&survey, conntrack.Translated).Flows
	return nil
}

// connectionsPart is the part as a dialog offers it.
func connectionsPart(p *Plan, f Facts, c Choice) Part {
	part := Part{Name: PartConnections, On: slices.Contains(c.With, PartConnections)}
	survey, known := f.Flows.Get()
	n := survey.Kinds[conntrack.Translated].Flows
	switch {
	case part.On && len(p.Flows) == 0, known && n == 0:
		part.Text = "no connection keeps the translation of these rules"
	case !known:
		part.Text = "delete those that keep the translation of these rules; they were not looked at yet"
	default:
		part.Text = fmt.Sprintf("delete %s from pod to pod that keep the translation of these rules; cannot be undone",
			count(int(n), "connection"))
	}
	return part
}

// hashFlows writes what makes the connections of a plan the same ones.
func (p *Plan) hashFlows(h hash.Hash) {
	for i := range p.Flows {
		f := &p.Flows[i].Flow
		fmt.Fprintf(h, "flow %v %v %d %d\x00", f.Orig, f.Reply, f.Zone, f.ID)
	}
}

// Deletions begins the record of the connections of a plan.
func (p Plan) Deletions() []Gone {
	var out []Gone
	for i := range p.Flows {
		out = append(out, Gone{Kind: p.Flows[i].Kind, Flow: p.Flows[i].Flow, Fate: FatePlanned})
	}
	return out
}

// Fates counts what became of connections.
func Fates(list []Gone) map[Fate]int {
	out := map[Fate]int{}
	for _, g := range list {
		out[g.Fate]++
	}
	return out
}

// flowLines are the connections of a plan as lines of its diff.
func (p Plan) flowLines() []DiffLine {
	if len(p.Flows) == 0 {
		return nil
	}
	out := []DiffLine{{Keep, "connections"}}
	for i := range p.Flows {
		out = append(out, DiffLine{Remove, flannel.Printable(fmt.Sprintf("%s %s", p.Flows[i].Kind, &p.Flows[i].Flow))})
	}
	return out
}

// flowScript deletes the connections of a plan by hand. It cannot compare the kernel's number of an entry.
func (p Plan) flowScript() string {
	var b strings.Builder
	for i := range p.Flows {
		f := &p.Flows[i].Flow
		t := f.Orig
		family := map[flannel.Family]string{flannel.IPv4: "ipv4", flannel.IPv6: "ipv6"}[f.Family()]
		fmt.Fprintf(&b, "conntrack -D -f %s -p %s --orig-src %s --orig-dst %s", family, f.Protocol(), t.Src, t.Dst)
		if t.SPort != 0 || t.DPort != 0 {
			fmt.Fprintf(&b, " --sport %d --dport %d", t.SPort, t.DPort)
		}
		if f.Zone != 0 {
			fmt.Fprintf(&b, " --zone %d", f.Zone)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
