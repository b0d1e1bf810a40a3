package path

import (
	"fmt"
	"slices"

	"flanwatch/flannel"
)

// ref names a rule that was looked at. An index of -1 is the policy of the chain.
type ref struct {
	chain *flannel.Chain
	index int
}

// exit is one way out of a chain, if the packet may take it, and the last rule that leads there.
type exit struct {
	reached bool
	state   state
	by      ref
}

func (e *exit) add(f exit) {
	switch {
	case !f.reached:
	case !e.reached:
		*e = f
	default:
		e.state, e.by = e.state.join(f.state), f.by
	}
}

// translation is what a rule makes of one end of a connection.
type translation struct {
	nat
	changesPort bool
	port        uint16
}

type translated struct {
	translation
	exit
}

// flow is everything that can become of a packet in a chain.
type flow struct {
	next   exit // the end of the chain, or RETURN
	accept exit
	drop   exit
	nat    []translated
}

// most is how many translations are told apart.
const most = 8

func (f *flow) translate(t translated) {
	for i := range f.nat {
		if f.nat[i].translation == t.translation {
			f.nat[i].add(t.exit)
			return
		}
	}
	if len(f.nat) >= most {
		f.nat[0].translation = translation{nat: nat{kind: natMixed}}
		f.nat[0].add(t.exit)
		return
	}
	f.nat = append(f.nat, t)
}

// addEnds takes over all ways out but the end of the chain.
func (f *flow) addEnds(g flow) {
	f.accept.add(g.accept)
	f.drop.add(g.drop)
	for _, t := range g.nat {
		f.translate(t)
	}
}

// Limits of a walk. The kernel allows 16 jumps into each other in nf_tables and no circle; a recording can hold anything.
const (
	deepest = 64
	visits  = 4_000_000 // rules looked at for one packet
)

// walker follows one packet.
type walker struct {
	*Evaluator
	packet Packet
	place  place
	bound  bool // the connection's translation is settled
	skip   *ref // a rule that is taken to be absent

	exploring bool // what is missing is passed by
	left      int  // visits
	inside    []*flannel.Chain
	known     map[visit]flow
	trail     []Step
	steps     map[ref]bool
	unknown   []string
}

// visit is a walk through a chain, of which the result depends on nothing else.
type visit struct {
	chain *flannel.Chain
	place place
	state state
}

// chain walks a chain from its first rule.
func (w *walker) chain(c *flannel.Chain, s state, by ref) flow {
	key := visit{c, w.place, s}
	if f, ok := w.known[key]; ok {
		return f
	}
	switch {
	case slices.Contains(w.inside, c):
		return w.anything(c, s, by, "jumps in a circle through "+c.ID.Name)
	case len(w.inside) >= deepest:
		return w.anything(c, s, by, fmt.Sprintf("jumps more than %d deep", deepest))
	}
	w.inside = append(w.inside, c)
	f := w.rules(c, s)
	w.inside = w.inside[:len(w.inside)-1]
	w.known[key] = f
	return f
}

func (w *walker) rules(c *flannel.Chain, s state) (out flow) {
	v := w.view(c, &s)
	for i := range c.Entries {
		r := c.Entries[i].Rule
		at := ref{c, i}
		if w.left--; w.left < 0 {
			out.addAll(w.anything(c, s, at, "more rules than can be followed"))
			return out
		}
		t, unknown := v.rule(r)
		if t == no || w.skip != nil && *w.skip == at {
			continue
		}
		w.note(at, t, unknown)
		if slices.ContainsFunc(r.Matches, flannel.Match.Acts) {
			s = s.join(s.blurred())
		}
		next := w.apply(r.Target, s, at, &out)
		if t == yes {
			if !next.reached {
				return out
			}
			s = next.state
		} else if next.reached {
			s = s.join(next.state)
		}
	}
	out.next.add(exit{true, s, ref{c, -1}})
	return out
}

// view is what the conditions of a chain's rules are about.
func (w *walker) view(c *flannel.Chain, s *state) view {
	return view{
		state: s, place: w.place, packet: w.packet, facts: &w.facts, tables: &w.tables, table: c.ID.TableID(), wanted: &w.wanted,
	}
}

func (f *flow) addAll(g flow) {
	f.addEnds(g)
	f.next.add(g.next)
}

// apply does what a rule does that matched. It adds the ways out of the chain and gives the state for the next rule.
func (w *walker) apply(t flannel.Target, s state, at ref, out *flow) exit {
	here := exit{true, s, at}
	switch t.Kind {
	case flannel.TargetNone, flannel.TargetPass:
		return here
	case flannel.TargetAccept:
		out.accept.add(here)
		return exit{}
	case flannel.TargetDrop, flannel.TargetReject:
		out.drop.add(here)
		return exit{}
	case flannel.TargetReturn:
		out.next.add(here)
		return exit{}
	case flannel.TargetJump, flannel.TargetGoto:
		return w.jump(t, s, at, out)
	case flannel.TargetMap:
		return w.mapped(t, s, at, out)
	case flannel.TargetMasquerade, flannel.TargetSNAT, flannel.TargetDNAT, flannel.TargetRedirect:
		n := translationOf(t)
		out.translate(translated{n, exit{true, s.translated(n, w.place, w.facts, w.packet.Family), at}})
		return exit{}
	case flannel.TargetMark, flannel.TargetConnmark, flannel.TargetNotrack, flannel.TargetTTL:
		here.state = w.change(t, s)
		return here
	}
	g := w.anything(at.chain, s, at, t.Text)
	out.addEnds(g)
	return g.next
}

