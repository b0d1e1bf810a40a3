package host

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// Bounds of what is kept of routes and other nodes.
const (
	maxPeers  = 32
	maxRoutes = 64
	maxAddrs  = 512
)

// routing reads links, addresses, routes, neighbours and forwarding entries.
func (a *Around) routing(now flannel.Time) flannel.Reading[diagnose.Routing] {
	l, err := a.dump()
	if err != nil {
		return flannel.Miss[diagnose.Routing](flannel.Unreadable, cause(err).Error(), "rtnetlink", now)
	}
	return flannel.Know(l.routing(a.offload), "rtnetlink", now)
}

// listing is what the kernel lists.
type listing struct {
	links      []netlink.Link
	addresses  []netlink.Addr
	routes     []netlink.Route // of the main table
	neighbours []netlink.Neigh
	forward    []netlink.Neigh
	names      map[int]string
}

func (a *Around) dump() (l listing, err error) {
	if l.links, err = whole(a.kernel.LinkList); err != nil {
		return l, err
	}
	l.names = map[int]string{}
	for _, link := range l.links {
		l.names[link.Attrs().Index] = link.Attrs().Name
	}
	if l.addresses, err = whole(func() ([]netlink.Addr, error) { return a.kernel.AddrList(nil, netlink.FAMILY_ALL) }); err != nil {
		return l, err
	}
	for _, f := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := whole(func() ([]netlink.Route, error) {
			return a.kernel.RouteListFiltered(f, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return l, err
		}
		l.routes = append(l.routes, list...)
	}
	if l.neighbours, err = whole(func() ([]netlink.Neigh, error) { return a.kernel.NeighList(0, netlink.FAMILY_ALL) }); err != nil {
		return l, err
	}
	l.forward, err = whole(func() ([]netlink.Neigh, error) { return a.kernel.NeighList(0, unix.AF_BRIDGE) })
	return l, err
}

// routing puts the lists together.
func (l *listing) routing(offload func(string) flannel.ReadState) diagnose.Routing {
	r := diagnose.Routing{Ports: l.ports()}
	for _, link := range l.links {
		if name := link.Attrs().Name; plugins(name) {
			i := diagnose.Interface{Name: name, Type: link.Type(), Addresses: l.addressesOf(link.Attrs().Index)}
			if v, ok := link.(*netlink.Vxlan); ok {
				i.Port, i.Offload = v.Port, offload(name)
			}
			r.Links = append(r.Links, i)
		}
	}
	slices.SortFunc(r.Links, func(a, b diagnose.Interface) int { return strings.Compare(a.Name, b.Name) })
	l.sortRoutes(&r)
	r.Pods = append(r.Pods, l.bridged()...)
	slices.SortFunc(r.Pods, netip.Addr.Compare)
	r.Pods = slices.Compact(r.Pods)
	r.Pods = r.Pods[:min(len(r.Pods), maxAddrs)]
	l.peers(&r)
	return r
}

// plugins tells whether a network plugin gives links such names. Those of single pods are not among them.
func plugins(name string) bool {
	for _, prefix := range []string{
		"flannel", "cni0", "vxlan.calico", "vxlan-v6.calico", "wireguard.cali", "tunl0", "cilium_", "kube-bridge", "weave", "antrea-",
	} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// ports counts the links that are plugged into cni0.
func (l *listing) ports() int {
	bridge, n := 0, 0
	for _, link := range l.links {
		if link.Attrs().Name == "cni0" {
			bridge = link.Attrs().Index
		}
	}
	for _, link := range l.links {
		if bridge != 0 && link.Attrs().MasterIndex == bridge {
			n++
		}
	}
	return n
}

func (l *listing) addressesOf(index int) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range l.addresses {
		if p := prefixOf(a.IP, a.Mask); a.LinkIndex == index && p.IsValid() && !p.Addr().IsLinkLocalUnicast() {
			out = append(out, p)
		}
	}
	return out
}

// sortRoutes tells routes to local pods from those to pods of other nodes, and finds the way out.
func (l *listing) sortRoutes(r *diagnose.Routing) {
	for _, route := range l.routes {
		name := l.names[route.LinkIndex]
		to := netip.Prefix{}
		if route.Dst != nil {
			to = prefixOf(route.Dst.IP, route.Dst.Mask)
		}
		via, _ := netip.AddrFromSlice(route.Gw)
		kept := diagnose.Route{To: to, Via: via.Unmap(), Link: name, Protocol: protocolName(int(route.Protocol))}
		switch {
		case route.Dst == nil || to.IsValid() && to.Bits() == 0:
			if r.Uplink == "" {
				r.Uplink = name
			}
			r.Out6 = r.Out6 || via.Is6() && !via.Is4In6()
		case !to.IsValid() || to.Addr().IsLinkLocalUnicast() || to.Addr().IsMulticast():
		case route.Type == unix.RTN_BLACKHOLE:
			r.Holes = append(r.Holes, kept)
		case route.Type != unix.RTN_UNICAST:
		case to.IsSingleIP() && len(route.Gw) == 0 && podLink(name):
			r.Pods = append(r.Pods, to.Addr())
		case !via.IsValid() || podLink(name):
		default:
			r.Remote = append(r.Remote, to)
			if len(r.Routes) < maxRoutes {
				r.Routes = append(r.Routes, kept)
			}
		}
	}
	slices.SortFunc(r.Remote, netip.Prefix.Compare)
	r.Remote = r.Remote[:min(len(r.Remote), maxAddrs)]
}

// podLink tells whether local pods are behind a link.
func podLink(name string) bool {
	return name == "cni0" || strings.HasPrefix(name, "cali") || strings.HasPrefix(name, "lxc") || strings.HasPrefix(name, "veth") ||
		name == "kube-bridge"
}

// protocolName is what ip route calls the maker of a route.
func protocolName(p int) string {
	switch p {
	case unix.RTPROT_KERNEL:
		return "kernel"
	case unix.RTPROT_BOOT:
		return "boot"
	case unix.RTPROT_STATIC:
		return "static"
	case unix.RTPROT_BIRD:
		return "bird"
	case 80:
		return "calico"
	case unix.RTPROT_UNSPEC:
		return ""
	}
	return "proto " + string(rune('0'+p/100%10)) + string(rune('0'+p/10%10)) + string(rune('0'+p%10))
}

// bridged gives the addresses of pods that were spoken to over cni0.
func (l *listing) bridged() []netip.Addr {
	const good = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT
	var out []netip.Addr
	for _, n := range l.neighbours {
		a, ok := netip.AddrFromSlice(n.IP)
		if ok && l.names[n.LinkIndex] == "cni0" && n.State&good != 0 && !a.IsLinkLocalUnicast() && !a.IsMulticast() {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// peers holds what Flannel keeps of each other node against each other: a forwarding entry and a neighbour of one hardware
// address, and a route to its pods through that neighbour.
func (l *listing) peers(r *diagnose.Routing) {
	for index, name := range l.names {
		if !strings.HasPrefix(name, "flannel.") && !strings.HasPrefix(name, "flannel-v6.") {
			continue
		}
		byMAC := map[string]*diagnose.Peer{}
		at := func(mac string) *diagnose.Peer {
			if byMAC[mac] == nil {
				byMAC[mac] = &diagnose.Peer{Link: name}
			}
			return byMAC[mac]
		}
		gateways := map[netip.Addr]*diagnose.Peer{}
		for _, f := range l.forward {
			if a, ok := netip.AddrFromSlice(f.IP); ok && f.LinkIndex == index && !zeroMAC(f.HardwareAddr) {
				p := at(f.HardwareAddr.String())
				p.Node, p.Forward = a.Unmap(), true
			}
		}
		for _, n := range l.neighbours {
			a, ok := netip.AddrFromSlice(n.IP)
			if !ok || n.LinkIndex != index || n.State&netlink.NUD_PERMANENT == 0 || zeroMAC(n.HardwareAddr) {
				continue
			}
			p := at(n.HardwareAddr.String())
			p.Gateway, p.Neighbour = a.Unmap(), true
			gateways[p.Gateway] = p
		}
		for _, route := range l.routes {
			if gw, ok := netip.AddrFromSlice(route.Gw); ok && route.LinkIndex == index {
				p := gateways[gw.Unmap()]
				if p == nil {
					p = at("route " + gw.String())
					p.Gateway = gw.Unmap()
				}
				p.Route = true
			}
		}
		for _, p := range byMAC {
			if p.Route && p.Neighbour && p.Forward {
				r.Whole++
			} else {
				r.Peers = append(r.Peers, *p)
			}
		}
	}
	slices.SortFunc(r.Peers, func(a, b diagnose.Peer) int {
		return cmp.Or(strings.Compare(a.Link, b.Link), a.Node.Compare(b.Node), a.Gateway.Compare(b.Gateway))
	})
	r.Peers = r.Peers[:min(len(r.Peers), maxPeers)]
}

func zeroMAC(mac []byte) bool { return !slices.ContainsFunc(mac, func(b byte) bool { return b != 0 }) }

// offload tells whether a link leaves the checksums of what it sends to a network card: Known if it does, Absent if not.
func (a *Around) offload(name string) flannel.ReadState {
	const getTxChecksum = 0x16 // ETHTOOL_GTXCSUM
	value := struct{ cmd, data uint32 }{cmd: getTxChecksum}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		rest [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(a.ether), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	switch {
	case errno != 0:
		return flannel.Unreadable
	case value.data == 0:
		return flannel.Absent
	}
	return flannel.Known
}
