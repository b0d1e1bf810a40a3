package diagnose

import (
	"net/netip"
	"slices"

	"flanwatch/flannel"
)

// sight is what one backend holds of Flannel in one family.
type sight struct {
	backend flannel.Backend
	family  flannel.Family
	rules   *flannel.Ruleset
	masq    place
	forward place
	table   bool            // the native table exists; always false for the iptables backends
	own     *flannel.Trace  // read off Flannel's own chains, nil where there are none
	bare    []flannel.Trace // generations whose rules stand in the base chains
}

// place is one chain of Flannel's own.
type place struct {
	id      flannel.ChainID
	present bool
	rules   int
	hooks   int // jumps that lead there; 1 for a native base chain
}

// any tells whether there is anything of Flannel's at all.
func (s sight) any() bool { return s.masq.any() || s.forward.any() || s.table || len(s.bare) > 0 }

// filled tells whether there is any rule of Flannel's beside the jumps.
func (s sight) filled() bool { return s.masq.rules > 0 || s.forward.rules > 0 || len(s.bare) > 0 }

// masquerades tells whether there is any rule of Flannel's for masquerading.
func (s sight) masquerades() bool {
	return s.masq.rules > 0 || slices.ContainsFunc(s.bare, func(t flannel.Trace) bool { return t.Options.Masq })
}

// any tells whether the chain, or a jump to it, is there.
func (p place) any() bool { return p.present || p.hooks > 0 }

// active tells whether packets pass rules of the chain.
func (p place) active() bool { return p.rules > 0 && p.hooks > 0 }

// look finds what each backend that could be read holds of Flannel, in both families.
func look(f Facts) []sight {
	var out []sight
	for _, b := range flannel.Backends {
		rs, known := f.ruleset(b)
		if !known {
			continue
		}
		traces := flannel.Infer(rs, f.Node.Networks.Value, f.Node.Subnets.Value)
		for _, family := range flannel.Families {
			out = append(out, lookAt(rs, b, family, traces))
		}
	}
	return out
}

func lookAt(rs *flannel.Ruleset, b flannel.Backend, f flannel.Family, traces []flannel.Trace) sight {
	s := sight{backend: b, family: f, rules: rs}
	s.masq = findPlace(rs, flannel.MasqChain(b, f))
	s.forward = findPlace(rs, flannel.ForwardChain(b, f))
	s.table = b == flannel.Nftables && (rs.HasTable(s.masq.id.TableID()) || s.masq.present || s.forward.present)
	for i, t := range traces {
		switch {
		case t.Family != f:
		case t.Generation.OwnChains():
			s.own = &traces[i]
		default:
			s.bare = append(s.bare, t)
		}
	}
	return s
}

// ruleset gives what is known of a backend: one that was verified not to exist holds nothing.
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
	native := id.Backend == flannel.Nftables
	if c := rs.Chain(id); c != nil && c.Present {
		p.present, p.rules = true, len(c.Entries)
		if native && c.Base != nil {
			p.hooks = 1
		}
	}
	if c := rs.Chain(baseOf(id)); c != nil && !native {
		for i := range c.Entries {
			if t := c.Entries[i].Rule.Target; t.Chain == id.Name {
				p.hooks++
			}
		}
	}
	return p
}

// baseOf names the base chain that leads to an iptables chain of Flannel's own.
func baseOf(id flannel.ChainID) flannel.ChainID {
	id.Name = flannel.ChainForward
	if id.Table == flannel.TableNat {
		id.Name = flannel.ChainPostrouting
	}
	return id
}

// prefixes are the networks and subnets that hold for one family of one backend.
type prefixes struct {
	networks, subnets []netip.Prefix
	fromRules         bool // the node's files tell none, so the rules' own words are taken
}

// prefixes takes the node's word, and where it has none that of the rules.
func (j *judgement) prefixes(s sight) prefixes {
	p := prefixes{
		networks: flannel.Of(s.family, j.facts.Node.Networks.Value),
		subnets:  flannel.Of(s.family, j.facts.Node.Subnets.Value),
	}
	t := s.own
	if t == nil && len(s.bare) > 0 {
		t = &s.bare[0]
	}
	if t == nil {
		return p
	}
	if len(p.networks) == 0 && !j.familyOff(s.family) {
		p.networks, p.fromRules = t.Networks, len(t.Networks) > 0
	}
	if len(p.subnets) == 0 && len(p.networks) > 0 {
		p.subnets = t.Subnets
	}
	return p
}

// familyOff tells whether subnet.env, which flanneld writes for every family it serves, names the other family alone.
func (j *judgement) familyOff(f flannel.Family) bool {
	n := j.facts.Node.Networks
	return n.State == flannel.Known && fromSubnetEnv(n.Source) && len(flannel.Of(f, n.Value)) == 0
}
