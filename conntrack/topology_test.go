package conntrack

import (
	"net/netip"
	"testing"

	"flanwatch/flannel"
)

func addrs(words ...string) []netip.Addr {
	var out []netip.Addr
	for _, w := range words {
		out = append(out, netip.MustParseAddr(w))
	}
	return out
}

func prefixes(words ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, w := range words {
		out = append(out, netip.MustParsePrefix(w))
	}
	return out
}

func usual() Topology {
	return Topology{
		Networks: prefixes("10.244.0.0/16", "fd00:244::/48"),
		Subnets:  prefixes("10.244.1.0/24", "fd00:244:0:1::/64"),
		Services: prefixes("10.96.0.0/12"),
		Own:      addrs("192.168.60.11", "10.244.1.1", "10.244.1.0", "fd00:60::11"),
		Nodes:    addrs("192.168.60.12"),
		Tunnels:  map[netip.Addr]string{netip.MustParseAddr("10.244.2.0"): "192.168.60.12"},
		Masquerade: map[flannel.Family]bool{
			flannel.IPv4: true, flannel.IPv6: true,
		},
		Neighbours: flannel.Know(map[netip.Addr]bool{netip.MustParseAddr("10.244.1.5"): true}, "test", flannel.Time{}),
		Routes:     flannel.Know(prefixes("10.244.1.0/24", "10.244.2.0/24"), "test", flannel.Time{}),
		Pods:       map[netip.Addr]string{netip.MustParseAddr("10.244.1.5"): "shop/cart-0"},
	}
}

// flow makes an entry: from, to, the source and the destination of the reply.
func flow(proto uint8, from, to, replySrc, replyDst string, status Status) Flow {
	a := addrs(from, to, replySrc, replyDst)
	f := Flow{Orig: Tuple{Src: a[0], Dst: a[1], SPort: 40000, DPort: 80, Proto: proto}, Status: status}
	f.Reply = Tuple{Src: a[2], Dst: a[3], SPort: 80, DPort: 40000, Proto: proto}
	if a[2] != a[1] {
		f.Status |= DstNAT
	}
	if a[3] != a[0] {
		f.Status |= SrcNAT
	}
	return f
}

