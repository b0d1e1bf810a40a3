package flannel

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
)

// Trace is one generation's rules as they were recognised in one family of one backend.
type Trace struct {
	Backend    Backend
	Family     Family
	Generation Generation
	Options    Options
	Networks   []netip.Prefix // of which the rules speak; the ones that were given, where the rules tell none
	Subnets    []netip.Prefix
	Guessed    bool // no masquerading rule tells the generation: the newest of the dialect is assumed
}

// Infer tells from the rules of one backend which generations of Flannel wrote them, for each family: the one that keeps
// chains of its own first, then those whose rules lie in the base chains, of which several can be left behind.
//
// Chains and commented rules are Flannel's whatever networks they speak of. Rules without comment (before v0.16.2) count
// only where they are exactly those for the given networks and subnets: the masquerading rule that spares multicast, and
// at least one other of its set. Bare rules in FORWARD alone prove nothing, since people write the same two by hand.
func Infer(rs *Ruleset, networks, subnets []netip.Prefix) []Trace {
	if rs == nil {
		return nil
	}
	var out []Trace
	for _, f := range Families {
		ns, ss := Of(f, networks), Of(f, subnets)
		if t, ok := inferOwn(rs, ns, ss, f); ok {
			out = append(out, t)
		}
		if rs.Backend == Nftables {
			continue
		}
		if t, ok := inferCommented(rs, ns, ss, f); ok {
			out = append(out, t)
		}
		if t, ok := inferBare(rs, ns, ss, f); ok {
			out = append(out, t)
		}
	}
	return out
}

// inferOwn looks at the chains of Flannel's own. A chain without rules, or a mere jump, still tells the options.
func inferOwn(rs *Ruleset, networks, subnets []netip.Prefix, f Family) (Trace, bool) {
	masq, forward := rs.Chain(MasqChain(rs.Backend, f)), rs.Chain(ForwardChain(rs.Backend, f))
	o := Options{Masq: present(masq), Forward: present(forward)}
	if !o.Masq && !o.Forward {
		return Trace{}, false
	}
	rules := slices.Concat(rulesOf(masq), rulesOf(forward))
	o.RandomFully = randomFully(rules)
	t := Trace{Backend: rs.Backend, Family: f, Options: o}
	t.Networks, t.Subnets = orGiven(prefixesOf(rules), networks, subnets)
	t.Generation, t.Guessed = t.closest(rs, networks, subnets), len(rulesOf(masq)) == 0
	return t, true
}

func present(c *Chain) bool { return c != nil && c.Present }

func rulesOf(c *Chain) []Rule {
	if c == nil {
		return nil
	}
	rules := make([]Rule, len(c.Entries))
	for i, e := range c.Entries {
		rules[i] = e.Rule
	}
	return rules
}

// randomFully reads the option off the rules that masquerade: the way of most of them, and Flannel's default where there
// is none.
func randomFully(rules []Rule) bool {
	with, without := 0, 0
	for _, r := range rules {
		switch {
		case r.Target.Kind != TargetMasquerade:
		case r.Target.RandomFully:
			with++
		default:
			without++
		}
	}
	return with >= without
}

func orGiven(told told, networks, subnets []netip.Prefix) ([]netip.Prefix, []netip.Prefix) {
	if len(told.networks) == 0 {
		told.networks = networks
	}
	if len(told.subnets) == 0 {
		told.subnets = subnets
	}
	return told.networks, told.subnets
}

// closest is the generation that the masquerading chain fits best, for the given networks or for those that the rules
// themselves speak of; of equally good ones one that is whole, else the newest. Missing rules tell nothing more: half a
// chain of today is no old one.
func (t Trace) closest(rs *Ruleset, networks, subnets []netip.Prefix) Generation {
	candidates := []Generation{GenV0210, GenV0202, GenV0200}
	if t.Backend == Nftables {
		candidates = []Generation{GenV0250}
	}
	best, most := candidates[0], math.MinInt
	for _, g := range candidates {
		fits := max(t.fit(rs, g, t.Networks, t.Subnets), t.fit(rs, g, networks, subnets))
		if fits > most {
			best, most = g, fits
		}
	}
	return best
}

// fit weighs a generation: two points for each rule that it explains, two less for each that it does not, and one more
// where nothing is missing.
func (t Trace) fit(rs *Ruleset, g Generation, networks, subnets []netip.Prefix) int {
	n, whole := math.MinInt, 1
	for _, w := range Expected(networks, subnets, g, t.Options, t.Backend, t.Family) {
		n = max(n, 0)
		for _, line := range Compare(rs, w).Rules {
			switch line.Status {
			case RuleMissing:
				whole = 0
			case RuleOK, RuleVariant:
				n += 2
			default:
				n -= 2
			}
		}
	}
	return n + whole
}

// inferCommented looks for commented rules in the base chains.
func inferCommented(rs *Ruleset, networks, subnets []netip.Prefix, f Family) (Trace, bool) {
	masq := commented(rs.Chain(ChainID{rs.Backend, f, TableNat, ChainPostrouting}))
	forward := commented(rs.Chain(ChainID{rs.Backend, f, TableFilter, ChainForward}))
	if len(masq) == 0 && len(forward) == 0 {
		return Trace{}, false
	}
	t := Trace{Backend: rs.Backend, Family: f, Generation: GenV0162}
	t.Options = Options{Masq: len(masq) > 0, Forward: len(forward) > 0, RandomFully: randomFully(masq)}
	t.Networks, t.Subnets = orGiven(prefixesOf(slices.Concat(masq, forward)), networks, subnets)
	return t, true
}

