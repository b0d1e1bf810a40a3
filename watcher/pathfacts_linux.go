package watcher

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/flannel/path"
)

// layout is what the kernel tells of a node's links, addresses and routes.
type layout struct {
	links      []netlink.Link
	addresses  []netlink.Addr
	routes     []netlink.Route // of the main table
	neighbours []netlink.Neigh
}

// readLayout asks the kernel, in four dumps.
func (s *surroundings) readLayout() (l layout, err error) {
	if l.links, err = again(s.handle.LinkList); err != nil {
		return l, fmt.Errorf("list links: %w", err)
	}
	if l.addresses, err = again(func() ([]netlink.Addr, error) { return s.handle.AddrList(nil, netlink.FAMILY_ALL) }); err != nil {
		return l, fmt.Errorf("list addresses: %w", err)
	}
	if l.routes, err = again(func() ([]netlink.Route, error) { return s.handle.RouteList(nil, netlink.FAMILY_ALL) }); err != nil {
		return l, fmt.Errorf("list routes: %w", err)
	}
	if l.neighbours, err = again(func() ([]netlink.Neigh, error) { return s.handle.NeighList(0, netlink.FAMILY_ALL) }); err != nil {
		return l, fmt.Errorf("list neighbours: %w", err)
	}
	return l, nil
}

// route is one route as paths look at it.
type route struct {
	to      netip.Prefix
	device  string
	gateway bool
}

// facts says which packets are typical of the node, for one family: where its pods are, where other nodes' pods are, and what
// lies between. What cannot be told is left out.
func (l *layout) facts(n *flannel.Node, f flannel.Family) path.Facts {
	facts := path.Facts{Subnets: flannel.Of(f, n.Subnets.Value)}
	networks := flannel.Of(f, n.Networks.Value)
	names := map[int]string{}
	for _, k := range l.links {
		names[k.Attrs().Index] = k.Attrs().Name
		if k.Type() == "bridge" {
			facts.Bridges = append(facts.Bridges, k.Attrs().Name)
		}
	}
	for _, a := range l.addresses {
		if addr := address(a.IP); addr.BitLen() == f.Bits() && !addr.IsLoopback() {
			facts.Addresses = append(facts.Addresses, path.Address{Addr: addr, Interface: names[a.LinkIndex]})
		}
	}
	routes, uplink := l.list(f, names)
	facts.Uplink = uplink
	l.findPods(&facts, routes, names)
	findForeign(&facts, routes)
	l.findRemote(&facts, routes, networks, names)
	if facts.Uplink == "" {
		findNeighbourhood(&facts, routes, networks)
	}
	return facts
}

// findNeighbourhood takes, where no route leads to the whole world, what the node is connected to for the outside.
func findNeighbourhood(facts *path.Facts, routes []route, networks []netip.Prefix) {
	for _, r := range routes {
		inside := r.device == facts.Bridge || flannels(r.device) || slices.Contains(facts.Bridges, r.device) || r.device == "lo"
		if r.gateway || r.to.IsSingleIP() || inside || overlapsAny(networks, r.to) || overlapsAny(facts.Subnets, r.to) {
			continue
		}
		facts.Uplink = r.device
		for a := r.to.Addr().Next(); r.to.Contains(a); a = a.Next() {
			if !slices.ContainsFunc(facts.Addresses, func(b path.Address) bool { return a == b.Addr }) {
				facts.Outside = []netip.Addr{a}
				return
			}
		}
	}
}

// list gives the routes of a family, and the device of the default one.
func (l *layout) list(f flannel.Family, names map[int]string) (routes []route, uplink string) {
	metric := -1
	for _, r := range l.routes {
		if r.Type != unix.RTN_UNICAST || r.Dst == nil || r.Table != 0 && r.Table != unix.RT_TABLE_MAIN {
			continue
		}
		ones, _ := r.Dst.Mask.Size()
		to := netip.PrefixFrom(address(r.Dst.IP), ones)
		device := names[r.LinkIndex]
		if len(r.MultiPath) > 0 {
			device = names[r.MultiPath[0].LinkIndex]
		}
		switch {
		case to.Addr().BitLen() != f.Bits() || to.Addr().IsLinkLocalUnicast() || to.Addr().IsMulticast():
		case ones == 0:
			if metric < 0 || r.Priority < metric {
				uplink, metric = device, r.Priority
			}
		default:
			routes = append(routes, route{to, device, r.Gw != nil || r.Via != nil || len(r.MultiPath) > 0})
		}
	}
	slices.SortStableFunc(routes, func(a, b route) int {
		return cmp.Or(a.to.Addr().Compare(b.to.Addr()), cmp.Compare(a.to.Bits(), b.to.Bits()))
	})
	return routes, uplink
}

