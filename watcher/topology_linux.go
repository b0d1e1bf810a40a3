package watcher

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// surroundings reads what a connection is judged by beside the node's configuration: addresses, routes and neighbours.
type surroundings struct {
	handle *netlink.Handle
}

func openSurroundings() (*surroundings, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open routes: %w", err)
	}
	return &surroundings{h}, nil
}

func (s *surroundings) close() { s.handle.Close() }

// read fills in a topology for the node's networks.
func (s *surroundings) read(n *flannel.Node, procs []diagnose.Process, now flannel.Time) (conntrack.Topology, error) {
	t := conntrack.Topology{
		Networks: slices.Clone(n.Networks.Value), Subnets: n.Subnets.Value, Services: services(procs),
		Tunnels: map[netip.Addr]string{},
	}
	for _, o := range n.Others {
		t.Networks = append(t.Networks, o.Networks...)
	}
	addrs, err := again(func() ([]netlink.Addr, error) { return s.handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return t, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		t.Own = append(t.Own, address(a.IP))
	}
	neighbours, err := again(func() ([]netlink.Neigh, error) { return s.handle.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return t, fmt.Errorf("list neighbours: %w", err)
	}
	t.Neighbours = flannel.Know(answering(neighbours), "rtnetlink", now)
	routes, err := again(func() ([]netlink.Route, error) { return s.handle.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return t, fmt.Errorf("list routes: %w", err)
	}
	forward, err := again(func() ([]netlink.Neigh, error) { return s.handle.NeighList(0, unix.AF_BRIDGE) })
	if err != nil {
		return t, fmt.Errorf("list forwarding entries: %w", err)
	}
	peers(&t, routes, neighbours, forward, now)
	return t, nil
}

// again repeats a dump that was torn by a change meanwhile.
func again[T any](dump func() ([]T, error)) (list []T, err error) {
	for range 5 {
		if list, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}

func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// answering gives the addresses that answer, or did when last asked.
func answering(list []netlink.Neigh) map[netip.Addr]bool {
	const good = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT | netlink.NUD_NOARP
	m := map[netip.Addr]bool{}
	for _, n := range list {
		if n.State&good != 0 {
			m[address(n.IP)] = true
		}
	}
	return m
}

// peers finds the other nodes in the routes to their pods: a gateway outside the pod networks is a node's own address
// (host-gw), one inside is that of its tunnel device, whose node the forwarding entry of the same hardware address names.
// Where no route leads to another node's pods, the network does it (cloud routes), and nothing can be told from routes.
func peers(t *conntrack.Topology, routes []netlink.Route, neighbours, forward []netlink.Neigh, now flannel.Time) {
	var toPods []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil || r.Type != unix.RTN_UNICAST {
			continue
		}
		ones, _ := r.Dst.Mask.Size()
		dst := netip.PrefixFrom(address(r.Dst.IP), ones)
		if !overlapsAny(t.Networks, dst) || ones == 0 {
			continue
		}
		toPods = append(toPods, dst)
		gw := address(r.Gw)
		switch {
		case !gw.IsValid():
		case contains(t.Networks, gw):
			t.Tunnels[gw] = behind(gw, neighbours, forward)
		default:
			t.Nodes = append(t.Nodes, gw)
		}
	}
	for _, node := range t.Tunnels {
		if a, err := netip.ParseAddr(node); err == nil {
			t.Nodes = append(t.Nodes, a)
		}
	}
	if len(t.Tunnels)+len(t.Nodes) > 0 {
		t.Routes = flannel.Know(toPods, "rtnetlink", now)
	}
}

// behind names the node behind a tunnel address: by its own address, where a forwarding entry tells it.
func behind(gw netip.Addr, neighbours, forward []netlink.Neigh) string {
	for _, n := range neighbours {
		if address(n.IP) != gw {
			continue
		}
		for _, f := range forward {
			if f.LinkIndex == n.LinkIndex && slices.Equal(f.HardwareAddr, n.HardwareAddr) && f.IP != nil {
				return address(f.IP).String()
			}
		}
	}
	return gw.String()
}

func contains(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

func overlapsAny(list []netip.Prefix, q netip.Prefix) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Overlaps(q) })
}

// services gives the networks of service addresses, as far as the command lines of Flannel's processes tell. K3s has a
// default; elsewhere only the API server knows.
func services(procs []diagnose.Process) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range procs {
		told := false
		for i, arg := range p.Cmdline {
			name, value, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
			if name != "service-cidr" && name != "service-cluster-ip-range" {
				continue
			}
			if !joined && i+1 < len(p.Cmdline) {
				value = p.Cmdline[i+1]
			}
			for _, word := range strings.Split(value, ",") {
				if prefix, err := netip.ParsePrefix(word); err == nil {
					out, told = append(out, prefix.Masked()), true
				}
			}
		}
		if p.Kind == diagnose.ProcK3s && !told {
			out = append(out, netip.MustParsePrefix("10.43.0.0/16"))
		}
	}
	return out
}
