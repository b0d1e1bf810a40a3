package lab

import (
	"errors"
	"net"
	"net/netip"
)

// The lab's addresses: two nodes on one local network, the cluster's pods, and an address of documentation that stands
// for the rest of the world.
const (
	nodeV4, nodeV6       = "192.168.60.11", "fd00:60::11"
	peerV4, peerV6       = "192.168.60.12", "fd00:60::12"
	routerV4, routerV6   = "192.168.60.1", "fd00:60::1"
	outsideV4, outsideV6 = "192.0.2.80", "2001:db8::80"
	podAV4, podAV6       = "10.244.1.5", "fd00:244:0:1::5"
	podBV4, podBV6       = "10.244.1.6", "fd00:244:0:1::6"
	remoteV4, remoteV6   = "10.244.2.7", "fd00:244:0:2::7"
)

// Networks and Subnets are the cluster's pod networks and the node's share of them, IPv4 first.
var (
	Networks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")}
	Subnets  = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:0:1::/64")}
)

// The tunnel devices of node and peer have fixed hardware addresses, because each is told of the other's.
var (
	nodeMAC = net.HardwareAddr{0x52, 0x69, 0x85, 0, 0, 0x11}
	peerMAC = net.HardwareAddr{0x52, 0x69, 0x85, 0, 0, 0x12}
)

// network is the lab's wiring.
//
//	podA, podB ── cni0 [node] eth0 ── lan [outside] ── eth0 [peer] cni0 ── remote
//	                     flannel.1 ────── vxlan ────── flannel.1
//
// The outside host has no route to the pods: what reaches it with a pod's address stays without an answer.
type network struct {
	outside, node, peer, podA, podB, remote *host
}

func newNetwork() (*network, error) {
	w := &network{}
	for _, h := range []**host{&w.outside, &w.node, &w.peer, &w.podA, &w.podB, &w.remote} {
		var err error
		if *h, err = newHost(); err != nil {
			w.close()
			return nil, err
		}
	}
	if err := w.wire(); err != nil {
		w.close()
		return nil, err
	}
	w.outside.moveTo(outsideV4, outsideV6)
	w.podA.moveTo(podAV4, podAV6)
	w.podB.moveTo(podBV4, podBV6)
	w.remote.moveTo(remoteV4, remoteV6)
	return w, nil
}

func (w *network) close() {
	for _, h := range []*host{w.podA, w.podB, w.remote, w.node, w.peer, w.outside} {
		if h != nil {
			h.close()
		}
	}
}

func (w *network) wire() error {
	steps := []func() error{
		func() error { return w.outside.bridge("lan", routerV4+"/24", routerV6+"/64") },
		func() error { return w.outside.address("lo", outsideV4+"/32", outsideV6+"/128") },
		func() error { return w.join(w.node, "node", nodeV4, nodeV6) },
		func() error { return w.join(w.peer, "peer", peerV4, peerV6) },
		func() error { return w.node.bridge("cni0", "10.244.1.1/24", "fd00:244:0:1::1/64") },
		func() error { return w.peer.bridge("cni0", "10.244.2.1/24", "fd00:244:0:2::1/64") },
		func() error { return pod(w.podA, w.node, "veth0a5e11", podAV4+"/24", podAV6+"/64") },
		func() error { return pod(w.podB, w.node, "veth77c3d0", podBV4+"/24", podBV6+"/64") },
		func() error { return pod(w.remote, w.peer, "veth41b90f", remoteV4+"/24", remoteV6+"/64") },
		w.overlay,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// join connects a node to the local network.
func (w *network) join(h *host, port, v4, v6 string) error {
	return errors.Join(h.plug("eth0", w.outside, "lan", port, v4+"/24", v6+"/64"), h.gateway("eth0", routerV4, routerV6), h.forward())
}

// overlay makes what Flannel's vxlan backend makes on both nodes.
func (w *network) overlay() error {
	v4, v6 := vxlan{1, 8472, 1450}, vxlan{1, 8472, 1430}
	return errors.Join(
		w.node.vxlan("flannel.1", v4, nodeV4, nodeMAC, "10.244.1.0/32"),
		w.node.vxlan("flannel-v6.1", v6, nodeV6, nodeMAC, "fd00:244:0:1::/128"),
		w.peer.vxlan("flannel.1", v4, peerV4, peerMAC, "10.244.2.0/32"),
		w.peer.vxlan("flannel-v6.1", v6, peerV6, peerMAC, "fd00:244:0:2::/128"),
		w.node.tunnel("flannel.1", "10.244.2.0/24", peerMAC, peerV4),
		w.node.tunnel("flannel-v6.1", "fd00:244:0:2::/64", peerMAC, peerV6),
		w.peer.tunnel("flannel.1", "10.244.1.0/24", nodeMAC, nodeV4),
		w.peer.tunnel("flannel-v6.1", "fd00:244:0:1::/64", nodeMAC, nodeV6),
	)
}

// pod connects a pod to its node's bridge, as the CNI plugin bridge does.
func pod(h, node *host, port, v4, v6 string) error {
	p4, p6 := netip.MustParsePrefix(v4), netip.MustParsePrefix(v6)
	first := func(p netip.Prefix) string { return p.Masked().Addr().Next().String() }
	return errors.Join(h.plug("eth0", node, "cni0", port, v4, v6), h.gateway("eth0", first(p4), first(p6)))
}
