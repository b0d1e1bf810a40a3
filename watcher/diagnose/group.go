package diagnose

import (
	"maps"
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

// ofChains are the findings that can concern the chain that masquerades, or the one that accepts.
var ofChains = []string{
	"chain-empty", "chain-missing", "hook-missing", "rule-missing", "rule-extra", "rule-duplicate", "rule-order", "rule-variant",
	"rules-flapping", "damaged-rule",
}

// ofNone are the findings that concern no chain and whose names do not tell their group.
var ofNone = []string{
	"backend-split", "subnet-mismatch", "config-key-ignored", "config-damaged", "hostport-missing", "ip-forward-off",
	"bridge-nf-call-off", "br-netfilter-missing", "lock-held", "tool-missing", "vxlan-checksum", "route-missing",
	"flannel-crash-looping",
}

// named are the findings whose names tell their group.
var named = []string{
	"leftover-chain", "leftover-table", "leftover-link", "leftover-route", "leftover-file", "leftover-saved-rules",
	"conntrack-full", "conntrack-evicting",
}

// Catalogue lists the findings there can be, each with the parts of the verdict that it can belong to.
func Catalogue() map[string][]Group {
	out := maps.Clone(byID)
	for _, id := range ofChains {
		out[id] = []Group{GroupMasquerade, GroupForward}
	}
	for _, id := range slices.Concat(ofNone, named) {
		out[id] = Finding{ID: id}.Groups()
	}
	return out
}

// In tells whether a finding belongs to a group; every one belongs to "".
func (f Finding) In(g Group) bool { return g == "" || slices.Contains(f.Groups(), g) }
