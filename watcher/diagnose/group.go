package diagnose

import (
	"slices"
	"strings"

	"flanwatch/flannel"
)

// Group is a part of the verdict that can be asked for alone, for example as one condition of a node.
type Group string

// The groups; the words are part of the contract with scripts and metrics.
const (
	GroupMasquerade    Group = "masquerade"
	GroupForward       Group = "forward"
	GroupLeftovers     Group = "leftovers"
	GroupPrerequisites Group = "prerequisites"
	GroupConntrack     Group = "conntrack"
	GroupReaders       Group = "readers"
)

// Groups are all groups, in the order in which they are shown.
var Groups = []Group{GroupMasquerade, GroupForward, GroupLeftovers, GroupPrerequisites, GroupConntrack, GroupReaders}

// byID are the groups of the findings that concern no chain of Flannel's, or not only that.
var byID = map[string][]Group{
	"table-missing":        {GroupMasquerade, GroupForward},
	"path-shadowed":        {GroupMasquerade},
	"foreign-snat":         {GroupMasquerade},
	"damaged-rule":         {GroupMasquerade},
	"path-differs":         {GroupMasquerade},
	"ipv6-no-masquerade":   {GroupMasquerade},
	"policy-shadowed":      {GroupForward},
	"forward-dropped":      {GroupForward},
	"foreign-drop":         {GroupForward},
	"old-generation-rules": {GroupLeftovers},
	"pod-snat":             {GroupLeftovers},
	"arriving-snat":        {GroupLeftovers},
	"foreign-leftover":     {GroupLeftovers},
	"ipam-stale":           {GroupLeftovers},
	"flows-bare":           {GroupConntrack},
	"flows-translated":     {GroupConntrack},
	"stale-udp-flow":       {GroupConntrack},
	"snat-port-race":       {GroupConntrack},
	"table-unreadable":     {GroupReaders},
}

// Groups tells which parts of the verdict a finding belongs to; there is always one.
func (f Finding) Groups() []Group {
	if groups := byID[f.ID]; groups != nil {
		return groups
	}
	switch {
	case strings.HasPrefix(f.ID, "leftover-"):
		return []Group{GroupLeftovers}
	case strings.HasPrefix(f.ID, "conntrack-"):
		return []Group{GroupConntrack}
	case f.Chain == flannel.ChainID{}:
		return []Group{GroupPrerequisites}
	case masquerades(f.Chain):
		return []Group{GroupMasquerade}
	}
	return []Group{GroupForward}
}

// In tells whether a finding belongs to a group; every one belongs to "".
func (f Finding) In(g Group) bool { return g == "" || slices.Contains(f.Groups(), g) }
