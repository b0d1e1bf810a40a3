package flannel

import (
	"net/netip"
	"time"
)

// Node is what is known of the node's Flannel configuration, each value with its source and the time it was read. Where
// sources disagree the best one counts and the others are kept.
type Node struct {
	Name         string                  // host name
	Networks     Reading[[]netip.Prefix] // pod networks of the cluster, masked, both families, in the order of the source
	Subnets      Reading[[]netip.Prefix] // pod subnets of this node, masked, both families
	IPMasq       Reading[bool]           // whether flanneld was told to masquerade
	IPMasq6      Reading[bool]           // the same for IPv6, which k3s decides apart
	ForwardRules Reading[bool]           // whether flanneld was told to write FLANNEL-FWD
	RandomFully  Reading[bool]           // whether masquerade rules should choose ports fully at random
	Resync       Reading[time.Duration]  // how often flanneld repairs its rules (iptables mode)
	NFTables     Reading[bool]           // whether net-conf.json asks for native nftables (EnableNFTables)
	MTU          Reading[int]
	Distribution Reading[string] // "kube-flannel", "canal", "rke2-canal", "k3s", …; Source is the evidence
	Written      time.Time       // modification time of the file that the networks come from; zero if unknown
	Others       []Source        // further sources, kept because they disagree or are older
	Problems     []Problem       // what is wrong with the files themselves
	Ignored      []Problem       // keys of net-conf.json that no Flannel reads: What is the key
}

// Source is one place that tells networks and subnets.
type Source struct {
	Name     string         `json:"source"`
	Networks []netip.Prefix `json:"networks"`
	Subnets  []netip.Prefix `json:"subnets"`
	Written  time.Time      `json:"-"` // when the source was written, zero if it has no age
}

// Problem is one fault in a file of the node.
type Problem struct {
	File string // as a person would name it
	Line int    // from 1; 0 for the file as a whole
	What string // lower case, no full stop
}

// Of gives the prefixes of one family.
func Of(f Family, list []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		if p.Addr().Is4() == (f == IPv4) {
			out = append(out, p)
		}
	}
	return out
}
