package remediate

import (
	"slices"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// Facts is what a plan is made from.
type Facts struct {
	diagnose.Facts
	History diagnose.History

	Incompatible map[flannel.TableID]string // tables that iptables-nft refuses to work on: its own words
	Place        Place
}

// Place is where facts were read: rules are of one network namespace, and do not outlive a boot.
type Place struct {
	Boot  string `json:"boot"`  // the kernel's boot_id
	NetNS uint64 `json:"netns"` // inode number of the network namespace
}

// Choice is what a person decides about a plan. The zero value is everything, with every guard in force.
type Choice struct {
	Chains   []flannel.ChainID // only these chains, with the jumps that lead there
	Override []string          // guards that the person has judged
	With     []string          // parts beyond chains, jumps and tables: PartConnections
	Kinds    []conntrack.Kind  // of connections, for KindUnstick; none are all that can be helped
}

// wants tells whether a chain was chosen.
func (c Choice) wants(id flannel.ChainID) bool {
	return len(c.Chains) == 0 || slices.Contains(c.Chains, id)
}

// ruleset gives what is known of a backend: one that was verified not to exist holds nothing.
func (f Facts) ruleset(b flannel.Backend) (*flannel.Ruleset, bool) {
	r := f.Rules[b]
	switch r.State {
	case flannel.Known:
		return &r.Value, true
	case flannel.Absent:
		return &flannel.Ruleset{Backend: b}, true
	}
	return nil, false
}

// chain gives the entries of a chain and whether it is there.
func (f Facts) chain(id flannel.ChainID) (*flannel.Chain, bool) {
	rs, known := f.ruleset(id.Backend)
	if !known {
		return nil, false
	}
	c := rs.Chain(id)
	return c, c != nil && c.Present
}

func (f Facts) hasTable(id flannel.TableID) bool {
	rs, known := f.ruleset(id.Backend)
	return known && (rs.HasTable(id) || slices.ContainsFunc(rs.Chains, func(c flannel.Chain) bool {
		return c.Present && c.ID.TableID() == id
	}))
}
