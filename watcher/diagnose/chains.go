package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"flanwatch/flannel"
)

const (
	// grace is how long an empty chain may be a start of flanneld: measured windows last 40 to 400 ms, beside very large
	// legacy tables one second.
	grace = time.Second
	// many copies of one rule cost every packet.
	many = 10
	// listed is how many rules a finding quotes.
	listed = 8
)

// The remedies; the words are part of the JSON contract.
const (
	RemedyReapply = "reapply"
	RemedyUnstick = "unstick"
	RemedyPurge   = "purge"
	RemedySet     = "set"
	RemedyNone    = "none"
)

// judgeChain turns what is wrong with a chain that is due into findings.
func (j *judgement) judgeChain(s sight, w flannel.Wanted, d flannel.ChainDiff) {
	switch d.State {
	case flannel.ChainAbsent:
		if s.backend != flannel.Nftables || s.table {
			j.repair(s, d, "chain-missing", j.harm(s, w), j.name(d.ID)+" is missing: "+j.effect(s, w), j.startingUp())
		}
		return
	case flannel.ChainEmpty:
		j.judgeEmpty(s, w, d)
		return
	case flannel.ChainUnreferenced:
		j.repair(s, d, "hook-missing", j.harm(s, w), "Nothing leads to "+j.name(d.ID)+": "+j.effect(s, w))
	}
	if d.State != flannel.ChainUnreferenced && w.HookChain != (flannel.ChainID{}) && d.Hook.Position == 0 {
		j.repair(s, d, "hook-missing", Warning, "Only some packets come to "+j.name(d.ID)+": its jump has conditions.")
	}
	j.judgeCopies(s, w, d)
	c := s.rules.Chain(d.ID)
	if w.Base != nil && c != nil && c.Base != nil && *c.Base != *w.Base {
		j.repair(s, d, "base-differs", Warning, j.name(d.ID)+" is called by the kernel in another place than Flannel's.",
			fmt.Sprintf("type %s hook %s priority %d policy %s", flannel.Printable(c.Base.Type), flannel.Printable(c.Base.Hook),
				c.Base.Priority, flannel.Printable(c.Base.Policy)))
	}
	if len(w.Rules) == 0 {
		return // nothing tells which rules it should have
	}
	if told := j.mismatch(s, w, d); told != "" {
		f := Finding{ID: "subnet-mismatch", Severity: Warning, Object: d.ID.String(), Chain: d.ID}
		f.Summary = fmt.Sprintf("The rules in %s are for %s, the node's configuration names %s.", j.name(d.ID), told, j.ours(s))
		f.Detail = append(j.sources(), j.presence())
		j.offerReapply(&f)
		j.find(f)
		return
	}
	j.judgeRules(s, w, d)
}

func (j *judgement) judgeEmpty(s sight, w flannel.Wanted, d flannel.ChainDiff) {
	severity := j.harm(s, w)
	since := j.history.Since[d.ID]
	if young := j.facts.At.Sub(since) < grace; !since.IsZero() && young && j.runs() && severity == Critical {
		severity = Warning
	}
	detail := []string{"the chain is there and holds no rule"}
	if d.Wanted > 0 {
		detail[0] = fmt.Sprintf("0 of %s are there", rules(d.Wanted))
	}
	if w.HookChain != (flannel.ChainID{}) && d.Hook.Position == 0 {
		detail = append(detail, "nothing jumps to it either")
	}
	j.repair(s, d, "chain-empty", severity, j.name(d.ID)+" is empty: "+j.effect(s, w), append(detail, j.startingUp())...)
}

// judgeCopies tells of a chain that is jumped to more than once.
func (j *judgement) judgeCopies(s sight, w flannel.Wanted, d flannel.ChainDiff) {
	if d.Hook.Copies < 2 {
		return
	}
	severity := Info
	if d.Hook.Copies >= many {
		severity = Warning
	}
	f := Finding{ID: "rule-duplicate", Severity: severity, Object: w.HookChain.String(), Chain: w.HookChain}
	f.Summary = fmt.Sprintf("The jump to %s stands in %s ×%d: packets walk the chain again.",
		d.ID.Name, j.name(w.HookChain), d.Hook.Copies)
	f.Detail = []string{"flanneld looks only whether there is one, and never removes another"}
	j.offerReapply(&f)
	j.find(f)
}

