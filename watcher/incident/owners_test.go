package incident

import (
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
)

// marks sets which chains of others are there, in IPv4 of iptables-nft.
func (w *world) marks(alive ...string) {
	w.rules[nft].Others = nil
	for _, id := range flannel.Marks(nft) {
		m := flannel.Mark{ID: id, Alive: id.Family == flannel.IPv4 && slices.Contains(alive, id.Name)}
		w.rules[nft].Others = append(w.rules[nft].Others, m)
	}
}

func (w *world) finds(id string) bool {
	for _, f := range w.view().Findings {
		if f.ID == id {
			return true
		}
	}
	return false
}

func TestOwnersThatLostChainsTogetherRecoverEachForItself(t *testing.T) {
	w := newWorld(t, nft)
	w.wait(time.Second).change(func() { w.marks("KUBE-SERVICES", "CNI-HOSTPORT-DNAT") }).read(nft)
	w.wait(time.Second).change(func() {
		for _, id := range []flannel.ChainID{masq, fwd, baseOf(masq), baseOf(fwd)} {
			*w.rules[nft].Chain(id) = flannel.Chain{ID: id}
		}
		w.rules[nft].Tables = nil
	}).announce("nft")
	w.marks()
	w.rules[nft].Revision++
	w.wait(time.Millisecond).read(nft)
	if w.finds("hostport-missing") {
		t.Error("found while Flannel is away")
	}
	w.wait(4 * time.Second).refill(nft).announce("iptables-restor").read(nft)
	if w.finds("hostport-missing") {
		t.Error("found while kube-proxy is away")
	}
	w.wait(27 * time.Second).change(func() { w.marks("KUBE-SERVICES") }).announce("iptables-restor").read(nft)
	all := w.view().Incidents
	if len(all) != 1 || all[0].Open || all[0].Kind != KindRulesetFlush || len(all[0].Owners) != 2 {
		t.Fatalf("%+v", all)
	}
	effects := strings.Join(all[0].Effects, "; ")
	for _, want := range []string{
		"kube-proxy lost v4 nat KUBE-SERVICES with it, back after 31.0 s",
		"CNI portmap lost v4 nat CNI-HOSTPORT-DNAT with it, which has not come back",
	} {
		if !strings.Contains(effects, want) {
			t.Errorf("effects %q lack %q", effects, want)
		}
	}
	if d := all[0].Duration(w.now); d != 4001*time.Millisecond {
		t.Errorf("Flannel was back after %v", d)
	}
	if !w.finds("hostport-missing") {
		t.Error("not found though only portmap is still away")
	}
	w.wait(time.Minute).change(func() { w.marks("KUBE-SERVICES", "CNI-HOSTPORT-DNAT") }).announce("iptables").read(nft)
	if w.finds("hostport-missing") {
		t.Error("found though all are back")
	}
}

func TestAnOwnerThatWasNeverThereOrWentByItselfIsNotMissed(t *testing.T) {
	w := newWorld(t, nft)
	w.wait(time.Second).change(func() { w.marks("CNI-HOSTPORT-DNAT") }).read(nft)
	w.wait(time.Second).change(func() { w.marks() }).announce("iptables").read(nft)
	w.wait(time.Minute).flush(masq).announce("iptables").read(nft)
	w.wait(time.Second).refill(nft).announce("iptables-restor").read(nft)
	w.wait(time.Minute).read(nft)
	all := w.view().Incidents
	if w.finds("hostport-missing") || len(all) != 1 || len(all[0].Owners) > 0 {
		t.Errorf("%+v", all)
	}
}
