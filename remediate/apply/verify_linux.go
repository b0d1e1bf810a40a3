package apply

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"flanwatch/flannel"
	"flanwatch/remediate"
)

// verified reads everything anew and holds it against the plan, by our own reading and by iptables -C, which is how flanneld
// itself looks. It completes the receipt.
func (r *run) verified(ctx context.Context) error {
	if !r.plan.ChangesRules() {
		return nil
	}
	fresh, err := r.Rules(r.facts, true)
	var problems []string
	if err != nil {
		problems = []string{"read rules: " + err.Error()}
	} else {
		problems = Differences(&r.receipt, fresh)
	}
	if r.lock != nil { // iptables-legacy -C takes it too
		r.lock.Release()
		r.lock = nil
	}
	if len(problems) == 0 {
		problems = r.ask(ctx)
	}
	r.receipt.Result = remediate.ResultVerified
	if len(problems) > 0 {
		r.receipt.Result, r.receipt.Why = remediate.ResultUnverified, strings.Join(problems, "; ")
	}
	if err := r.Store.Put(r.receipt); err != nil {
		problems = append(problems, err.Error())
	}
	if r.plan.Undoes != "" && len(problems) == 0 {
		if err := r.markUndone(); err != nil {
			problems = append(problems, err.Error())
		}
	}
	if len(problems) > 0 {
		return &UnverifiedError{Receipt: r.receipt.ID, Problems: problems}
	}
	return nil
}

func (r *run) markUndone() error {
	old, err := r.Store.Get(r.plan.Undoes)
	if err != nil {
		return err
	}
	old.Result, old.Why = remediate.ResultUndone, "by "+r.receipt.ID
	return r.Store.Put(old)
}

// Differences holds what a receipt promises against the rules that are there, and takes the handles of new rules down in the
// receipt. It gives one clause for each difference.
func Differences(receipt *remediate.Receipt, f remediate.Facts) []string {
	var out []string
	for _, t := range receipt.Tables {
		if r := f.Rules[t.Table.Backend]; r.State == flannel.Known && r.Value.HasTable(t.Table) != t.Create {
			out = append(out, "table "+t.Table.String()+" is not as planned")
		}
	}
	for i := range receipt.Edits {
		out = append(out, difference(&receipt.Edits[i], f)...)
	}
	return out
}

func difference(e *remediate.Edit, f remediate.Facts) []string {
	reading := f.Rules[e.Chain.Backend]
	if reading.State != flannel.Known {
		if e.Chain.Backend == flannel.IptablesLegacy && reading.State == flannel.Absent && e.Count(remediate.Add) == 0 {
			return nil
		}
		return []string{e.Chain.String() + " could not be read"}
	}
	c := reading.Value.Chain(e.Chain)
	there := c != nil && c.Present
	if gone := e.Delete && !e.Create; gone || !there {
		if there || !gone {
			return []string{e.Chain.String() + map[bool]string{true: " is still there", false: " is not there"}[gone]}
		}
		return nil
	}
	if e.Shared {
		return sharedDifference(e, c)
	}
	want := e.After()
	if len(want) != len(c.Entries) {
		return []string{fmt.Sprintf("%s has %d rules, not %d", e.Chain, len(c.Entries), len(want))}
	}
	at := 0
	for i := range e.Lines {
		l := &e.Lines[i]
		if l.Mark == remediate.Remove {
			continue
		}
		now := c.Entries[at]
		if at++; now.Rule.String() != l.Rule.String() {
			return []string{fmt.Sprintf("%s differs in rule %d", e.Chain, at)}
		}
		if l.Mark == remediate.Add {
			l.Handle, l.Body = now.Handle, now.Body
		}
	}
	return nil
}

// sharedDifference looks for our lines among those of others.
func sharedDifference(e *remediate.Edit, c *flannel.Chain) []string {
	var out []string
	used := map[int]bool{}
	for i := range e.Lines {
		l := &e.Lines[i]
		if l.Mark == remediate.Keep {
			if at := slices.IndexFunc(c.Entries, func(x flannel.Entry) bool { return l.Handle != 0 && x.Handle == l.Handle }); at >= 0 {
				used[at] = true
			}
		}
	}
	for i := range e.Lines {
		l := &e.Lines[i]
		at := -1
		for j, x := range c.Entries {
			if !used[j] && x.Rule.String() == l.Rule.String() {
				at = j
				break
			}
		}
		switch {
		case l.Mark == remediate.Add && at < 0:
			out = append(out, fmt.Sprintf("%s lacks %s", e.Chain, l.Rule))
		case l.Mark == remediate.Add:
			used[at] = true
			l.Handle, l.Body = c.Entries[at].Handle, c.Entries[at].Body
		case l.Mark == remediate.Keep && l.Handle == 0 && at >= 0:
			used[at] = true
		case l.Mark == remediate.Remove && l.Handle != 0 &&
			slices.ContainsFunc(c.Entries, func(x flannel.Entry) bool { return x.Handle == l.Handle }):
			out = append(out, fmt.Sprintf("%s still has %s", e.Chain, l.Rule))
		}
	}
	return out
}

