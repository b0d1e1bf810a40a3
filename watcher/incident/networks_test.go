package incident

import (
	"net/netip"
	"testing"
	"time"

	"flanwatch/flannel"
)

var (
	otherNetworks = []netip.Prefix{netip.MustParsePrefix("10.245.0.0/16")}
	otherSubnets  = []netip.Prefix{netip.MustParsePrefix("10.245.1.0/24")}
)

// rewrite writes the rules of a chain for another network, as flanneld does when it comes back with one.
func (w *world) rewrite(b flannel.Backend, only flannel.ChainID) {
	g := flannel.GenV0210
	if b == flannel.Nftables {
		g = flannel.GenV0250
	}
	for _, want := range flannel.Expected(otherNetworks, otherSubnets, g, options, b, flannel.IPv4) {
		if want.ID != only {
			continue
		}
		c := w.rules[b].Chain(want.ID)
		c.Entries = nil
		for _, r := range want.Rules {
			c.Entries = append(c.Entries, w.entry(b, r))
		}
	}
}

// readNode hands over the node's files, which name the other network by now.
func (w *world) readNode() {
	n := flannel.Node{Networks: flannel.Know(otherNetworks, "/run/flannel/subnet.env", w.now)}
	n.Subnets = flannel.Know(otherSubnets, "/run/flannel/subnet.env", w.now)
	n.IPMasq = flannel.Know(true, "/run/flannel/subnet.env", w.now)
	w.s.Apply(&Observation{Time: w.now, Node: &n})
}

func TestRulesWrittenAtOnceForANetworkThatFilesNameLaterAreNoIncident(t *testing.T) {
	w := newWorld(t, flannel.Nftables)
	w.wait(100 * time.Millisecond).change(func() { w.rewrite(flannel.Nftables, native) }).announce("nft").read(flannel.Nftables)
	w.wait(250 * time.Millisecond).change(func() { w.rewrite(flannel.Nftables, fwdNative) }).announce("nft").read(flannel.Nftables)
	w.wait(1500 * time.Millisecond).read(flannel.Nftables).readNode()
	w.wait(5 * time.Second).read(flannel.Nftables)
	if all := w.view().Incidents; len(all) > 0 {
		t.Errorf("%+v", all)
	}
}

func TestRulesForANetworkThatNoFileNamesAreAnIncidentAfterAWhile(t *testing.T) {
	w := newWorld(t, flannel.Nftables)
	w.wait(100 * time.Millisecond).change(func() { w.rewrite(flannel.Nftables, native) }).announce("nft").read(flannel.Nftables)
	if all := w.view().Incidents; len(all) > 0 {
		t.Errorf("too soon: %+v", all)
	}
	for range 5 {
		w.wait(time.Second).read(flannel.Nftables)
	}
	all := w.view().Incidents
	if len(all) != 1 || !all[0].Open || all[0].Kind != KindPartial {
		t.Errorf("%+v", all)
	}
}

func TestAGapEndsWhenTheRulesCameBackAndNotWhenTheirNetworkWasLearnt(t *testing.T) {
	w := newWorld(t, nft)
	w.wait(100 * time.Millisecond).flush(masq).announce("iptables").read(nft)
	w.wait(40 * time.Millisecond).change(func() { w.rewrite(nft, masq); w.rewrite(nft, fwd) }).announce("iptables-restor").read(nft)
	w.wait(1500 * time.Millisecond).read(nft).readNode()
	w.wait(time.Second).read(nft)
	all := w.view().Incidents
	if len(all) != 1 || all[0].Open || all[0].Duration(w.now) != 40*time.Millisecond || all[0].Verified.IsZero() ||
		all[0].RecoveredBy == nil || all[0].RecoveredBy.Comm != "iptables-restor" {
		t.Errorf("%+v", all)
	}
}

func TestChainsThatAStartingFlannelMakesOneByOneAreNotLost(t *testing.T) {
	w := newWorld(t, nft)
	w.change(func() {
		*w.rules[nft] = flannel.Ruleset{Backend: nft, Generation: w.gen, Revision: w.rules[nft].Revision}
		for _, id := range flannel.Looked(nft) {
			w.rules[nft].Chains = append(w.rules[nft].Chains, flannel.Chain{ID: id})
		}
	})
	w.s = NewState() // nothing has ever been there
	w.readNodeAsBefore()
	w.procs()
	w.read(nft).read(flannel.Nftables)
	w.wait(time.Second).procs(w.flanneld(0))
	w.wait(400 * time.Millisecond).change(func() { w.rules[nft].Chain(masq).Present = true }).announce("iptables").read(nft)
	w.wait(400 * time.Millisecond).refill(nft).announce("iptables-restor").read(nft)
	w.wait(time.Minute).read(nft)
	if all := w.view().Incidents; len(all) > 0 {
		t.Errorf("%+v", all)
	}
}

func (w *world) readNodeAsBefore() {
	n := flannel.Node{Networks: flannel.Know(networks, "/run/flannel/subnet.env", w.now)}
	n.Subnets = flannel.Know(subnets, "/run/flannel/subnet.env", w.now)
	n.IPMasq = flannel.Know(true, "/run/flannel/subnet.env", w.now)
	w.s.Apply(&Observation{Time: w.now, Node: &n})
}

func TestAChangeThatOnlyAReadCanTellHappenedWhenItWasAnnounced(t *testing.T) {
	w := newWorld(t, nft)
	w.wait(100 * time.Millisecond).flush(masq).announce("iptables").read(nft)
	w.wait(40 * time.Millisecond).change(func() {
		w.fill(nft)
		clear(w.s.bodies) // nobody knows the rules by what is announced of them
	}).announce("iptables-restor")
	w.wait(8 * time.Millisecond).read(nft)
	all := w.view().Incidents
	if len(all) != 1 || all[0].Open || all[0].Duration(w.now) != 40*time.Millisecond {
		t.Errorf("%+v", all)
	}
}
