package proc

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// LinkReader lists network interfaces over one rtnetlink socket that stays open.
type LinkReader struct {
	handle *netlink.Handle
	mark   mark
}

// OpenLinks opens the socket in the network namespace of the calling thread.
func OpenLinks() (*LinkReader, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open links: %w", err)
	}
	m, err := openMark()
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("open links: %w", err)
	}
	return &LinkReader{handle: h, mark: m}, nil
}

// Close closes the socket.
func (r *LinkReader) Close() {
	r.handle.Close()
	unix.Close(r.mark.fd)
}

// Read lists the interfaces that network plugins make, in the kernel's order. Of the veths that Calico makes, one for each
// pod, it gives the first only.
func (r *LinkReader) Read(now flannel.Time) flannel.Reading[[]diagnose.Link] {
	links, err := r.list()
	if err != nil {
		return flannel.Miss[[]diagnose.Link](flannel.Unreadable, err.Error(), "rtnetlink", now)
	}
	out := []diagnose.Link{}
	calico := false
	for _, l := range links {
		a := l.Attrs()
		pod := l.Type() == "veth" && strings.HasPrefix(a.Name, "cali")
		if pluginLink(a.Name) || pod && !calico {
			calico = calico || pod
			out = append(out, diagnose.Link{Name: a.Name, Type: l.Type(), Up: a.Flags&net.FlagUp != 0})
		}
	}
	return flannel.Know(out, "rtnetlink", now)
}

// list repeats a dump that was torn by a change meanwhile.
func (r *LinkReader) list() ([]netlink.Link, error) {
	for range 5 {
		links, err := r.handle.LinkList()
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list links: %w", err)
		}
		return links, nil
	}
	return nil, fmt.Errorf("list links: %w", netlink.ErrDumpInterrupted)
}

// pluginLink tells whether a name is one that Flannel or another network plugin gives.
func pluginLink(name string) bool {
	switch name {
	case "cni0", "flannel0", "vxlan.calico", "vxlan-v6.calico", "kube-bridge", "kube-ipvs0", "tunl0", "weave", "docker0":
		return true
	}
	for _, prefix := range []string{"flannel.", "flannel-v6.", "flannel-wg", "cilium_", "wireguard.cali", "antrea-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// Uplink tells whether the namespace looks like a pod's: its way out is a veth, and there is no bridge to which pods
// would be connected. The name of the link comes with it.
func (r *LinkReader) Uplink() (name string, pod bool) {
	links, err := r.list()
	if err != nil {
		return "", false
	}
	routes, err := r.handle.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return "", false
	}
	out := 0
	for _, route := range routes {
		if route.Dst == nil || route.Dst.IP.IsUnspecified() {
			out = route.LinkIndex
		}
	}
	for _, l := range links {
		if l.Type() == "bridge" || pluginLink(l.Attrs().Name) {
			return "", false
		}
		if l.Attrs().Index == out && l.Type() == "veth" {
			name = l.Attrs().Name
		}
	}
	return name, name != ""
}
