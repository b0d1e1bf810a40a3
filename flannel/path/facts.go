package path

import (
	"net/netip"
	"slices"

	"flanwatch/flannel"
)

// Facts is what must be known of the node beside its rules. What is empty is not known, and paths that need it are left
// out.
type Facts struct {
	Subnets   []netip.Prefix // of this node's pods
	Pods      []netip.Addr   // of local pods within Subnets; where there are none an address of the subnet serves
	Foreign   []netip.Prefix // ranges of local pods outside Subnets: the block of another CNI
	Remote    []netip.Prefix // pod subnets of other nodes
	Addresses []Address      // of the node
	Outside   []netip.Addr   // an address beyond the uplink, of each family; where there is none a public one serves

	Bridge        string // the interface that pods' packets come from: "cni0"
	ForeignBridge string // the same for Foreign, if it is another one
	Tunnel        string // the interface towards Remote: "flannel.1", or the uplink for host-gw
	Uplink        string // the interface of the default route
	Bridges       []string
}

// Address is an address of the node.
type Address struct {
	Addr      netip.Addr
	Interface string
}

// Name is one of the typical paths; the words are part of the JSON contract.
type Name string

// The paths.
const (
	PodToOutside          Name = "pod-to-outside"
	PodToRemotePod        Name = "pod-to-remote-pod"
	ForeignPodToRemotePod Name = "foreign-pod-to-remote-pod"
	RemotePodToPod        Name = "remote-pod-to-pod"
	OutsideToPod          Name = "outside-to-pod"
	NodeToRemotePod       Name = "node-to-remote-pod"
)

// Packet is the first packet of a connection.
type Packet struct {
	Path                Name
	Family              flannel.Family
	Source, Destination netip.Addr
	In                  string // empty for a packet of the node's own
	Out                 string
	Protocol            string // as in flannel.MatchProtocol; empty for any, which leaves matches on it open
	SourcePort          uint16 // 0 for any
	DestinationPort     uint16
}

// Ports of a typical packet: a client's, and the one that most servers have.
const (
	typicalSource      = 40000
	typicalDestination = 443
)

// Packets gives a packet for each path that the facts tell, family by family.
func (f Facts) Packets() []Packet {
	var out []Packet
	for _, family := range flannel.Families {
		pod, hasPod := f.pod(family)
		foreign, hasForeign := first(family, f.Foreign)
		remote, hasRemote := first(family, f.Remote)
		outside, hasOutside := f.outside(family)
		self, hasSelf := f.address(family, f.Tunnel)
		bridge := f.ForeignBridge
		if bridge == "" {
			bridge = f.Bridge
		}
		for _, c := range []struct {
			known bool
			p     Packet
		}{
			{hasPod && hasOutside, Packet{Path: PodToOutside, Source: pod, Destination: outside, In: f.Bridge, Out: f.Uplink}},
			{hasPod && hasRemote, Packet{Path: PodToRemotePod, Source: pod, Destination: remote, In: f.Bridge, Out: f.Tunnel}},
			{
				hasForeign && hasRemote,
				Packet{Path: ForeignPodToRemotePod, Source: foreign, Destination: remote, In: bridge, Out: f.Tunnel},
			},
			{hasPod && hasRemote, Packet{Path: RemotePodToPod, Source: remote, Destination: pod, In: f.Tunnel, Out: f.Bridge}},
			{hasPod && hasOutside, Packet{Path: OutsideToPod, Source: outside, Destination: pod, In: f.Uplink, Out: f.Bridge}},
			{hasSelf && hasRemote, Packet{Path: NodeToRemotePod, Source: self, Destination: remote, Out: f.Tunnel}},
		} {
			if !c.known {
				continue
			}
			c.p.Family, c.p.Protocol = family, "tcp"
			c.p.SourcePort, c.p.DestinationPort = typicalSource, typicalDestination
			out = append(out, c.p)
		}
	}
	return out
}

func (f Facts) pod(family flannel.Family) (netip.Addr, bool) {
	for _, a := range f.Pods {
		if a.BitLen() == family.Bits() {
			return a, true
		}
	}
	return first(family, f.Subnets)
}

// first gives an address of a pod in the first range of the family: the third one, as the first is the tunnel's and the
// second the bridge's; of a single address, itself.
func first(family flannel.Family, list []netip.Prefix) (netip.Addr, bool) {
	ranges := flannel.Of(family, list)
	if len(ranges) == 0 {
		return netip.Addr{}, false
	}
	a := ranges[0].Addr()
	if b := a.Next().Next(); ranges[0].Contains(b) {
		return b, true
	}
	return a, true
}

// Addresses that are public and belong to no cluster.
var public = map[flannel.Family]netip.Addr{
	flannel.IPv4: netip.MustParseAddr("192.0.2.1"), flannel.IPv6: netip.MustParseAddr("2001:db8::1"),
}

func (f Facts) outside(family flannel.Family) (netip.Addr, bool) {
	for _, a := range f.Outside {
		if a.BitLen() == family.Bits() {
			return a, true
		}
	}
	return public[family], f.Uplink != ""
}

// address is the one that a packet of the node's own, or a masqueraded one, takes on an interface.
func (f Facts) address(family flannel.Family, name string) (netip.Addr, bool) {
	for _, a := range f.Addresses {
		if a.Interface == name && a.Addr.BitLen() == family.Bits() && !a.Addr.IsLinkLocalUnicast() {
			return a.Addr, true
		}
	}
	return netip.Addr{}, false
}

func (f Facts) local(a netip.Addr) bool {
	return a.IsLoopback() || slices.ContainsFunc(f.Addresses, func(b Address) bool { return b.Addr == a })
}

// anycast tells an address that the kernel has twice: Flannel gives its tunnel the first address of the node's subnet,
// which in IPv6 is also that of any router there. Which of the two a look-up finds is a matter of the order of set-up.
func (f Facts) anycast(a netip.Addr) bool {
	return a.Is6() && slices.ContainsFunc(f.Subnets, func(p netip.Prefix) bool { return p.Addr() == a })
}

// route is the interface towards an address that a rule put in place of the packet's own.
func (f Facts) route(a netip.Addr) string {
	in := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	switch {
	case in(f.Subnets) || slices.Contains(f.Pods, a):
		return f.Bridge
	case in(f.Foreign):
		if f.ForeignBridge != "" {
			return f.ForeignBridge
		}
		return f.Bridge
	case in(f.Remote):
		return f.Tunnel
	}
	return f.Uplink
}
