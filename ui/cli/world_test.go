package cli

import (
	"net/netip"

	"flanwatch/flannel"
)

var (
	podNetworks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	podSubnets  = []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")}
)

func healthyNode(at flannel.Time) flannel.Node {
	return flannel.Node{
		Name:     "worker-3",
		Networks: flannel.Know(podNetworks, "/run/flannel/subnet.env", at),
		Subnets:  flannel.Know(podSubnets, "/run/flannel/subnet.env", at),
		IPMasq:   flannel.Know(true, "/run/flannel/subnet.env", at),
	}
}

// rulesWhile is the ruleset of a healthy node, or of one whose masquerade chain is empty.
func rulesWhile(empty bool, packets int) *flannel.Ruleset {
	rs := &flannel.Ruleset{Backend: flannel.IptablesNft, Generation: 1 + uint32(packets/5), Revision: 1}
	for _, id := range flannel.Looked(flannel.IptablesNft) {
		rs.Chains = append(rs.Chains, flannel.Chain{ID: id})
	}
	handle := uint64(0)
	entry := func(r flannel.Rule) flannel.Entry {
		handle++
		return flannel.Entry{Rule: r, Handle: handle, Body: handle, Counted: true, Counter: flannel.Counter{Packets: uint64(packets)}}
	}
	options := flannel.Options{RandomFully: true, Forward: true, Masq: true}
	for _, want := range flannel.Expected(podNetworks, podSubnets, flannel.GenV0210, options, flannel.IptablesNft, flannel.IPv4) {
		c := rs.Chain(want.ID)
		c.Present = true
		rs.Tables = append(rs.Tables, want.ID.TableID())
		for _, r := range want.Rules {
			c.Entries = append(c.Entries, entry(r))
		}
		base := rs.Chain(want.HookChain)
		base.Present, base.Base = true, &flannel.BaseChain{Policy: "accept"}
		base.Entries = []flannel.Entry{entry(want.Hook)}
	}
	if empty {
		rs.Revision = 2
		rs.Chain(flannel.MasqChain(flannel.IptablesNft, flannel.IPv4)).Entries = nil
	}
	return rs
}