func commented(c *Chain) []Rule {
	return slices.DeleteFunc(rulesOf(c), func(r Rule) bool {
		return !hasFlannelComment(r) || leadsTo(r, ChainMasq) || leadsTo(r, ChainFwd)
	})
}

// inferBare looks for the rules without comment of the given networks.
func inferBare(rs *Ruleset, networks, subnets []netip.Prefix, f Family) (Trace, bool) {
	all := Options{Masq: true, Forward: true, RandomFully: true}
	wanted := Expected(networks, subnets, GenV0110, all, rs.Backend, f)
	if len(wanted) == 0 || !wanted[0].Shared || wanted[0].ID.Table != TableNat {
		return Trace{}, false
	}
	masq := served(Compare(rs, wanted[0]))
	signs := 0
	for _, r := range masq {
		if spares(r, multicast(f)) {
			signs++
		}
	}
	if signs == 0 || len(masq) == signs {
		return Trace{}, false
	}
	t := Trace{Backend: rs.Backend, Family: f, Generation: GenV0110, Networks: networks, Subnets: subnets}
	t.Options = Options{Masq: true, RandomFully: randomFully(masq)}
	t.Options.Forward = len(wanted) > 1 && len(served(Compare(rs, wanted[1]))) > 0
	if !t.Options.RandomFully && f == IPv4 {
		t.Generation = GenV080
	}
	return t, true
}

// served lists the rules that are there for wanted ones.
func served(d ChainDiff) []Rule {
	var rules []Rule
	for _, line := range d.Rules {
		if line.Want > 0 && line.Found > 0 {
			rules = append(rules, line.Rule)
		}
	}
	return rules
}

// told is what rules say of networks and subnets.
type told struct{ networks, subnets []netip.Prefix }

// FromRules reads the pod networks and this node's subnet off Flannel's rules, for a node whose files are gone: from its
// own chains and commented rules in the base chains.
func FromRules(rs *Ruleset) (networks, subnets []netip.Prefix) {
	for _, t := range Infer(rs, nil, nil) {
		for _, p := range t.Networks {
			networks = appendNew(networks, p)
		}
		for _, p := range t.Subnets {
			subnets = appendNew(subnets, p)
		}
	}
	return networks, subnets
}

// prefixesOf tells networks and subnets by the shapes of the rules.
func prefixesOf(rules []Rule) told {
	networks := networksOf(rules)
	return told{networks, subnetsOf(rules, networks)}
}

// networksOf gives what is masqueraded on its way out, then what is accepted or spared within itself. The first shape is the
// surest and stands in the order in which flanneld was given the networks.
func networksOf(rules []Rule) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range rules {
		if src := r.endpoint(MatchSource); spares(r, multicast(IPv4)) || spares(r, multicast(IPv6)) {
			out = appendNew(out, src.Prefix)
		}
	}
	for _, r := range rules {
		src, dst := r.endpoint(MatchSource), r.endpoint(MatchDestination)
		if r.Opaque() || src.Not || dst.Not {
			continue
		}
		alone := src.Prefix.IsValid() != dst.Prefix.IsValid()
		within := src.Prefix.IsValid() && src.Prefix == dst.Prefix
		if r.Target.Kind == TargetAccept && alone || r.Target.Kind == TargetReturn && within {
			out = appendNew(out, cmp.Or(src.Prefix, dst.Prefix))
		}
	}
	return out
}

// subnetsOf gives what the exemptions pair with a network. A network itself is a subnet only where what comes from beyond
// it is spared on the way into it.
func subnetsOf(rules []Rule, networks []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range rules {
		src, dst := r.endpoint(MatchSource), r.endpoint(MatchDestination)
		if r.Target.Kind != TargetReturn || r.Opaque() || !src.Prefix.IsValid() || !dst.Prefix.IsValid() || dst.Not {
			continue
		}
		fromNetwork, toNetwork := slices.Contains(networks, src.Prefix), slices.Contains(networks, dst.Prefix)
		switch {
		case fromNetwork && !toNetwork, fromNetwork && src.Not && src.Prefix == dst.Prefix:
			out = appendNew(out, dst.Prefix)
		case toNetwork && !fromNetwork:
			out = appendNew(out, src.Prefix)
		}
	}
	return out
}

// spares tells whether a rule masquerades what leaves a network, but for multicast: the sign of Flannel.
func spares(r Rule, multicast netip.Prefix) bool {
	src, dst := r.endpoint(MatchSource), r.endpoint(MatchDestination)
	return r.Target.Kind == TargetMasquerade && !r.Opaque() && src.Prefix.IsValid() && !src.Not && dst.Not && dst.Prefix == multicast
}

// endpoint is the match of a rule on its source or destination, the zero Match if it has none.
func (r Rule) endpoint(kind MatchKind) Match {
	for _, m := range r.Matches {
		if m.Kind == kind {
			return m
		}
	}
	return Match{}
}

func appendNew(list []netip.Prefix, p netip.Prefix) []netip.Prefix {
	if slices.Contains(list, p) {
		return list
	}
	return append(list, p)
}
