package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
	"flanwatch/remediate"
)

// commit sends everything for nf_tables in one batch that is good for one generation alone. When others' commits make it
// stale, rules are read again, and the batch is sent again as long as the plan is the same.
func (r *run) commit(ctx context.Context) error {
	for try := range tries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.reread(false); err != nil {
			return err
		}
		b, err := Batch(r.plan)
		if err != nil {
			return err
		}
		b.RequireGeneration(r.generation())
		r.moment("batch", try)
		err = wire.Commit(r.socket, b)
		if errors.Is(err, wire.ErrStale) {
			continue
		}
		if err != nil {
			return fmt.Errorf("change nf_tables: %w", err)
		}
		return nil
	}
	return ErrUnsteady
}

// reread brings the plan up to the ruleset of now: the same change, at today's handles. By the time of the batch the legacy
// tables are changed already, and the plan is about what they were.
func (r *run) reread(legacy bool) error {
	fresh, err := r.Rules(r.facts, legacy)
	if err != nil {
		return fmt.Errorf("read rules: %w", err)
	}
	if !legacy {
		fresh.Facts.Rules[flannel.IptablesLegacy] = r.facts.Rules[flannel.IptablesLegacy]
	}
	p, err := plan(fresh, r.id, r.make)
	if err != nil {
		return err
	}
	if err := r.fill(&p); err != nil {
		return err
	}
	r.facts, r.plan = fresh, p
	r.receipt.Tables, r.receipt.Edits = p.Tables, p.Edits
	return nil
}

// generation is that of the rules that the plan was made from.
func (r *run) generation() uint32 {
	if g := r.facts.Rules[flannel.IptablesNft].Value.Generation; g != 0 {
		return g
	}
	return r.facts.Rules[flannel.Nftables].Value.Generation
}

// Batch turns the part of a plan that concerns nf_tables into one batch: what goes first, then what comes.
func Batch(p remediate.Plan) (*wire.Batch, error) {
	b := &wire.Batch{}
	var edits []remediate.Edit
	for _, backend := range []flannel.Backend{flannel.IptablesNft, flannel.Nftables} {
		for _, t := range p.TablesOf(backend) {
			if i := slices.IndexFunc(p.Tables, func(te remediate.TableEdit) bool { return te.Table == t && te.Delete }); i >= 0 {
				b.DeleteTable(t)
				continue
			}
			edits = append(edits, p.Of(t)...)
		}
	}
	for _, e := range edits {
		for _, l := range e.Lines {
			if l.Mark == remediate.Remove {
				b.DeleteRule(e.Chain, l.Handle)
			}
		}
	}
	for _, e := range edits {
		if e.Delete {
			b.DeleteChain(e.Chain)
		}
	}
	for _, t := range p.Tables {
		if t.Create {
			b.AddTable(t.Table)
			b.Userdata(t.Userdata)
		}
	}
	for _, e := range edits {
		if err := makeChain(b, e); err != nil {
			return nil, err
		}
	}
	for _, e := range edits {
		if err := addRules(b, e); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func makeChain(b *wire.Batch, e remediate.Edit) error {
	if !e.Create {
		return nil
	}
	if e.Base == nil {
		b.AddChain(e.Chain)
	} else if err := b.AddBaseChain(e.Chain, *e.Base); err != nil {
		return err
	}
	b.Userdata(e.Userdata)
	return nil
}

// addRules puts what comes behind the rule that stays before it. Of several behind the same rule the last is sent first,
// since each goes directly behind it.
func addRules(b *wire.Batch, e remediate.Edit) error {
	last := len(e.Lines)
	for last > 0 && e.Lines[last-1].Mark != remediate.Keep {
		last--
	}
	for i := last - 1; i >= 0; i-- {
		l := e.Lines[i]
		if l.Mark != remediate.Add {
			continue
		}
		exprs, err := expressions(e.Chain, l)
		if err != nil {
			return err
		}
		if before := keptBefore(e.Lines[:i]); before != 0 {
			b.AddRuleAfter(e.Chain, before, exprs)
		} else {
			b.PrependRule(e.Chain, exprs)
		}
		b.Userdata(userdataOf(l))
	}
	for _, l := range e.Lines[last:] {
		if l.Mark != remediate.Add {
			continue
		}
		exprs, err := expressions(e.Chain, l)
		if err != nil {
			return err
		}
		b.AppendRule(e.Chain, exprs)
		b.Userdata(userdataOf(l))
	}
	return nil
}

// keptBefore is the handle of the last line that stays, 0 if there is none.
func keptBefore(lines []remediate.Line) uint64 {
	for _, l := range slices.Backward(lines) {
		if l.Mark == remediate.Keep {
			return l.Handle
		}
	}
	return 0
}

// expressions are those that the rule had when it went, else the form that every iptables-nft finds.
func expressions(id flannel.ChainID, l remediate.Line) ([]byte, error) {
	if l.Raw != nil {
		return l.Raw.Exprs, nil
	}
	return wire.Encode(id, l.Rule)
}

func userdataOf(l remediate.Line) []byte {
	if l.Raw == nil {
		return nil
	}
	return l.Raw.Userdata
}
