package conntrack

import (
	"net/netip"
	"slices"

	"flanwatch/flannel"
)

// Topology is what one has to know of a node to judge its connections.
type Topology struct {
	Networks []netip.Prefix // pod networks of the cluster, all that any source names
	Subnets  []netip.Prefix // pod subnets of this node
	Services []netip.Prefix // networks of service addresses, as far as known
	Nodes    []netip.Addr   // addresses of this node, and of others as far as known
	Own      []netip.Addr   // addresses of this node alone

	Tunnels map[netip.Addr]string // addresses of other nodes' tunnel devices, with the node's name or address

	// Masquerade tells for each family whether pods are meant to leave with the node's address. Where that is unknown, no
	// connection is called bare.
	Masquerade map[flannel.Family]bool

	Neighbours flannel.Reading[map[netip.Addr]bool] // addresses that answer on the links of this node
	Routes     flannel.Reading[[]netip.Prefix]      // routes to pods; Unread where other nodes' pods need none
	Pods       map[netip.Addr]string                // names of pods by address, as far as known
}

// Inside gives what pods reach under their own addresses, beside the pod networks.
func (t *Topology) Inside() []netip.Prefix {
	out := append(slices.Clone(t.Services),
		netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10"),
		netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8"))
	for _, a := range t.Own {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out[:min(len(out), maxInside)]
}

// maxInside bounds a list that a filter in the kernel has to go through. What it leaves out is sorted out afterwards.
const maxInside = 40

// Kind is what is wrong with a flow.
type Kind string

// The kinds; the words are part of the JSON contract.
const (
	Fine       Kind = ""
	Bare       Kind = "bare"       // a pod's, to the outside, without source NAT
	Translated Kind = "translated" // of a pod to a pod, whose source was changed
	Arriving   Kind = "arriving"   // to a pod here, from another node's tunnel address
	Stale      Kind = "stale"      // UDP, sent to a pod that is no more
)

// Kinds lists the kinds in the order in which they are shown.
var Kinds = []Kind{Bare, Translated, Arriving, Stale}

// Classifier judges flows. It is made once for a topology and used for every entry of a dump, without allocation.
type Classifier struct {
	networks, subnets, services []netip.Prefix
	nodes, own                  map[netip.Addr]bool
	tunnels                     map[netip.Addr]string
	masq4, masq6                bool
	neighbours                  map[netip.Addr]bool
	neighboursKnown             bool
	routes                      []netip.Prefix
	routesKnown                 bool
}

// NewClassifier prepares to judge by a topology.
func NewClassifier(t Topology) *Classifier {
	c := &Classifier{
		networks: t.Networks, subnets: t.Subnets, services: t.Services, tunnels: t.Tunnels,
		nodes: set(t.Nodes), own: set(t.Own),
		masq4: t.Masquerade[flannel.IPv4], masq6: t.Masquerade[flannel.IPv6],
	}
	for a := range c.own {
		c.nodes[a] = true
	}
	c.neighbours, c.neighboursKnown = t.Neighbours.Get()
	c.routes, c.routesKnown = t.Routes.Get()
	return c
}

func set(list []netip.Addr) map[netip.Addr]bool {
	m := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		m[a] = true
	}
	return m
}

// Kind judges one flow.
func (c *Classifier) Kind(f *Flow) Kind {
	switch {
	case c.bare(f):
		return Bare
	case c.translated(f):
		return Translated
	case c.arriving(f):
		return Arriving
	case c.stale(f):
		return Stale
	}
	return Fine
}

// bare tells a pod's flow to the outside that nothing translated. Where it goes is decided by where it really goes: a
// service can stand for an address outside the cluster.
func (c *Classifier) bare(f *Flow) bool {
	if f.Reply.Dst != f.Orig.Src || !c.masquerade(f.Orig.Src) || !c.pod(f.Orig.Src) {
		return false
	}
	return c.outside(f.Target())
}

// outside tells whether an address is one that a pod reaches only under the node's.
func (c *Classifier) outside(a netip.Addr) bool {
	switch {
	case a.IsMulticast(), a.IsLinkLocalUnicast(), a.IsLoopback(), a.IsUnspecified(), a == broadcast:
		return false
	case within(c.networks, a), within(c.services, a):
		return false
	}
	return !c.nodes[a]
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func (c *Classifier) masquerade(a netip.Addr) bool {
	if a.Is4() {
		return c.masq4
	}
	return c.masq6
}

// translated tells a flow from pod to pod that arrives under another address. Where the destination was translated too,
// kube-proxy may have changed the source on purpose (a pod that reaches itself, a node port, a policy of the service), and
// nothing in the entry tells.
func (c *Classifier) translated(f *Flow) bool {
	if f.Status&DstNAT != 0 || f.Reply.Src != f.Orig.Dst {
		return false
	}
	if f.Reply.Dst == f.Orig.Src || f.Reply.Dst == f.Orig.Dst {
		return false
	}
	return c.pod(f.Orig.Src) && c.pod(f.Orig.Dst)
}

// pod tells whether an address can be a pod's: one of the networks that is not a node's own end of them.
func (c *Classifier) pod(a netip.Addr) bool {
	return within(c.networks, a) && !c.nodes[a] && c.tunnels[a] == ""
}

func (c *Classifier) arriving(f *Flow) bool {
	if len(c.tunnels) == 0 || c.tunnels[f.Orig.Src] == "" {
		return false
	}
	return within(c.subnets, f.Target()) && !c.own[f.Target()]
}

// stale tells a UDP flow whose destination was translated to a pod that answers nothing and to which nothing leads: no
// neighbour for a pod of this node, no route for one of another.
func (c *Classifier) stale(f *Flow) bool {
	if f.Orig.Proto != UDP || f.Status&DstNAT == 0 || f.Replied() {
		return false
	}
	to := f.Target()
	switch {
	case c.own[to], !within(c.networks, to):
		return false
	case within(c.subnets, to):
		return c.neighboursKnown && !c.neighbours[to]
	}
	return c.routesKnown && !within(c.routes, to)
}

// From gives the name of the node from whose tunnel an arriving flow comes.
func (c *Classifier) From(f *Flow) string { return c.tunnels[f.Orig.Src] }

func within(list []netip.Prefix, a netip.Addr) bool {
	for i := range list {
		if list[i].Contains(a) {
			return true
		}
	}
	return false
}
