package host

import (
	"maps"
	"net/netip"
	"slices"
)

// kernel is what links, addresses and routes tell.
type kernel struct {
	bridge []netip.Prefix            // addresses of cni0, as set
	own    map[string][]netip.Addr   // addresses of links named flannel…
	over   map[string][]netip.Prefix // routes over them, to the subnets of other nodes
	holes  []netip.Prefix            // blackhole routes
}

// claims gives the node's subnets by each way to tell them. The network of the cluster cannot be told from here.
func (k kernel) claims() []Claim {
	var out []Claim
	add := func(what string, subnets []netip.Prefix) {
		if len(subnets) > 0 {
			out = append(out, Claim{Source: sourceLinks + what, Subnets: masked(subnets)})
		}
	}
	add("address of cni0", k.bridge)
	for _, name := range slices.Sorted(maps.Keys(k.own)) {
		add("blackhole route at the address of "+name, k.holesAt(name))
		add("address of "+name+" with the length of the routes over it", k.sized(name))
	}
	return out
}

// holesAt gives the blackhole routes that begin at the link's own address, which Flannel makes the first of the subnet.
// Other plugins have blackhole routes of their own.
func (k kernel) holesAt(name string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range k.holes {
		if slices.Contains(k.own[name], p.Addr()) && !p.IsSingleIP() {
			out = append(out, p)
		}
	}
	return out
}

// sized completes the link's address by the length of a subnet, where the subnets of all other nodes agree on one.
func (k kernel) sized(name string) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range k.own[name] {
		bits := 0
		for _, p := range k.over[name] {
			switch {
			case p.Addr().Is4() != a.Is4():
			case bits == 0:
				bits = p.Bits()
			case bits != p.Bits():
				bits = -1
			}
		}
		if p := netip.PrefixFrom(a, bits); bits > 0 && p == p.Masked() {
			out = append(out, p)
		}
	}
	return out
}
