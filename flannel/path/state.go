package path

import (
	"net/netip"

	"flanwatch/flannel"
)

// truth is whether a condition holds.
type truth uint8

const (
	no truth = iota
	may
	yes
)

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

// not turns a condition round if it is negated.
func (t truth) not(negated bool) truth {
	if negated {
		return yes - t
	}
	return t
}

// bits is a mark of which some bits may be unknown; those are 0 in value.
type bits struct{ value, unknown uint32 }

// set does what the targets MARK and CONNMARK do: it clears the bits of the mask and flips those of the value.
func (b bits) set(mask, value uint32) bits { return b.with(mask, bits{value: value}) }

func (b bits) with(mask uint32, x bits) bits {
	unknown := b.unknown&^mask | x.unknown
	return bits{(b.value&^mask ^ x.value) &^ unknown, unknown}
}

func (b bits) and(mask uint32) bits { return bits{b.value & mask, b.unknown & mask} }

func (b bits) equals(mask, value uint32) truth {
	switch {
	case value&^mask != 0, (b.value^value)&mask&^b.unknown != 0:
		return no
	case b.unknown&mask != 0:
		return may
	}
	return yes
}

func (b bits) join(c bits) bits {
	unknown := b.unknown | c.unknown | (b.value ^ c.value)
	return bits{b.value &^ unknown, unknown}
}

// natKind is what became of one end of the connection.
type natKind uint8

const (
	natNone natKind = iota
	natMasquerade
	natTo    // addresses stand in nat
	natLocal // REDIRECT
	natMixed // nobody can tell
)

// nat is a translation of one end of a connection.
type nat struct {
	kind     natKind
	from, to netip.Addr
	changed  truth // the connection counts as translated, which it does not where that leads to what it had
}

func (n nat) join(m nat) nat {
	if n.kind != m.kind || n.from != m.from || n.to != m.to {
		return nat{kind: natMixed, changed: may}
	}
	n.changed = joinTruth(n.changed, m.changed)
	return n
}

// hops is what is known of the hop limit.
type hops int16

const (
	enough   hops = -1
	tooMixed hops = -2
)

func (h hops) join(i hops) hops {
	switch {
	case h == i:
		return h
	case h.short() == no && i.short() == no:
		return enough
	}
	return tooMixed
}

// short tells whether the next router, which this node is before the decision where to forward, discards the packet.
func (h hops) short() truth {
	switch {
	case h == tooMixed:
		return may
	case h == enough:
		return no
	}
	return truthOf(h <= 1)
}

// state is what is known of the packet at a point of its way. It is comparable: a chain walked twice with the same state
// comes to the same.
type state struct {
	source, destination         netip.Addr // zero where not known
	sourcePort, destinationPort uint16     // 0 where not known
	mark, connmark              bits
	untracked                   truth
	snat, dnat                  nat
	hops                        hops
}

// join is what is known where either of two states may be.
func (s state) join(t state) state {
	if s == t {
		return s
	}
	return state{
		source:          same(s.source, t.source),
		destination:     same(s.destination, t.destination),
		sourcePort:      same(s.sourcePort, t.sourcePort),
		destinationPort: same(s.destinationPort, t.destinationPort),
		mark:            s.mark.join(t.mark),
		connmark:        s.connmark.join(t.connmark),
		untracked:       joinTruth(s.untracked, t.untracked),
		snat:            s.snat.join(t.snat),
		dnat:            s.dnat.join(t.dnat),
		hops:            s.hops.join(t.hops),
	}
}

func same[T comparable](a, b T) T {
	if a != b {
		var none T
		return none
	}
	return a
}

func joinTruth(a, b truth) truth {
	if a != b {
		return may
	}
	return a
}

// blurred is the state behind something that nobody understands, which may have changed what a rule can change.
func (s state) blurred() state {
	all := bits{unknown: ^uint32(0)}
	s.mark, s.connmark = all, all
	s.untracked = joinTruth(s.untracked, may)
	s.hops = tooMixed
	return s
}

// translated is the state behind a rule that translates.
func (s state) translated(n translation, p place, f Facts, family flannel.Family) state {
	before := s
	if p.source() {
		s.snat, s.source, s.sourcePort = n.nat, n.address(s.source, p, f, family), 0
		s.snat.changed = may // another port may have been needed
		if differ(before.source, s.source) == yes {
			s.snat.changed = yes
		}
		return s
	}
	s.dnat, s.destination = n.nat, n.address(s.destination, p, f, family)
	s.dnat.changed = differ(before.destination, s.destination)
	if n.changesPort {
		s.destinationPort = n.port
		s.dnat.changed = max(s.dnat.changed, differ(before.destinationPort, s.destinationPort))
	}
	return s
}

// differ compares two values, of which the zero value is not known.
func differ[T comparable](a, b T) truth {
	var unknown T
	if a == unknown || b == unknown {
		return may
	}
	return truthOf(a != b)
}

// address is the one that stands in place of the packet's own, zero where that cannot be told.
func (n translation) address(own netip.Addr, p place, f Facts, family flannel.Family) netip.Addr {
	switch n.kind {
	case natNone:
		return own
	case natTo:
		if n.from == n.to {
			return n.from
		}
	case natMasquerade:
		a, _ := f.address(family, p.out.name)
		return a
	case natLocal:
		a, _ := f.address(family, p.in.name)
		return a
	}
	return netip.Addr{}
}