// jump goes through another chain. Behind a goto the packet does not come back to this one.
func (w *walker) jump(t flannel.Target, s state, at ref, out *flow) exit {
	id := at.chain.ID
	id.Name = t.Chain
	var g flow
	if c := w.index.chains[id]; c != nil {
		g = w.chain(c, s, at)
	} else if w.wanted.chain(id); w.exploring {
		return exit{true, s, at}
	} else {
		g = w.anything(at.chain, s, at, "chain "+t.Chain+" was not read")
	}
	out.addEnds(g)
	if t.Kind == flannel.TargetGoto {
		out.next.add(g.next)
		return exit{}
	}
	return g.next
}

// anything is the flow of what is not understood.
func (w *walker) anything(c *flannel.Chain, s state, by ref, why string) flow {
	w.name(why)
	x := exit{true, s.blurred(), by}
	return flow{next: x, accept: x, drop: x, nat: w.anyTranslation(x)}
}

func (w *walker) anyTranslation(x exit) []translated {
	n := translation{nat: nat{kind: natMixed}}
	x.state = x.state.translated(n, w.place, w.facts, w.packet.Family)
	return []translated{{n, x}}
}

// name keeps what was not understood.
func (w *walker) name(what string) {
	if !slices.Contains(w.unknown, what) && len(w.unknown) < mostUnknown {
		w.unknown = append(w.unknown, what)
	}
}

const mostUnknown = 20

func translationOf(t flannel.Target) translation {
	n := translation{nat: nat{kind: natMasquerade}}
	if t.Kind == flannel.TargetRedirect {
		n.kind = natLocal
	}
	for o := range t.Options() {
		switch o.Name {
		case "--to-source", "--to-destination":
			to := flannel.ParseTranslation(o.Value)
			n.kind, n.from, n.to = natTo, to.From, to.To
			if !to.From.IsValid() {
				n.kind = natNone // ports alone
			}
			n.ports(to)
		case "--to-ports":
			n.ports(flannel.ParseTranslation(":" + o.Value))
		}
	}
	return n
}

func (n *translation) ports(t flannel.Translation) {
	n.changesPort = t.FromPort != 0
	if t.FromPort == t.ToPort {
		n.port = t.FromPort
	}
}

// change does what targets do that leave the packet on its way.
func (w *walker) change(t flannel.Target, s state) state {
	switch t.Kind {
	case flannel.TargetMark:
		for o := range t.Options() {
			m := flannel.ParseMasked(o.Value)
			s.mark = s.mark.set(m.Mask, m.Value)
		}
	case flannel.TargetConnmark:
		return w.connmark(t, s)
	case flannel.TargetNotrack:
		if !w.place.tracked {
			s.untracked = yes
		}
	case flannel.TargetTTL:
		s.hops = hopsAfter(t, s.hops)
	}
	return s
}

func (w *walker) connmark(t flannel.Target, s state) state {
	if !w.place.tracked || s.untracked == yes {
		return s
	}
	all := flannel.Masked{Mask: ^uint32(0)}
	packet, connection, set := all.Mask, all.Mask, all
	order := ""
	for o := range t.Options() {
		switch m := flannel.ParseMasked(o.Value); o.Name {
		case "--nfmask":
			packet = m.Value
		case "--ctmask":
			connection = m.Value
		case "--set-xmark":
			set, order = m, o.Name
		default:
			order = o.Name
		}
	}
	before := s
	switch order {
	case "--set-xmark":
		s.connmark = s.connmark.set(set.Mask, set.Value)
	case "--save-mark":
		s.connmark = s.connmark.with(connection, s.mark.and(packet))
	case "--restore-mark":
		s.mark = s.mark.with(packet, s.connmark.and(connection))
	}
	if s.untracked == may {
		return s.join(before)
	}
	return s
}

// hopsAfter takes what is neither set nor small for enough: packets start with 64 hops or more.
func hopsAfter(t flannel.Target, h hops) hops {
	for o := range t.Options() {
		m := flannel.ParseMasked(o.Value)
		switch o.Name {
		case "--ttl-set", "--hl-set":
			return hops(m.Value)
		case "--ttl-dec", "--hl-dec":
			switch {
			case h >= 0:
				h = max(0, h-hops(m.Value))
			case m.Value > 32:
				h = tooMixed
			}
		case "--ttl-inc", "--hl-inc":
			if h >= 0 {
				h = min(255, h+hops(m.Value))
			}
		}
	}
	return h
}