func TestAFlowIsJudgedByWhereItReallyGoesAndWhomItIsTakenFor(t *testing.T) {
	const pod, outside, node, peer = "10.244.1.5", "192.0.2.80", "192.168.60.11", "192.168.60.12"
	for name, c := range map[string]struct {
		f    Flow
		want Kind
	}{
		"pod to outside, masqueraded":                {flow(TCP, pod, outside, outside, node, 0), Fine},
		"pod to outside, translated by another":      {flow(TCP, pod, outside, outside, "203.0.113.9", 0), Fine},
		"pod to outside, bare":                       {flow(TCP, pod, outside, outside, pod, 0), Bare},
		"pod to outside, bare, IPv6":                 {flow(UDP, "fd00:244:0:1::5", "2001:db8::80", "2001:db8::80", "fd00:244:0:1::5", 0), Bare},
		"pod to outside, bare, by ping":              {flow(ICMP, pod, outside, outside, pod, 0), Bare},
		"pod to a service outside, bare":             {flow(TCP, pod, "10.96.0.1", outside, pod, 0), Bare},
		"pod to a service without pods":              {flow(TCP, pod, "10.96.0.1", "10.96.0.1", pod, 0), Fine},
		"pod to pod here":                            {flow(TCP, pod, "10.244.1.6", "10.244.1.6", pod, 0), Fine},
		"pod to pod elsewhere":                       {flow(TCP, pod, "10.244.2.7", "10.244.2.7", pod, 0), Fine},
		"pod to service":                             {flow(TCP, pod, "10.96.0.1", "10.244.2.7", pod, 0), Fine},
		"pod to itself through a service":            {flow(TCP, pod, "10.96.0.1", pod, node, 0), Fine},
		"pod to a node port, marked by kube-proxy":   {flow(TCP, pod, node, "10.244.2.7", node, 0), Fine},
		"pod to its node":                            {flow(TCP, pod, node, node, pod, 0), Fine},
		"pod to another node":                        {flow(TCP, pod, peer, peer, pod, 0), Fine},
		"pod to its gateway":                         {flow(UDP, pod, "10.244.1.1", "10.244.1.1", pod, 0), Fine},
		"pod to link-local":                          {flow(UDP, pod, "169.254.20.10", "169.254.20.10", pod, 0), Fine},
		"pod to multicast":                           {flow(UDP, pod, "239.1.1.1", "239.1.1.1", pod, 0), Fine},
		"pod to broadcast":                           {flow(UDP, pod, "255.255.255.255", "255.255.255.255", pod, 0), Fine},
		"the node itself to outside, from the cni0":  {flow(UDP, "10.244.1.1", outside, outside, "10.244.1.1", 0), Fine},
		"outside to pod":                             {flow(TCP, outside, pod, pod, outside, 0), Fine},
		"pod to pod, seen as the node":               {flow(TCP, pod, "10.244.2.7", "10.244.2.7", node, 0), Translated},
		"pod to pod, seen as the tunnel":             {flow(TCP, pod, "10.244.2.7", "10.244.2.7", "10.244.1.0", 0), Translated},
		"pod to pod here, seen as the bridge":        {flow(UDP, pod, "10.244.1.6", "10.244.1.6", "10.244.1.1", 0), Translated},
		"node to pod elsewhere, by its rule":         {flow(TCP, node, "10.244.2.7", "10.244.2.7", "10.244.1.0", 0), Fine},
		"from another node's tunnel to a pod here":   {flow(TCP, "10.244.2.0", pod, pod, "10.244.2.0", 0), Arriving},
		"from another node's tunnel to a service":    {flow(TCP, "10.244.2.0", "10.96.0.1", pod, "10.244.2.0", 0), Arriving},
		"from another node's tunnel to the node":     {flow(TCP, "10.244.2.0", "10.244.1.1", "10.244.1.1", "10.244.2.0", 0), Fine},
		"UDP to a pod here that is gone":             {flow(UDP, pod, "10.96.0.1", "10.244.1.99", pod, 0), Stale},
		"UDP to a pod here that listens in silence":  {flow(UDP, "10.244.1.6", "10.96.0.1", pod, "10.244.1.6", 0), Fine},
		"UDP to a pod that answered":                 {flow(UDP, pod, "10.96.0.1", "10.244.1.99", pod, SeenReply), Fine},
		"UDP to a pod of a node that is gone":        {flow(UDP, pod, "10.96.0.1", "10.244.9.9", pod, 0), Stale},
		"UDP to a pod of a node that is there":       {flow(UDP, pod, "10.96.0.1", "10.244.2.99", pod, 0), Fine},
		"UDP from outside to a pod that is gone":     {flow(UDP, outside, node, "10.244.1.99", outside, 0), Stale},
		"TCP to a pod that is gone":                  {flow(TCP, pod, "10.96.0.1", "10.244.1.99", pod, 0), Fine},
		"UDP to a gone pod's own address, untouched": {flow(UDP, pod, "10.244.1.99", "10.244.1.99", pod, 0), Fine},
	} {
		t.Run(name, func(t *testing.T) {
			if got := NewClassifier(usual()).Kind(&c.f); got != c.want {
				t.Errorf("%v is %q, want %q", &c.f, got, c.want)
			}
		})
	}
}

func TestWhatIsNotKnownMakesNoFault(t *testing.T) {
	const pod, outside = "10.244.1.5", "192.0.2.80"
	bare := flow(TCP, pod, outside, outside, pod, 0)
	gone := flow(UDP, pod, "10.96.0.1", "10.244.1.99", pod, 0)
	far := flow(UDP, pod, "10.96.0.1", "10.244.9.9", pod, 0)
	for name, c := range map[string]struct {
		f       Flow
		without func(*Topology)
	}{
		"whether pods are masqueraded":    {bare, func(t *Topology) { t.Masquerade = nil }},
		"that they are in this family":    {bare, func(t *Topology) { t.Masquerade = map[flannel.Family]bool{flannel.IPv6: true} }},
		"the pod networks":                {bare, func(t *Topology) { t.Networks = nil }},
		"which neighbours answer":         {gone, func(t *Topology) { t.Neighbours.State = flannel.Unreadable }},
		"which routes there are":          {far, func(t *Topology) { t.Routes.State = flannel.Unread }},
		"that the destination is a pod's": {gone, func(t *Topology) { t.Networks = prefixes("10.245.0.0/16") }},
	} {
		topology := usual()
		c.without(&topology)
		if got := NewClassifier(topology).Kind(&c.f); got != Fine {
			t.Errorf("without knowing %s: %v is %q", name, &c.f, got)
		}
	}
}
