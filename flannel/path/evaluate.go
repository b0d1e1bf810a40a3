package path

import (
	"maps"
	"net/netip"
	"slices"

	"flanwatch/flannel"
)

// Evaluator answers for one reading of a node. Making it sorts the chains; it may be asked any number of times, by one
// goroutine at a time.
type Evaluator struct {
	tables Tables
	facts  Facts
	index  index
	wanted wanted
}

// New makes an evaluator of what was read.
func New(t Tables, f Facts) *Evaluator { return &Evaluator{tables: t, facts: f, index: newIndex(t)} }

// wanted is what packets came to that was not read.
type wanted struct {
	chains map[flannel.ChainID]bool
	sets   map[SetID]bool
}

func (w *wanted) chain(id flannel.ChainID) {
	if w.chains == nil {
		w.chains = map[flannel.ChainID]bool{}
	}
	w.chains[id] = true
}

func (w *wanted) set(id SetID) {
	if w.sets == nil {
		w.sets = map[SetID]bool{}
	}
	w.sets[id] = true
}

// Wanted gives the chains and sets that packets came to so far and that Tables lacks. Whoever reads the kernel adds them and
// asks anew: of tens of thousands of chains, typical packets see some dozens.
func (e *Evaluator) Wanted() ([]flannel.ChainID, []SetID) {
	return slices.Collect(maps.Keys(e.wanted.chains)), slices.Collect(maps.Keys(e.wanted.sets))
}

// Paths gives the verdict for every path that the facts tell, family by family.
func (e *Evaluator) Paths() []Verdict {
	var out []Verdict
	for _, p := range e.facts.Packets() {
		out = append(out, e.Packet(p))
	}
	return out
}

// Packet follows one packet.
func (e *Evaluator) Packet(p Packet) Verdict {
	w := e.walker(p)
	end := w.run()
	v := w.verdict(end)
	if v.Kind == Unchanged {
		v.By = e.shield(p, w.trail, v)
	}
	for i := range v.Trail {
		v.Trail[i].at = ref{} // a verdict outlives the rules that it was made from
	}
	return v
}

// Explore follows every packet as far as Tables goes, passing by what is missing, so that Wanted tells what to read next. It
// gives no verdict: only one that nothing is missing for is sound.
func (e *Evaluator) Explore() {
	for _, p := range e.facts.Packets() {
		w := e.walker(p)
		w.exploring = true
		w.run()
	}
}

func (e *Evaluator) walker(p Packet) *walker {
	return &walker{Evaluator: e, packet: p, left: visits, known: map[visit]flow{}, steps: map[ref]bool{}}
}

// end is what became of a packet after all hooks.
type end struct {
	live  exit
	drops []ref
	local bool
	nats  []ref // rules that may have translated the source
}

// run takes the packet through the hooks.
func (w *walker) run() end {
	p := w.packet
	e := end{live: exit{reached: true, state: state{
		source: p.Source, destination: p.Destination, sourcePort: p.SourcePort, destinationPort: p.DestinationPort, hops: enough,
	}}}
	in, out := iface{name: p.In}, iface{name: p.Out}
	if p.In == "" {
		w.hook(&e, place{hook: output, out: out})
		local, out := w.reroute(e.live.state, out)
		e.local = local == yes
		w.hook(&e, place{hook: postrouting, out: out})
		if e.local { // it comes in again over the loopback device, and what was translated stays so
			w.bound = true
			w.hook(&e, place{hook: prerouting, in: out})
			w.deliver(&e, out)
		}
		return e
	}
	w.hook(&e, place{hook: prerouting, in: in})
	switch local, out := w.reroute(e.live.state, out); local {
	case yes:
		w.deliver(&e, in)
	case no:
		w.route(&e, in, out)
	default:
		there, here := e, e
		w.deliver(&here, in)
		w.route(&there, in, out)
		e = there
		e.live.add(here.live)
		e.drops = append(slices.Clone(there.drops), here.drops...)
	}
	return e
}

func (w *walker) deliver(e *end, in iface) {
	e.local = true
	w.hook(e, place{hook: input, in: in})
}

func (w *walker) route(e *end, in, out iface) {
	w.hopLimit(e)
	if in.name == out.name {
		// The kernel tells the sender of the shorter way by a packet of its own, which passes output as one of the same
		// connection: rules there may have changed its mark.
		e.live.state.connmark = bits{unknown: ^uint32(0)}
	}
	w.hook(e, place{hook: forward, in: in, out: out})
	in.unsure = true
	w.hook(e, place{hook: postrouting, in: in, out: out})
}

