package host

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// links takes the node's subnets from the kernel: the address of cni0, the blackhole route that --ip-blackhole-route makes,
// and the address of flannel's own link with the length that the subnets of all other nodes have.
func (g *gatherer) links(h *netlink.Handle) {
	k, err := lookAt(h)
	if err != nil {
		g.fail("links and routes", err)
		return
	}
	for _, c := range k.claims() {
		g.claim(c)
	}
}

func lookAt(h *netlink.Handle) (kernel, error) {
	k := kernel{own: map[string][]netip.Addr{}, over: map[string][]netip.Prefix{}}
	links, err := whole(h.LinkList)
	if err != nil {
		return k, err
	}
	names := map[int]string{}
	for _, l := range links {
		if name := l.Attrs().Name; name == "cni0" || strings.HasPrefix(name, "flannel") {
			names[l.Attrs().Index] = name
		}
	}
	if err := k.addresses(h, names); err != nil {
		return k, err
	}
	return k, k.routes(h, names)
}

// whole repeats a dump that was torn by a change meanwhile.
func whole[T any](dump func() ([]T, error)) ([]T, error) {
	for range 4 {
		if list, err := dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
	return dump()
}

func (k *kernel) addresses(h *netlink.Handle, names map[int]string) error {
	if len(names) == 0 {
		return nil
	}
	list, err := whole(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return err
	}
	for _, a := range list {
		p := prefixOf(a.IPNet.IP, a.IPNet.Mask)
		name := names[a.LinkIndex]
		switch {
		case !p.IsValid() || p.Addr().IsLinkLocalUnicast():
		case name == "cni0":
			k.bridge = append(k.bridge, p)
		case name != "":
			k.own[name] = append(k.own[name], p.Addr())
		}
	}
	return nil
}

// routes looks at the main table only, where Flannel writes.
func (k *kernel) routes(h *netlink.Handle, names map[int]string) error {
	for _, f := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := whole(func() ([]netlink.Route, error) {
			return h.RouteListFiltered(f, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return err
		}
		for _, r := range list {
			if r.Dst == nil {
				continue
			}
			p := prefixOf(r.Dst.IP, r.Dst.Mask)
			switch name := names[r.LinkIndex]; {
			case !p.IsValid() || p.Bits() == 0 || p.Addr().IsLinkLocalUnicast():
			case r.Type == unix.RTN_BLACKHOLE:
				k.holes = append(k.holes, p)
			case strings.HasPrefix(name, "flannel") && r.Type == unix.RTN_UNICAST && !p.IsSingleIP():
				k.over[name] = append(k.over[name], p)
			}
		}
	}
	return nil
}

func prefixOf(ip []byte, mask []byte) netip.Prefix {
	a, ok := netip.AddrFromSlice(ip)
	if !ok {
		return netip.Prefix{}
	}
	ones := 0
	for _, b := range mask {
		for ; b&0x80 != 0; b <<= 1 {
			ones++
		}
	}
	return netip.PrefixFrom(a.Unmap(), ones)
}
