package diagnose

import (
	"net/netip"
	"slices"

	"flanwatch/flannel"
)

// trace is what one backend holds of Flannel in one family.
type trace struct {
	backend flannel.Backend
	family  flannel.Family
	masq    place
	forward place
	table   bool // the native table exists; always false for the iptables backends
	bare    []bare
}

// place is one chain of Flannel's own.
type place struct {
	id      flannel.ChainID
	present bool
	rules   int
	hooks   int // jumps that lead there; 1 for a native base chain
}

// bare is a rule of Flannel's that stands in a base chain itself, as generations before v0.20.0 wrote it.
type bare struct {
	chain    flannel.ChainID
	position int // from 1
	rule     flannel.Rule
}

// any tells whether there is anything of Flannel's at all.
func (t trace) any() bool {
	return t.masq.trace() || t.forward.trace() || t.table || len(t.bare) > 0
}

// holdsRules tells whether there is any rule of Flannel's beside the jumps.
func (t trace) holdsRules() bool { return t.masq.rules > 0 || t.forward.rules > 0 || len(t.bare) > 0 }

// masquerades tells whether there is any rule of Flannel's for masquerading.
func (t trace) masquerades() bool {
	return t.masq.rules > 0 || slices.ContainsFunc(t.bare, func(b bare) bool { return b.chain.Table == flannel.TableNat })
}

// trace tells whether the chain, or a jump to it, is there.
func (p place) trace() bool { return p.present || p.hooks > 0 }

// active tells whether packets pass rules of the chain.
func (p place) active() bool { return p.rules > 0 && p.hooks > 0 }

// places gives both chains.
func (t trace) places() []place { return []place{t.masq, t.forward} }

// findTraces looks through every ruleset that could be read.
func findTraces(f Facts, networks, subnets []netip.Prefix) []trace {
	var out []trace
	for _, b := range flannel.Backends {
		rs, known := f.ruleset(b)
		if !known {
			continue
		}
		for _, family := range flannel.Families {
			t := trace{backend: b, family: family}
			t.masq = findPlace(rs, flannel.MasqChain(b, family))
			t.forward = findPlace(rs, flannel.ForwardChain(b, family))
			if b == flannel.Nftables {
				t.table = rs.HasTable(t.masq.id.TableID()) || t.masq.present || t.forward.present
			} else {
				t.bare = findBare(rs, b, family, networks, subnets)
			}
			out = append(out, t)
		}
	}
	return out
}

// ruleset gives what is known of a backend: a backend that was verified not to exist holds nothing.
func (f Facts) ruleset(b flannel.Backend) (*flannel.Ruleset, bool) {
	r := f.Rules[b]
	switch r.State {
	case flannel.Known:
		return &r.Value, true
	case flannel.Absent:
		return &flannel.Ruleset{Backend: b}, true
	}
	return nil, false
}

func findPlace(rs *flannel.Ruleset, id flannel.ChainID) place {
	p := place{id: id}
	if c := rs.Chain(id); c != nil && c.Present {
		p.present, p.rules = true, len(c.Entries)
		if id.Backend == flannel.Nftables && c.Base != nil {
			p.hooks = 1
		}
	}
	if id.Backend == flannel.Nftables {
		return p
	}
	if c := rs.Chain(baseOf(id)); c != nil {
		for i := range c.Entries {
			if leadsTo(c.Entries[i].Rule, id.Name) {
				p.hooks++
			}
		}
	}
	return p
}

// baseOf names the base chain that leads to a chain of Flannel's own.
func baseOf(id flannel.ChainID) flannel.ChainID {
	id.Name = flannel.ChainForward
	if id.Table == flannel.TableNat {
		id.Name = flannel.ChainPostrouting
	}
	return id
}

func leadsTo(r flannel.Rule, chain string) bool {
	return (r.Target.Kind == flannel.TargetJump || r.Target.Kind == flannel.TargetGoto) && r.Target.Chain == chain
}

// findBare finds Flannel's rules in the base chains: by Flannel's comments, or by their exact shape for this node's
// networks where the generation wrote no comments.
func findBare(rs *flannel.Ruleset, b flannel.Backend, f flannel.Family, networks, subnets []netip.Prefix) []bare {
	shapes := oldShapes(networks, subnets, b, f)
	var out []bare
	for _, id := range []flannel.ChainID{baseOf(flannel.MasqChain(b, f)), baseOf(flannel.ForwardChain(b, f))} {
		c := rs.Chain(id)
		if c == nil {
			continue
		}
		for i := range c.Entries {
			r := c.Entries[i].Rule
			if r.Target.Kind == flannel.TargetJump || r.Target.Kind == flannel.TargetGoto {
				continue
			}
			if commented(r) || slices.ContainsFunc(shapes, r.Equal) {
				out = append(out, bare{chain: id, position: i + 1, rule: r})
			}
		}
	}
	return out
}

func commented(r flannel.Rule) bool {
	switch r.Comment() {
	case flannel.CommentMasq, flannel.CommentMasqTypo, flannel.CommentForward:
		return true
	}
	return false
}

// oldShapes gives every rule that a generation without comments writes for the networks.
func oldShapes(networks, subnets []netip.Prefix, b flannel.Backend, f flannel.Family) []flannel.Rule {
	var out []flannel.Rule
	for _, g := range []flannel.Generation{flannel.GenV080, flannel.GenV0110} {
		o := flannel.Options{RandomFully: g != flannel.GenV080, Forward: true, Masq: true}
		for _, w := range flannel.Expected(networks, subnets, g, o, b, f) {
			out = append(out, w.Rules...)
		}
	}
	return out
}