// reroute finds where the packet goes, as its destination may have been translated: to the node itself, or out of an
// interface.
func (w *walker) reroute(s state, out iface) (local truth, to iface) {
	switch {
	case !s.destination.IsValid():
		return may, iface{unknown: true}
	case w.facts.local(s.destination):
		return yes, iface{name: "lo"}
	case s.dnat.kind != natNone:
		out.name = w.facts.route(s.destination)
	}
	return no, out
}

// hopLimit drops a packet whose hop limit a rule has made too small to be forwarded.
func (w *walker) hopLimit(e *end) {
	if !e.live.reached || e.live.state.hops.short() == no {
		return
	}
	for _, s := range slices.Backward(w.trail) {
		if s.target == flannel.TargetTTL {
			e.drops = append(e.drops, s.at)
			break
		}
	}
	if e.live.state.hops.short() == yes {
		e.live.reached = false
	}
}

// hook takes the packet through the chains of one hook, turn by turn.
func (w *walker) hook(e *end, p place) {
	turns := w.index.turns[hookID{w.packet.Family, p.hook}]
	for i := 0; i < len(turns) && e.live.reached; i++ {
		w.place = p
		tracks := p.hook == prerouting || p.hook == output
		w.place.tracked = !tracks || turns[i].priority > trackingPriority
		if !turns[i].nat {
			w.filter(e, turns[i].chains)
			continue
		}
		first := i
		for i+1 < len(turns) && turns[i+1].nat {
			i++
		}
		w.translate(e, turns[first:i+1])
	}
}

// filter takes the packet through chains of one priority. Nothing tells their order: every one is tried.
func (w *walker) filter(e *end, chains []*flannel.Chain) {
	if len(chains) > mostOrdered {
		w.crowd(e, chains)
		return
	}
	var live exit
	permute(slices.Clone(chains), 0, func(order []*flannel.Chain) {
		at := e.live
		for _, c := range order {
			if !at.reached {
				break
			}
			at = w.base(e, c, at.state).pass
		}
		live.add(at)
	})
	e.live = live
}

// translate takes the packet through the chains that translate, of which the first rule that does so is the last. A packet
// that is not tracked does not see them.
func (w *walker) translate(e *end, turns []turn) {
	if w.bound || e.live.state.untracked == yes {
		return
	}
	var done exit
	if e.live.state.untracked == may {
		done.add(e.live)
	}
	for _, t := range turns {
		if e.live.reached {
			w.translateTurn(e, t.chains, &done)
		}
	}
	e.live.add(done)
}

// translateTurn takes the packet through chains of one priority, in every order. It adds what they translate to done and
// leaves e.live to packets that they do not.
func (w *walker) translateTurn(e *end, chains []*flannel.Chain, done *exit) {
	if len(chains) > mostOrdered {
		done.add(w.crowd(e, chains))
		return
	}
	var live exit
	permute(slices.Clone(chains), 0, func(order []*flannel.Chain) {
		at := e.live
		for _, c := range order {
			if !at.reached {
				break
			}
			b := w.base(e, c, at.state)
			w.translations(e, b, done)
			at = b.pass
		}
		live.add(at)
	})
	e.live = live
}

func (w *walker) translations(e *end, b passed, live *exit) {
	for _, t := range b.nat {
		live.add(t.exit)
		if w.place.source() && !slices.Contains(e.nats, t.by) {
			e.nats = append(e.nats, t.by)
		}
	}
}

// crowd takes the packet through so many chains of one priority that not every order can be tried. Each is entered with all
// that any of them may have made of the packet. It gives what they translate.
func (w *walker) crowd(e *end, chains []*flannel.Chain) (done exit) {
	at := e.live
	for before := (state{}); before != at.state; {
		before = at.state
		for _, c := range chains {
			at.add(w.base(e, c, at.state).pass)
		}
	}
	e.live = at
	for _, c := range chains {
		b := w.base(e, c, at.state)
		w.translations(e, b, &done)
		if !b.pass.reached {
			e.live = exit{}
		}
	}
	return done
}

// passed is what a base chain leaves of a packet.
type passed struct {
	pass exit
	nat  []translated
}