// host tells a route to one address that stands on a link of this node: how Calico and others lead to their pods.
func (r route) host() bool { return !r.gateway && r.to.IsSingleIP() && !flannels(r.device) }

func flannels(device string) bool { return strings.HasPrefix(device, "flannel") }

// findPods finds the interface that pods of the node's subnet come from, and some of the pods.
func (l *layout) findPods(facts *path.Facts, routes []route, names map[int]string) {
	inside := func(a netip.Addr) bool { return contains(facts.Subnets, a) }
	for _, r := range routes {
		if r.host() && inside(r.to.Addr()) && (facts.Bridge == "" || r.device == facts.Bridge) {
			facts.Bridge = r.device
			facts.Pods = append(facts.Pods, r.to.Addr())
		}
	}
	if facts.Bridge == "" {
		for _, a := range facts.Addresses {
			if inside(a.Addr) && !flannels(a.Interface) && (facts.Bridge == "" || a.Interface == "cni0") {
				facts.Bridge = a.Interface
			}
		}
	}
	if len(facts.Pods) > 0 || facts.Bridge == "" {
		return
	}
	for _, n := range l.neighbours {
		a := address(n.IP)
		if names[n.LinkIndex] == facts.Bridge && inside(a) && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE|netlink.NUD_NOARP) == 0 {
			facts.Pods = append(facts.Pods, a)
		}
	}
	slices.SortFunc(facts.Pods, netip.Addr.Compare)
	facts.Pods = facts.Pods[:min(len(facts.Pods), 1)]
}

// findForeign finds pods of this node outside its subnet: of the block of another network plugin.
func findForeign(facts *path.Facts, routes []route) {
	for _, r := range routes {
		own := slices.ContainsFunc(facts.Addresses, func(a path.Address) bool { return a.Addr == r.to.Addr() })
		if r.host() && r.device != facts.Uplink && r.device != "lo" && !own && !contains(facts.Subnets, r.to.Addr()) {
			if len(facts.Foreign) == 0 || r.device == facts.ForeignBridge {
				facts.ForeignBridge = r.device
				facts.Foreign = append(facts.Foreign, r.to)
			}
		}
	}
	facts.Foreign = facts.Foreign[:min(len(facts.Foreign), maxForeign)]
}

// maxForeign bounds what is kept of other pods: one is tried.
const maxForeign = 8

// findRemote finds subnets of other nodes' pods: by routes through a gateway or over Flannel's device and, where there are
// none, by the neighbours that Flannel writes for each of them.
func (l *layout) findRemote(facts *path.Facts, routes []route, networks []netip.Prefix, names map[int]string) {
	add := func(p netip.Prefix, device string) {
		if facts.Tunnel == "" || facts.Tunnel == device {
			facts.Tunnel = device
			facts.Remote = append(facts.Remote, p)
		}
	}
	for _, r := range routes {
		switch {
		case !r.gateway && !flannels(r.device), !overlapsAny(networks, r.to):
		case !overlapsAny(facts.Subnets, r.to):
			add(r.to, r.device)
		case len(facts.Subnets) > 0 && r.to.Bits() < facts.Subnets[0].Bits(): // all nodes' pods lie behind one route
			add(sibling(facts.Subnets[0]), r.device)
		}
	}
	if facts.Tunnel != "" || len(facts.Subnets) == 0 {
		facts.Remote = facts.Remote[:min(len(facts.Remote), maxRemote)]
		return
	}
	for _, n := range l.neighbours {
		a := address(n.IP)
		if device := names[n.LinkIndex]; flannels(device) && contains(networks, a) && !contains(facts.Subnets, a) {
			add(netip.PrefixFrom(a, facts.Subnets[0].Bits()).Masked(), device)
		}
	}
	facts.Remote = facts.Remote[:min(len(facts.Remote), maxRemote)]
}

// maxRemote bounds what is kept of other nodes' subnets, of which one is tried and the rest tell where translated packets go.
const maxRemote = 1024

// sibling is the prefix beside another one.
func sibling(p netip.Prefix) netip.Prefix {
	b := p.Addr().AsSlice()
	if n := p.Bits(); n > 0 {
		b[(n-1)/8] ^= 0x80 >> ((n - 1) % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, p.Bits()).Masked()
}
