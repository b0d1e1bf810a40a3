package legacy

import (
	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// diff tells how one reading differs from the one before, as nf_tables would have announced it. Several transactions between
// two readings look like one.
func diff(before, after *flannel.Ruleset) ([]incident.TableChange, []incident.ChainChange) {
	var tables []incident.TableChange
	for _, id := range after.Tables {
		if !before.HasTable(id) {
			tables = append(tables, incident.TableChange{Table: id, Created: true})
		}
	}
	for _, id := range before.Tables {
		if !after.HasTable(id) {
			tables = append(tables, incident.TableChange{Table: id, Deleted: true})
		}
	}
	var chains []incident.ChainChange
	for i := range after.Chains {
		was := before.Chain(after.Chains[i].ID)
		if was == nil {
			was = &flannel.Chain{}
		}
		if c, changed := diffChain(was, &after.Chains[i]); changed {
			chains = append(chains, c)
		}
	}
	return tables, chains
}

// diffChain compares two readings of a chain. Rules at its start and end that are the same stayed; those between went, and
// came.
func diffChain(was, is *flannel.Chain) (incident.ChainChange, bool) {
	c := incident.ChainChange{
		Chain:   is.ID,
		Created: is.Present && !was.Present,
		Deleted: was.Present && !is.Present,
		Rules:   len(is.Entries),
	}
	a, b := was.Entries, is.Entries
	for len(a) > 0 && len(b) > 0 && a[0].Body == b[0].Body {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1].Body == b[len(b)-1].Body {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	for _, e := range a {
		c.Removed = append(c.Removed, incident.RuleRemoved{Body: e.Body, Counter: e.Counter, Counted: e.Counted})
	}
	for _, e := range b {
		c.Added = append(c.Added, incident.RuleAdded{Body: e.Body})
	}
	policy := was.Base != nil && is.Base != nil && *was.Base != *is.Base
	return c, c.Created || c.Deleted || policy || len(a)+len(b) > 0
}
