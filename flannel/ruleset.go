package flannel

import "slices"

// Counter is what a rule has counted: packets (in nat chains: first packets of connections) and bytes.
type Counter struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Entry is a rule that is there.
type Entry struct {
	Rule    Rule
	Handle  uint64  // nf_tables' number of the rule, 0 in legacy tables; survives a replacement of the body (-R, -Z)
	Body    uint64  // hash of the rule without its counter: Handle and Body together name one series of counts
	Counter Counter // meaningless unless Counted
	Counted bool    // false where the rule has no counter, as in Flannel's native tables
}

// BaseChain is what makes a chain a base chain: the place where the kernel calls it.
type BaseChain struct {
	Type     string `json:"type"` // "nat", "filter", "route"
	Hook     string `json:"hook"` // "postrouting", "forward", …
	Priority int32  `json:"priority"`
	Policy   string `json:"policy"` // "accept", "drop"
}

// Chain is a chain that was looked for: Present or verified to be absent.
type Chain struct {
	ID      ChainID
	Present bool
	Base    *BaseChain // nil for a chain that is only jumped to
	Entries []Entry
}

// Ruleset is what one backend held at one moment, as far as flanwatch looks: Flannel's chains and the base chains that
// lead to them. Chains are sorted by ID.
//
// A reader hands out the same Ruleset again and again and overwrites its counters in place; whoever keeps one clones it.
type Ruleset struct {
	Backend    Backend
	Generation uint32 // nf_tables' generation when it was read, 0 for legacy
	Revision   uint64 // grows whenever anything but a counter changed since the reader's last ruleset
	Tables     []TableID
	Chains     []Chain
	Others     []Mark // what others keep in the same tables
}

// Chain finds a chain that was looked for, nil where it was not.
func (r *Ruleset) Chain(id ChainID) *Chain {
	i, ok := slices.BinarySearchFunc(r.Chains, id, func(c Chain, id ChainID) int { return c.ID.Compare(id) })
	if !ok {
		return nil
	}
	return &r.Chains[i]
}

// HasTable tells whether the table exists.
func (r *Ruleset) HasTable(id TableID) bool { return slices.Contains(r.Tables, id) }

// Clone copies everything that a reader overwrites. Rules are shared: nobody changes a Rule once it is made.
func (r *Ruleset) Clone() Ruleset {
	c := *r
	c.Tables = slices.Clone(r.Tables)
	c.Chains = slices.Clone(r.Chains)
	c.Others = slices.Clone(r.Others)
	for i := range c.Chains {
		c.Chains[i].Entries = slices.Clone(c.Chains[i].Entries)
	}
	return c
}
