package watcher

import (
	"errors"
	"os"
	"time"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/legacy"
	"flanwatch/watcher/nft"
)

// tracking finds out whether any rule of the namespace makes the kernel track connections. The kernel does not tell: it has to
// be read off the rules.
type tracking struct {
	ns     *namespace
	nft    *nft.Browser
	legacy *legacy.Browser
}

const (
	// trackingEvery is how often rules are searched at the most, however often they change.
	trackingEvery = 10 * time.Second
	// trackingShare bounds what that costs: one part in so many of the time.
	trackingShare = 200
)

// uses tells for each family what is known.
type uses [2]conntrack.Use

// find searches the rules. What cannot be read leaves a family unknown, unless another rule settles it.
func (t *tracking) find() uses {
	found := map[flannel.Family]bool{}
	whole := true
	add := func(list map[flannel.Family]bool, err error) {
		whole = whole && err == nil
		for f, yes := range list {
			found[f] = found[f] || yes
		}
	}
	add(t.inNft())
	if !found[flannel.IPv4] || !found[flannel.IPv6] {
		add(t.inLegacy())
	}
	whole = whole && !otherTrackers()
	var out uses
	for i, f := range flannel.Families {
		switch {
		case found[f]:
			out[i] = conntrack.UseRules
		case whole:
			out[i] = conntrack.UseNone
		}
	}
	return out
}

func (t *tracking) inNft() (map[flannel.Family]bool, error) {
	if t.nft == nil {
		b, err := within(t.ns, nft.Browse)
		if errors.Is(err, nft.ErrNotPresent) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		t.nft = b
	}
	return t.nft.Tracking()
}

func (t *tracking) inLegacy() (found map[flannel.Family]bool, err error) {
	if t.legacy == nil {
		b, err := within(t.ns, legacy.Browse)
		if errors.Is(err, legacy.ErrNotLoaded) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		t.legacy = b
	}
	defer t.legacy.Rest()
	return within(t.ns, t.legacy.Tracking)
}

// otherTrackers tells whether something else than rules may track connections here: IPVS, Open vSwitch, traffic control.
func otherTrackers() bool {
	for _, name := range []string{"ip_vs", "openvswitch", "act_ct"} {
		if _, err := os.Stat("/sys/module/" + name); err == nil {
			return true
		}
	}
	return false
}

func (t *tracking) close() error {
	var errs []error
	if t.nft != nil {
		errs = append(errs, t.nft.Close())
	}
	if t.legacy != nil {
		errs = append(errs, t.legacy.Close())
	}
	return errors.Join(errs...)
}