// base walks a base chain and applies its policy at the end.
func (w *walker) base(e *end, c *flannel.Chain, s state) passed {
	f := w.chain(c, s, ref{c, -1})
	drop := func(by ref) {
		e.drops = slices.DeleteFunc(e.drops, func(r ref) bool { return r == by })
		e.drops = append(e.drops, by)
	}
	if f.drop.reached {
		drop(f.drop.by)
	}
	out := passed{f.accept, f.nat}
	switch {
	case !f.next.reached:
	case c.Base.Policy == "drop":
		drop(ref{c, -1})
	default:
		out.pass.add(f.next)
	}
	return out
}

// mostOrdered is how many chains of one priority are tried in every order.
const mostOrdered = 4

func permute(list []*flannel.Chain, from int, do func([]*flannel.Chain)) {
	if from >= len(list)-1 {
		do(list)
		return
	}
	for i := from; i < len(list); i++ {
		list[from], list[i] = list[i], list[from]
		permute(list, from+1, do)
		list[from], list[i] = list[i], list[from]
	}
}

// verdict puts the end into a word.
func (w *walker) verdict(e end) Verdict {
	s := e.live.state
	v := Verdict{Packet: w.packet, Trail: w.trail, Local: e.local, Source: s.source, Destination: s.destination}
	switch {
	case !e.live.reached:
		v.Kind, v.Source, v.Destination = Dropped, netip.Addr{}, netip.Addr{}
	case len(w.tables.Unread) > 0:
		v.Kind, v.Unknown = Unknown, w.tables.Unread
	case len(e.drops) > 0, s.snat.kind == natMixed, s.dnat.kind == natMixed:
		v.Kind = May
	case s.snat.kind == natNone:
		v.Kind = Unchanged
	default:
		v.Kind = Masqueraded
	}
	deciders := e.drops
	if v.Kind == Masqueraded || v.Kind == May {
		deciders = append(slices.Clone(e.drops), e.nats...)
	}
	w.decide(&v, deciders)
	if v.Kind == May {
		v.Unknown = w.unknown
	}
	return v
}

// decide names the rule that decides: the last of those that may, as only it is sure to get the packet.
func (w *walker) decide(v *Verdict, deciders []ref) {
	if len(deciders) == 0 || v.Kind == Unchanged || v.Kind == Unknown {
		return
	}
	last := len(deciders) - 1
	by := w.by(deciders[last])
	v.By = &by
	if v.Kind == May {
		for _, r := range deciders[:last] {
			v.Others = append(v.Others, w.by(r))
		}
	}
}

// by gives a rule with its text.
func (w *walker) by(r ref) By {
	id := r.chain.ID
	b := By{Backend: id.Backend, Table: id.Table, Chain: id.Name, Position: r.index + 1}
	if r.index < 0 {
		b.Text, b.Owner = "policy", chainOwner(id)
		if r.chain.Base != nil {
			b.Text += " " + r.chain.Base.Policy
		}
		return b
	}
	rule := r.chain.Entries[r.index].Rule
	b.Text, b.Owner = rule.Text(id.Backend, id.Family), Owner(id, rule)
	return b
}

// mostSteps bounds what a trail keeps.
const mostSteps = 200

// note writes a rule that matched, or may have, into the trail.
func (w *walker) note(at ref, t truth, unknown []string) {
	for _, u := range unknown {
		w.name(u)
	}
	if w.steps[at] || len(w.trail) >= mostSteps {
		return
	}
	w.steps[at] = true
	entry := &at.chain.Entries[at.index]
	w.trail = append(w.trail, Step{
		By: w.by(at), Hook: string(w.place.hook), Sure: t == yes, Unknown: unknown, Counter: entry.Counter, Counted: entry.Counted,
		at: at, target: entry.Rule.Target.Kind,
	})
}

// mostShields bounds how many rules are tried to be left out.
const mostShields = 16

// shield finds the rule that keeps a packet from being translated, or else from being dropped: the first without which
// that would happen. It is nil where nothing would touch the packet anyway.
func (e *Evaluator) shield(p Packet, trail []Step, v Verdict) *By {
	var by *By
	tried := 0
	for _, s := range trail {
		if !s.Sure || s.target != flannel.TargetReturn && s.target != flannel.TargetAccept || tried == mostShields {
			continue
		}
		tried++
		w := e.walker(p)
		w.skip = &s.at
		switch got := w.verdict(w.run()); {
		case got.Kind == Masqueraded:
			return &s.By
		case got.Kind != v.Kind && by == nil:
			by = &s.By
		}
	}
	return by
}
