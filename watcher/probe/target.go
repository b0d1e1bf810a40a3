// Package probe tries connections from inside a pod's network namespace, as its programs would: each with a new source
// port, so that each is a new connection to the packet filter.
package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
)

// Target is what is connected to.
type Target struct {
	Scheme string // "tcp", "udp" or "icmp"
	Addr   netip.Addr
	Port   uint16 // 0 for icmp
}

// Parse reads tcp://ADDRESS:PORT, udp://ADDRESS:PORT or icmp://ADDRESS. Names are not understood: a pod may know them
// otherwise than its node, and looking one up would be a connection of its own.
func Parse(text string) (Target, error) {
	u, err := url.Parse(text)
	if err != nil {
		return Target{}, fmt.Errorf("probe %q: %w", text, err)
	}
	t := Target{Scheme: u.Scheme}
	if t.Addr, err = netip.ParseAddr(u.Hostname()); err != nil {
		return Target{}, fmt.Errorf("probe %q: %q is not an address", text, u.Hostname())
	}
	t.Addr = t.Addr.Unmap()
	if u.Path != "" || u.RawQuery != "" || u.User != nil {
		return Target{}, fmt.Errorf("probe %q: want no more than an address and a port", text)
	}
	switch t.Scheme {
	case "tcp", "udp":
		port, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil || port == 0 {
			return Target{}, fmt.Errorf("probe %q: want a port from 1 to 65535", text)
		}
		t.Port = uint16(port)
	case "icmp":
		if u.Port() != "" {
			return Target{}, fmt.Errorf("probe %q: icmp has no ports", text)
		}
	default:
		return Target{}, fmt.Errorf("probe %q: want tcp://, udp:// or icmp://", text)
	}
	return t, nil
}

// String is the inverse of Parse.
func (t Target) String() string {
	host := t.Addr.String()
	if t.Scheme != "icmp" {
		return t.Scheme + "://" + netip.AddrPortFrom(t.Addr, t.Port).String()
	}
	if t.Addr.Is6() {
		host = "[" + host + "]"
	}
	return "icmp://" + host
}

// ErrNotTried means that a connection could not even be begun, so that nothing is known of the way to the target: the pod
// may be gone.
var ErrNotTried = errors.New("not tried")