// ask lets the node's own iptables look for each rule that came. Where there is none, our own reading has to do, and the
// receipt says so.
func (r *run) ask(ctx context.Context) []string {
	var out []string
	unasked := map[string]bool{}
	for _, e := range r.receipt.Edits {
		if e.Chain.Backend == flannel.Nftables || e.Count(remediate.Add) == 0 {
			continue
		}
		name := remediate.Program(e.Chain.Backend, e.Chain.Family)
		tool, err := r.Tools.Find(e.Chain.Backend, e.Chain.Family, check)
		if err != nil && !unasked[name] {
			r.receipt.Notes = append(r.receipt.Notes, "verified by reading alone: there is no "+name+" to be asked")
			unasked[name] = true
		}
		if err == nil {
			out = append(out, r.Tools.askFor(ctx, tool, e)...)
		}
	}
	return out
}

// finder tells whether a rule is found. The library is how flanneld looks; it cannot look from inside another root, nor by
// a program of many names.
func (t *Tools) finder(ctx context.Context, tool Tool, f flannel.Family) (func(table, chain string, rule []string) (bool, error), error) {
	if t.root == "" && len(tool.Words) == 0 {
		protocol := iptables.ProtocolIPv4
		if f == flannel.IPv6 {
			protocol = iptables.ProtocolIPv6
		}
		ipt, err := iptables.New(iptables.IPFamily(protocol), iptables.Path(tool.Path), iptables.Timeout(5))
		if err != nil {
			return nil, err
		}
		return func(table, chain string, rule []string) (bool, error) { return ipt.Exists(table, chain, rule...) }, nil
	}
	return func(table, chain string, rule []string) (bool, error) {
		_, err := t.run(ctx, tool, append([]string{"--wait", "5", "-t", table, "-C", chain}, rule...), "", nil)
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 1 {
			return false, nil
		}
		return err == nil, err
	}, nil
}

func (t *Tools) askFor(ctx context.Context, tool Tool, e remediate.Edit) []string {
	find, err := t.finder(ctx, tool, e.Chain.Family)
	if err != nil {
		return []string{"ask " + tool.Path + ": " + err.Error()}
	}
	var out []string
	for _, l := range e.Lines {
		if l.Mark != remediate.Add || l.Rule.Opaque() {
			continue
		}
		there, err := find(e.Chain.Table, e.Chain.Name, words(l.Rule.String()))
		switch {
		case err != nil:
			out = append(out, fmt.Sprintf("ask %s for %s: %v", tool.Path, l.Rule, err))
		case !there:
			out = append(out, fmt.Sprintf("%s does not find %s", tool.Path, l.Rule))
		}
	}
	return out
}

// words splits a rule as iptables-save prints it: by blanks, but for what is quoted.
func words(text string) []string {
	var out []string
	var b strings.Builder
	quoted, any := false, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted, any = !quoted, true
		case c == '\\' && quoted && i+1 < len(text):
			i++
			b.WriteByte(text[i])
		case c == ' ' && !quoted:
			if any {
				out = append(out, b.String())
			}
			b.Reset()
			any = false
		default:
			b.WriteByte(c)
			any = true
		}
	}
	if any {
		out = append(out, b.String())
	}
	return out
}

// asBefore holds the legacy tables against what the receipt found there, and gives one clause for each difference.
func asBefore(receipt remediate.Receipt, f remediate.Facts) []string {
	var out []string
	for _, e := range receipt.Edits {
		if e.Chain.Backend != flannel.IptablesLegacy {
			continue
		}
		var now, before []string
		if rules := f.Rules[e.Chain.Backend]; rules.State == flannel.Known {
			if c := rules.Value.Chain(e.Chain); c != nil {
				for _, x := range c.Entries {
					now = append(now, x.Rule.String())
				}
			}
		}
		for _, l := range e.Lines {
			if l.Mark != remediate.Add {
				before = append(before, l.Rule.String())
			}
		}
		if !slices.Equal(now, before) {
			out = append(out, fmt.Sprintf("%s has %d rules and is not what it was with %d", e.Chain, len(now), len(before)))
		}
	}
	return out
}

// LookAgain makes the plan anew some time after it was carried out, two repair periods as a rule. A plan that is not empty
// says what somebody undid, or what flanneld's own check-then-add doubled.
func (a *Applier) LookAgain(make Maker) (remediate.Plan, []remediate.Refusal, error) {
	facts, err := a.Facts()
	if err != nil {
		return remediate.Plan{}, nil, fmt.Errorf("read facts: %w", err)
	}
	p, refused := make(facts)
	p.Flows = nil // what was deleted is gone for good, and what came since is of another plan
	return p, refused, nil
}