// judgeTable tells of a native table that is missing as a whole.
func (j *judgement) judgeTable(s sight, wanted []flannel.Wanted) {
	if s.backend != flannel.Nftables || s.table || len(wanted) == 0 {
		return
	}
	id := s.masq.id.TableID()
	f := Finding{ID: "table-missing", Severity: j.harm(s, wanted[0]), Object: id.String(), Chain: wanted[0].ID}
	f.Summary = fmt.Sprintf("Table %s %s is missing: %s", id.Family, id.Name, j.effect(s, wanted[0]))
	f.Detail = []string{"in nftables mode flanneld repairs nothing until it is started again", j.presence()}
	j.offerReapply(&f)
	j.find(f)
}

// judgeRules tells what is wrong with single rules, one finding for each sort.
func (j *judgement) judgeRules(s sight, w flannel.Wanted, d flannel.ChainDiff) {
	by := map[flannel.RuleStatus][]flannel.RuleDiff{}
	for _, r := range d.Rules {
		by[r.Status] = append(by[r.Status], r)
	}
	by[flannel.RuleExtra] = append(by[flannel.RuleExtra], by[flannel.RuleOpaque]...)
	if l := by[flannel.RuleMissing]; len(l) > 0 {
		j.repair(s, d, "rule-missing", j.missingHarm(s, w, l), fmt.Sprintf("%d of %s of %s missing: %s",
			len(l), rules(d.Wanted), isOrAre(j.name(d.ID), len(l)), missingEffect(j, s, w, l)), quote(d.ID, l)...)
	}
	if l := by[flannel.RuleMisplaced]; len(l) > 0 {
		severity, text := Info, "the order of these makes no difference"
		if orderMatters(d.Rules) {
			severity, text = Warning, "traffic between pods can be masqueraded before the rule that spares it"
		}
		j.repair(s, d, "rule-order", severity, fmt.Sprintf("%s of %s out of order: %s.", rules(len(l)),
			isOrAre(j.name(d.ID), len(l)), text), quote(d.ID, l)...)
	}
	if l := by[flannel.RuleVariant]; len(l) > 0 {
		j.repair(s, d, "rule-variant", Warning, variantText(j.name(d.ID), l), quote(d.ID, l)...)
	}
	if l := by[flannel.RuleDuplicate]; len(l) > 0 {
		j.judgeDuplicates(s, d, l)
	}
	if l := by[flannel.RuleExtra]; len(l) > 0 {
		j.judgeExtra(s, d, l)
	}
}

func (j *judgement) judgeDuplicates(s sight, d flannel.ChainDiff, l []flannel.RuleDiff) {
	copies, severity := 0, Info
	for _, r := range l {
		copies += r.Times
	}
	if copies >= many {
		severity = Warning
	}
	needless := "1 needless copy"
	if copies > 1 {
		needless = fmt.Sprintf("%d needless copies", copies)
	}
	j.repair(s, d, "rule-duplicate", severity, fmt.Sprintf("%s holds %s more than once: %s in the way of every packet.",
		j.name(d.ID), rules(len(l)), needless), quote(d.ID, l)...)
}

// judgeExtra tells of rules in Flannel's chain that are not Flannel's. They are not flanwatch's to remove.
func (j *judgement) judgeExtra(s sight, d flannel.ChainDiff, l []flannel.RuleDiff) {
	n, own := 0, true
	for _, r := range l {
		n += r.Times
		own = own && strings.HasPrefix(r.Rule.Comment(), "flanneld ")
	}
	if own && d.ID.Name == flannel.ChainMasq {
		j.repair(s, d, "rule-extra", Warning, fmt.Sprintf("%s holds %s of Flannel that are for another subnet than this node's.",
			j.name(d.ID), rules(n)), append(quote(d.ID, l), "flanneld removes the rules of an old subnet only if subnet.env still tells it")...)
		return
	}
	j.find(Finding{
		ID: "rule-extra", Severity: Warning, Object: d.ID.String(), Chain: d.ID,
		Summary: fmt.Sprintf("%s holds %s that Flannel did not write.", j.name(d.ID), rules(n)),
		Detail:  append(quote(d.ID, l), "flanneld does not look for it; its next start empties the chain"),
		Remedy:  RemedyNone,
		Refused: "the rule is not Flannel's, and flanwatch removes no rule of others",
	})
}

