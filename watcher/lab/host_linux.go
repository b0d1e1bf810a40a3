package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"flanwatch/flannel"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// host is one machine, pod or router of the lab: a namespace with a socket for its links, addresses and routes.
type host struct {
	*Namespace
	links *netlink.Handle

	lock sync.Mutex
	home [2]netip.Addr // where it is reached, IPv4 and IPv6
}

func newHost() (*host, error) {
	n, err := NewNamespace()
	if err != nil {
		return nil, err
	}
	h := &host{Namespace: n}
	if err := errors.Join(n.Do(h.open), h.clean(), h.up("lo")); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func (h *host) open() (err error) {
	h.links, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	return err
}

func (h *host) close() {
	if h.links != nil {
		h.links.Close()
	}
	h.Namespace.Close() //nolint:errcheck // the namespace goes away with the process at the latest
}

// moveTo says where the host is reached from now on.
func (h *host) moveTo(v4, v6 string) {
	h.lock.Lock()
	defer h.lock.Unlock()
	h.home = [2]netip.Addr{netip.MustParseAddr(v4), netip.MustParseAddr(v6)}
}

// at is the host's address of a family.
func (h *host) at(f flannel.Family) netip.Addr {
	h.lock.Lock()
	defer h.lock.Unlock()
	return h.home[f-flannel.IPv4]
}

// clean undoes what a new namespace inherits from the machine, and turns off duplicate address detection, which would
// leave every IPv6 address unusable for a second.
func (h *host) clean() error {
	for _, conf := range []string{"all", "default"} {
		if err := h.sysctl("0", "ipv4/conf/"+conf+"/rp_filter"); err != nil {
			return err
		}
		for _, name := range []string{"disable_ipv6", "accept_dad", "accept_ra"} {
			if err := h.sysctl("0", "ipv6/conf/"+conf+"/"+name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// sysctl writes one value below /proc/sys/net, which shows the namespace of the thread that opens it.
func (h *host) sysctl(value, name string) error {
	return h.Do(func() error { return os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0) })
}

func (h *host) forward() error {
	if err := h.sysctl("1", "ipv4/ip_forward"); err != nil {
		return err
	}
	// Bridged pod traffic passes the packet filter only where this switch exists, which needs the module br_netfilter.
	for _, name := range []string{"ipv6/conf/all/forwarding", "bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"} {
		if err := h.sysctl("1", name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (h *host) up(name string) error {
	link, err := h.links.LinkByName(name)
	if err == nil {
		err = h.links.LinkSetUp(link)
	}
	return linkError("set up", name, err)
}

// bridge makes a bridge with addresses, or takes the one that is there.
func (h *host) bridge(name string, addrs ...string) error {
	err := h.links.LinkAdd(&netlink.Bridge{LinkAttrs: attrs(name)})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return linkError("add bridge", name, err)
	}
	return errors.Join(h.up(name), h.address(name, addrs...))
}

// plug lays a cable from a new link of h to a new port of a bridge on another host.
func (h *host) plug(name string, at *host, bridge, port string, addrs ...string) error {
	veth := &netlink.Veth{LinkAttrs: attrs(name), PeerName: port, PeerNamespace: netlink.NsFd(at.FD())}
	if err := h.links.LinkAdd(veth); err != nil {
		return linkError("add cable", name, err)
	}
	master, err := at.links.LinkByName(bridge)
	if err != nil {
		return linkError("find", bridge, err)
	}
	end, err := at.links.LinkByName(port)
	if err != nil {
		return linkError("find", port, err)
	}
	if err := at.links.LinkSetMaster(end, master); err != nil {
		return linkError("attach", port, err)
	}
	return errors.Join(at.up(port), h.up(name), h.address(name, addrs...))
}

// vxlan is what the tunnel devices of an overlay have in common.
type vxlan struct{ id, port, mtu int }

// vxlan makes a tunnel device on eth0 as Flannel does: fixed hardware address, no learning, one address of its own.
func (h *host) vxlan(name string, v vxlan, local string, mac net.HardwareAddr, addr string) error {
	under, err := h.links.LinkByName("eth0")
	if err != nil {
		return linkError("find", "eth0", err)
	}
	a := attrs(name)
	a.MTU, a.HardwareAddr = v.mtu, mac
	link := &netlink.Vxlan{
		LinkAttrs: a, VxlanId: v.id, VtepDevIndex: under.Attrs().Index, SrcAddr: net.ParseIP(local), Port: v.port,
	}
	if err := h.links.LinkAdd(link); err != nil {
		return linkError("add vxlan", name, err)
	}
	return errors.Join(h.up(name), h.address(name, addr))
}

// tunnel tells a vxlan device of a subnet behind another node, with the three entries that Flannel makes for a lease. The
// subnet's first address is that of the tunnel device there.
func (h *host) tunnel(dev, subnet string, mac net.HardwareAddr, node string) error {
	link, err := h.links.LinkByName(dev)
	if err != nil {
		return linkError("find", dev, err)
	}
	prefix := netip.MustParsePrefix(subnet)
	index, gateway := link.Attrs().Index, net.IP(prefix.Addr().AsSlice())
	neighbour := &netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, Type: unix.RTN_UNICAST, IP: gateway, HardwareAddr: mac}
	forward := &netlink.Neigh{
		LinkIndex: index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
		IP: net.ParseIP(node), HardwareAddr: mac,
	}
	if err := errors.Join(h.links.NeighSet(neighbour), h.links.NeighSet(forward)); err != nil {
		return linkError("add neighbours of", dev, err)
	}
	route := &netlink.Route{LinkIndex: index, Dst: ipNet(prefix), Gw: gateway, Flags: int(netlink.FLAG_ONLINK)}
	return linkError("add route through", dev, h.links.RouteReplace(route))
}

// gateway sets the default routes of both families.
func (h *host) gateway(dev string, via ...string) error {
	link, err := h.links.LinkByName(dev)
	if err != nil {
		return linkError("find", dev, err)
	}
	for _, gw := range via {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(gw)}
		if err := h.links.RouteReplace(route); err != nil {
			return linkError("add route through", dev, err)
		}
	}
	return nil
}

func (h *host) address(name string, addrs ...string) error {
	link, err := h.links.LinkByName(name)
	if err != nil {
		return linkError("find", name, err)
	}
	for _, text := range addrs {
		addr := &netlink.Addr{IPNet: ipNet(netip.MustParsePrefix(text))}
		if strings.Contains(text, ":") {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := h.links.AddrReplace(link, addr); err != nil {
			return linkError("add "+text+" to", name, err)
		}
	}
	return nil
}

func (h *host) removeAddress(name string, addrs ...string) error {
	link, err := h.links.LinkByName(name)
	if err != nil {
		return linkError("find", name, err)
	}
	for _, text := range addrs {
		if err := h.links.AddrDel(link, &netlink.Addr{IPNet: ipNet(netip.MustParsePrefix(text))}); err != nil {
			return linkError("remove "+text+" from", name, err)
		}
	}
	return nil
}

// reach says that a prefix lies directly behind a link.
func (h *host) reach(name, prefix, source string) error {
	link, err := h.links.LinkByName(name)
	if err != nil {
		return linkError("find", name, err)
	}
	route := &netlink.Route{
		LinkIndex: link.Attrs().Index, Dst: ipNet(netip.MustParsePrefix(prefix)), Src: net.ParseIP(source),
		Scope: netlink.SCOPE_LINK,
	}
	return linkError("add route through", name, h.links.RouteReplace(route))
}

// unlink removes a link, and with it the other end of a cable.
func (h *host) unlink(name string) error {
	link, err := h.links.LinkByName(name)
	if err == nil {
		err = h.links.LinkDel(link)
	}
	return linkError("delete", name, err)
}

func attrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

// ipNet keeps the host part, unlike net.ParseCIDR.
func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func linkError(what, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, name, err)
}
