package flannel

import (
	"net/netip"
	"slices"
)

// Wanted is a chain as Flannel should have it.
type Wanted struct {
	ID        ChainID
	Base      *BaseChain // for a native chain: where the kernel calls it
	Rules     []Rule
	Hook      Rule    // the jump that leads into the chain
	HookChain ChainID // where the jump stands; zero for native chains and for generations without chains of their own
	HookFirst bool    // v0.20.0–v0.21.2 put the jump in first place, later ones in last; either serves
	Shared    bool    // the chain is not Flannel's: Rules stand among those of others
}

// Expected gives the chains that flanneld of a generation keeps in a family, empty where it keeps none. Prefixes of the
// other family are skipped; of several subnets the first counts, as Flannel gives a node one per family.
//
// With several networks (v0.21.0–v0.22.3 with --use-multi-cluster-cidr) each kind of masquerading rule is written for every
// network in turn, the two kinds that exempt the local subnet network by network; forwarding rules are written for the
// network alone that holds the subnet.
func Expected(networks, subnets []netip.Prefix, g Generation, o Options, b Backend, f Family) []Wanted {
	networks, subnets = Of(f, networks), Of(f, subnets)
	if len(networks) == 0 || (b == Nftables) != (g == GenV0250) {
		return nil
	}
	w := writer{networks: networks, gen: g, family: f, random: o.RandomFully && g != GenV080}
	var out []Wanted
	if len(subnets) > 0 {
		w.subnet = subnets[0]
	}
	if o.Masq && w.subnet.IsValid() {
		out = append(out, w.place(MasqChain(b, f), ChainID{b, f, TableNat, ChainPostrouting}, CommentMasq, w.masq()))
	}
	if rules := w.forward(); o.Forward && len(rules) > 0 {
		out = append(out, w.place(ForwardChain(b, f), ChainID{b, f, TableFilter, ChainForward}, CommentForward, rules))
	}
	return out
}

// writer writes the rules of one generation and family.
type writer struct {
	networks []netip.Prefix
	subnet   netip.Prefix
	gen      Generation
	family   Family
	random   bool
}

// place puts the rules where the generation keeps them: its own chain, with a jump, or the base chain itself.
func (w writer) place(own, base ChainID, comment string, rules []Rule) Wanted {
	switch {
	case w.gen == GenV0250:
		return Wanted{ID: own, Base: nativeBase(own.Name), Rules: rules}
	case w.gen.OwnChains():
		hook := NewRule(Target{Kind: TargetJump, Chain: own.Name}, Match{Kind: MatchComment, Text: comment})
		return Wanted{ID: own, Rules: rules, Hook: hook, HookChain: base, HookFirst: w.gen != GenV0210}
	}
	return Wanted{ID: base, Rules: rules, Shared: true}
}

func nativeBase(name string) *BaseChain {
	if name == NativeMasq {
		return &BaseChain{Type: "nat", Hook: "postrouting", Priority: 100, Policy: "accept"}
	}
	return &BaseChain{Type: "filter", Hook: "forward", Priority: 0, Policy: "accept"}
}

// masq gives the rules that masquerade, in the order in which the generation writes them.
func (w writer) masq() []Rule {
	switch w.gen {
	case GenV0210:
		return slices.Concat(w.mark(), w.local(), w.each(w.toSubnet), w.each(w.outwards), w.each(w.inwards))
	case GenV0250:
		return slices.Concat(w.mark(), w.local(), w.each(w.fromElsewhere), w.each(w.outwards), w.each(w.inwards))
	case GenV0202:
		return slices.Concat(w.mark(), w.each(w.within), w.each(w.outwards), w.each(w.toSubnet), w.each(w.inwards))
	}
	return slices.Concat(w.each(w.within), w.each(w.outwards), w.each(w.toSubnet), w.each(w.inwards))
}

// mark leaves alone what kube-proxy will masquerade. The native rule compares the whole mark, the iptables rule one bit.
func (w writer) mark() []Rule {
	mask := uint32(KubeProxyMark)
	if w.gen == GenV0250 {
		mask = allOnes
	}
	return []Rule{w.rule(returns, Match{Kind: MatchMark, Value: KubeProxyMark, Mask: mask})}
}

// local exempts traffic between the local subnet and each network, both ways.
func (w writer) local() []Rule {
	var rules []Rule
	for _, n := range w.networks {
		rules = append(rules, w.rule(returns, from(w.subnet), to(n)), w.rule(returns, from(n), to(w.subnet)))
	}
	return rules
}

func (w writer) within(n netip.Prefix) Rule   { return w.rule(returns, from(n), to(n)) }
func (w writer) toSubnet(n netip.Prefix) Rule { return w.rule(returns, not(from(n)), to(w.subnet)) }
func (w writer) fromElsewhere(n netip.Prefix) Rule {
	return w.rule(returns, not(from(w.subnet)), to(n))
}

func (w writer) outwards(n netip.Prefix) Rule {
	return w.rule(w.masquerade(), from(n), not(to(multicast(w.family))))
}

func (w writer) inwards(n netip.Prefix) Rule { return w.rule(w.masquerade(), not(from(n)), to(n)) }

func (w writer) masquerade() Target { return Target{Kind: TargetMasquerade, RandomFully: w.random} }

// forward gives the rules that let forwarded traffic pass, none where the network is not known.
func (w writer) forward() []Rule {
	home := w.networks
	if len(home) > 1 {
		home = slices.DeleteFunc(slices.Clone(home), func(n netip.Prefix) bool { return !contains(n, w.subnet) })
	}
	if len(home) == 0 {
		return nil
	}
	return []Rule{w.forwardRule(from(home[0])), w.forwardRule(to(home[0]))}
}

func contains(network, subnet netip.Prefix) bool {
	return subnet.IsValid() && network.Bits() <= subnet.Bits() && network.Contains(subnet.Addr())
}

func (w writer) forwardRule(m Match) Rule {
	return w.commented(CommentForward, Target{Kind: TargetAccept}, m)
}

func (w writer) rule(t Target, ms ...Match) Rule { return w.commented(CommentMasq, t, ms...) }

func (w writer) commented(comment string, t Target, ms ...Match) Rule {
	if w.gen.Commented() {
		ms = append(ms, Match{Kind: MatchComment, Text: comment})
	}
	return NewRule(t, ms...)
}

func (w writer) each(rule func(netip.Prefix) Rule) []Rule {
	rules := make([]Rule, len(w.networks))
	for i, n := range w.networks {
		rules[i] = rule(n)
	}
	return rules
}

var returns = Target{Kind: TargetReturn}

func from(p netip.Prefix) Match { return Match{Kind: MatchSource, Prefix: p} }
func to(p netip.Prefix) Match   { return Match{Kind: MatchDestination, Prefix: p} }

func not(m Match) Match {
	m.Not = true
	return m
}

func multicast(f Family) netip.Prefix {
	if f == IPv6 {
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xff}), 8)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{224}), 4)
}
