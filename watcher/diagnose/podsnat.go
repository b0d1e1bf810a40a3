package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"flanwatch/flannel"
	"flanwatch/flannel/path"
)

// judgePodSnat tells which local pods a chain that is left over would give another address on their way to other pods: those
// whose address lies outside of the subnet that its rules spare.
func (j *judgement) judgePodSnat(s sight) {
	c := s.rules.Chain(s.masq.id)
	if c == nil || !s.masq.active() {
		return
	}
	var suffer, spared []string
	var by *path.By
	for _, pod := range j.facts.Around.Routing.Value.Pods {
		if pod.BitLen() != s.family.Bits() {
			continue
		}
		remote, known := j.remotePod(s, pod)
		if !known {
			continue
		}
		v := j.translated(c, pod, remote)
		if v.Kind != path.Masqueraded {
			spared = append(spared, pod.String())
			continue
		}
		suffer = append(suffer, fmt.Sprintf("%s on its way to %s", pod, remote))
		by = v.By
	}
	if len(suffer) == 0 {
		return
	}
	f := Finding{ID: "pod-snat", Severity: Warning, Object: s.masq.id.String(), Chain: s.masq.id}
	f.Summary = fmt.Sprintf("%s of this node would reach pods of other nodes under the node's address: network policies there take them for somebody else.",
		podCount(len(suffer)))
	if by != nil {
		f.Detail = append(f.Detail, fmt.Sprintf("rule %d decides: %s", by.Position, flannel.Printable(by.Text)))
	}
	for i, p := range suffer {
		if i == listed {
			f.Detail = append(f.Detail, fmt.Sprintf("and %d more", len(suffer)-i))
			break
		}
		f.Detail = append(f.Detail, p)
	}
	if len(spared) > 0 {
		f.Detail = append(f.Detail, fmt.Sprintf("spared: %s", podCount(len(spared))))
	}
	j.offerPurge(&f)
	j.find(f)
}

// translated asks what the chain alone does to the first packet of a connection.
func (j *judgement) translated(c *flannel.Chain, from, to netip.Addr) path.Verdict {
	alone := *c
	if alone.Base == nil {
		alone.Base = &flannel.BaseChain{Type: "nat", Hook: "postrouting", Priority: 100, Policy: "accept"}
	}
	family := c.ID.Family
	return path.New(path.Tables{Chains: []flannel.Chain{alone}}, path.Facts{}).Packet(path.Packet{
		Path: path.ForeignPodToRemotePod, Family: family, Source: from, Destination: to, In: "pod", Out: "out",
		Protocol: "tcp", SourcePort: 40000, DestinationPort: 443,
	})
}

// remotePod gives an address of a pod on another node: within a route to one, else within the network of the rules, outside of
// the subnets that are this node's.
func (j *judgement) remotePod(s sight, pod netip.Addr) (netip.Addr, bool) {
	p := j.prefixes(s)
	for _, r := range flannel.Of(s.family, j.facts.Around.Routing.Value.Remote) {
		if slices.ContainsFunc(p.networks, func(n netip.Prefix) bool { return n.Overlaps(r) && n.Bits() < r.Bits() }) {
			return third(r), true
		}
	}
	for _, n := range p.networks {
		a := third(n)
		for range 4 {
			if !slices.ContainsFunc(p.subnets, func(x netip.Prefix) bool { return x.Contains(a) }) && a != pod {
				return a, n.Contains(a)
			}
			a = beyond(p.subnets, a)
		}
	}
	return netip.Addr{}, false
}

// third is the third address of a range: the first is the tunnel's, the second the bridge's.
func third(p netip.Prefix) netip.Addr {
	if a := p.Addr().Next().Next(); p.Contains(a) {
		return a
	}
	return p.Addr()
}

// beyond is the third address behind the range that holds a.
func beyond(list []netip.Prefix, a netip.Addr) netip.Addr {
	for _, p := range list {
		if !p.Contains(a) {
			continue
		}
		last := p.Masked().Addr().AsSlice()
		for i := range last {
			host := 8*(i+1) - p.Bits()
			switch {
			case host >= 8:
				last[i] = 0xff
			case host > 0:
				last[i] |= 1<<host - 1
			}
		}
		end, _ := netip.AddrFromSlice(last)
		return end.Next().Next().Next()
	}
	return a.Next()
}