// mismatch tells the prefixes that the rules are for, if they are complete for other ones than the node's.
func (j *judgement) mismatch(s sight, w flannel.Wanted, d flannel.ChainDiff) string {
	t := s.own
	if t == nil || d.Found == d.Wanted || slices.ContainsFunc(d.Rules, func(r flannel.RuleDiff) bool {
		return r.Status == flannel.RuleDuplicate || r.Status == flannel.RuleOpaque
	}) {
		return ""
	}
	for _, v := range flannel.Expected(t.Networks, t.Subnets, t.Generation, t.Options, s.backend, s.family) {
		if v.ID == w.ID && flannel.Compare(s.rules, v).State == flannel.ChainOK {
			return pair(t.Networks, t.Subnets)
		}
	}
	return ""
}

func (j *judgement) ours(s sight) string {
	p := j.prefixes(s)
	return pair(p.networks, p.subnets)
}

// repair adds a finding about a chain that is due, with the remedy of putting it right.
func (j *judgement) repair(s sight, d flannel.ChainDiff, id string, sev Severity, summary string, detail ...string) {
	f := Finding{ID: id, Severity: sev, Object: d.ID.String(), Chain: d.ID, Summary: summary, Detail: detail}
	f.Detail = slices.DeleteFunc(append(f.Detail, j.elsewhere(), j.presence()), func(s string) bool { return s == "" })
	if j.prefixes(s).fromRules {
		f.Detail = append(f.Detail, "the pod networks are taken from the rules themselves")
	}
	j.offerReapply(&f)
	j.find(f)
}

// offerReapply offers to put the rules back, unless flanneld is about to do that itself or nobody knows what is due.
func (j *judgement) offerReapply(f *Finding) {
	f.Remedy = RemedyReapply
	switch {
	case j.flannel.State == FlannelStarting:
		f.Refused = "flanneld is starting and fills its chains itself; a repair now could double its rules"
	case j.flannel.State == FlannelUnknown:
		f.Refused = "whether Flannel runs here is not known"
	case j.undecided():
		f.Refused = "nothing tells whether flanneld is in iptables or in nftables mode"
	case j.facts.Node.Networks.State != flannel.Known:
		f.Refused = "the networks of the pods are not known"
	}
	if f.Refused != "" {
		f.Remedy = RemedyNone
	}
}

func (j *judgement) startingUp() string {
	if j.flannel.State != FlannelStarting {
		return ""
	}
	return "flanneld is starting and fills its chains within moments"
}

// orderMatters tells whether a rule that masquerades stands before one that spares traffic, and should not.
func orderMatters(list []flannel.RuleDiff) bool {
	for _, m := range list {
		if m.Rule.Target.Kind != flannel.TargetMasquerade || m.Found == 0 || m.Want == 0 {
			continue
		}
		for _, r := range list {
			if r.Rule.Target.Kind == flannel.TargetReturn && r.Want > 0 && r.Want < m.Want && r.Found > m.Found {
				return true
			}
		}
	}
	return false
}

func variantText(name string, l []flannel.RuleDiff) string {
	if slices.ContainsFunc(l, func(r flannel.RuleDiff) bool { return r.Want == 0 }) {
		return name + " masquerades twice over, with and without --random-fully: the first one wins."
	}
	if l[0].Rule.Target.RandomFully {
		return name + " chooses ports with --random-fully, which flanneld was told not to."
	}
	return name + " chooses ports without --random-fully: two connections at once can take the same one."
}

func quote(id flannel.ChainID, l []flannel.RuleDiff) []string {
	var out []string
	for i, r := range l {
		if i == listed {
			return append(out, fmt.Sprintf("and %d more", len(l)-i))
		}
		line := text(r.Rule, id)
		if r.Times > 1 {
			line += fmt.Sprintf(" ×%d", r.Times)
		}
		if r.Found > 0 {
			line = fmt.Sprintf("%d: %s", r.Found, line)
		}
		if r.Status == flannel.RuleOpaque {
			line += " (not understood in full)"
		}
		out = append(out, line)
	}
	return out
}

func isOrAre(chain string, n int) string {
	if n == 1 {
		return chain + " is"
	}
	return chain + " are"
}

func join[T fmt.Stringer](list []T) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = v.String()
	}
	return strings.Join(words, ", ")
}
