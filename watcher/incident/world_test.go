package incident

import (
	"hash/fnv"
	"net/netip"
	"slices"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// world is a node made by hand: rulesets that change, a clock, and the state that watches them.
type world struct {
	t      *testing.T
	s      *State
	now    flannel.Time
	rules  map[flannel.Backend]*flannel.Ruleset
	gen    uint32
	handle uint64
	last   *Commit // announcement of the last change
}

const session = "boot/1"

var (
	networks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	subnets  = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	options  = flannel.Options{RandomFully: true, Forward: true, Masq: true}

	masq   = flannel.MasqChain(flannel.IptablesNft, flannel.IPv4)
	fwd    = flannel.ForwardChain(flannel.IptablesNft, flannel.IPv4)
	native = flannel.MasqChain(flannel.Nftables, flannel.IPv4)
	legacy = flannel.MasqChain(flannel.IptablesLegacy, flannel.IPv4)
)

// newWorld is a healthy node in one backend, watched for no time at all.
func newWorld(t *testing.T, b flannel.Backend) *world {
	w := &world{t: t, s: NewState(), rules: map[flannel.Backend]*flannel.Ruleset{}, gen: 4800, handle: 10}
	w.now = flannel.Time{Wall: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Boot: 6 * time.Hour, Session: session}
	for _, each := range flannel.Backends {
		w.rules[each] = &flannel.Ruleset{Backend: each, Generation: w.gen, Revision: 1}
		for _, id := range flannel.Looked(each) {
			w.rules[each].Chains = append(w.rules[each].Chains, flannel.Chain{ID: id})
		}
	}
	w.fill(b)
	n := flannel.Node{Networks: flannel.Know(networks, "/run/flannel/subnet.env", w.now)}
	n.Subnets = flannel.Know(subnets, "/run/flannel/subnet.env", w.now)
	n.IPMasq = flannel.Know(true, "/run/flannel/subnet.env", w.now)
	w.s.Apply(&Observation{Time: w.now, Node: &n})
	w.procs(w.flanneld(time.Hour))
	for _, each := range flannel.Backends {
		w.read(each)
	}
	return w
}

func (w *world) flanneld(age time.Duration) diagnose.Process {
	return diagnose.Process{PID: 2210, Kind: diagnose.ProcFlanneld, Comm: "flanneld", Started: w.now.Add(-age)}
}

func (w *world) procs(list ...diagnose.Process) {
	r := flannel.Know(list, "/proc", w.now)
	w.s.Apply(&Observation{Time: w.now, Procs: &r})
}

// wait lets time pass.
func (w *world) wait(d time.Duration) *world {
	w.now = w.now.Add(d)
	return w
}

// read hands a backend's ruleset to the state.
func (w *world) read(b flannel.Backend) *world {
	w.s.Apply(&Observation{Time: w.now, Rules: &RulesRead{b, flannel.Know(*w.rules[b], "kernel", w.now)}})
	return w
}

func (w *world) fail(b flannel.Backend) *world {
	r := flannel.Miss[flannel.Ruleset](flannel.Unreadable, "no buffer space", "netlink", w.now)
	w.s.Apply(&Observation{Time: w.now, Rules: &RulesRead{b, r}})
	return w
}

func (w *world) view() *View { return w.s.View(w.now) }

func (w *world) chain(id flannel.ChainID) ChainView {
	w.t.Helper()
	for _, c := range w.view().Chains {
		if c.ID == id {
			return c
		}
	}
	w.t.Fatalf("%s is not shown", id)
	return ChainView{}
}

// count adds to the counters of every rule of a chain.
func (w *world) count(id flannel.ChainID, packets uint64) *world {
	c := w.rules[id.Backend].Chain(id)
	for i := range c.Entries {
		c.Entries[i].Counter.Packets += packets
		c.Entries[i].Counter.Bytes += 100 * packets
	}
	return w
}

// change changes rulesets as one commit and keeps its announcement.
func (w *world) change(do func()) *world {
	was := map[flannel.Backend]flannel.Ruleset{}
	for b, rs := range w.rules {
		was[b] = rs.Clone()
	}
	do()
	w.gen++
	w.last = &Commit{Backend: flannel.IptablesNft, Generation: w.gen, Who: Who{PID: 48213, Comm: "iptables"}}
	for _, b := range flannel.Backends {
		rs := w.rules[b]
		rs.Revision++
		if b == flannel.IptablesLegacy {
			continue
		}
		rs.Generation = w.gen
		old := was[b]
		w.announceDiff(&old, rs)
	}
	return w
}

func (w *world) announceDiff(was, is *flannel.Ruleset) {
	for _, id := range was.Tables {
		if !is.HasTable(id) {
			w.last.Tables = append(w.last.Tables, TableChange{Table: id, Deleted: true})
		}
	}
	for _, id := range is.Tables {
		if !was.HasTable(id) {
			w.last.Tables = append(w.last.Tables, TableChange{Table: id, Created: true})
		}
	}
	for i := range is.Chains {
		a, b := &was.Chains[i], &is.Chains[i]
		ch := ChainChange{Chain: b.ID, Rules: len(b.Entries), Created: !a.Present && b.Present, Deleted: a.Present && !b.Present}
		for _, e := range a.Entries {
			if !holds(b, e.Handle) {
				ch.Removed = append(ch.Removed, RuleRemoved{e.Handle, e.Body, e.Counter, e.Counted})
			}
		}
		for j, e := range b.Entries {
			if holds(a, e.Handle) {
				continue
			}
			add := RuleAdded{Handle: e.Handle, Last: true, Body: e.Body}
			if last := len(b.Entries) - 1; j > 0 && j < last { // as the kernel tells it
				add.After = b.Entries[j-1].Handle
			} else if j == 0 && last > 0 && holds(a, b.Entries[last].Handle) {
				add.Last = false
			}
			ch.Added = append(ch.Added, add)
		}
		if ch.Created || ch.Deleted || len(ch.Removed)+len(ch.Added) > 0 {
			w.last.Changes = append(w.last.Changes, ch)
		}
	}
}

func holds(c *flannel.Chain, handle uint64) bool {
	return slices.ContainsFunc(c.Entries, func(e flannel.Entry) bool { return e.Handle == handle })
}

// announce hands the announcement of the last change to the state.
func (w *world) announce(comm string) *world {
	w.last.Who.Comm = comm
	w.s.Apply(&Observation{Time: w.now, Commit: w.last})
	return w
}

func (w *world) flush(id flannel.ChainID) *world {
	return w.change(func() { w.rules[id.Backend].Chain(id).Entries = nil })
}

func (w *world) refill(b flannel.Backend) *world { return w.change(func() { w.fill(b) }) }

// fill writes Flannel's rules anew, as its restore does.
func (w *world) fill(b flannel.Backend) {
	g := flannel.GenV0210
	if b == flannel.Nftables {
		g = flannel.GenV0250
	}
	for _, want := range flannel.Expected(networks, subnets, g, options, b, flannel.IPv4) {
		rs := w.rules[b]
		c := rs.Chain(want.ID)
		*c = flannel.Chain{ID: want.ID, Present: true, Base: want.Base}
		for _, r := range want.Rules {
			c.Entries = append(c.Entries, w.entry(b, r))
		}
		if !rs.HasTable(want.ID.TableID()) {
			rs.Tables = append(rs.Tables, want.ID.TableID())
		}
		if b == flannel.Nftables {
			continue
		}
		base := rs.Chain(want.HookChain)
		base.Present, base.Base = true, &flannel.BaseChain{Policy: "accept"}
		base.Entries = slices.DeleteFunc(base.Entries, func(e flannel.Entry) bool { return e.Rule.Target.Chain == want.ID.Name })
		base.Entries = append(base.Entries, w.entry(b, want.Hook))
	}
}

func (w *world) entry(b flannel.Backend, r flannel.Rule) flannel.Entry {
	h := fnv.New64a()
	h.Write([]byte(r.String()))
	e := flannel.Entry{Rule: r, Body: h.Sum64(), Counted: b != flannel.Nftables}
	if b != flannel.IptablesLegacy {
		w.handle++
		e.Handle = w.handle
	}
	return e
}

// events lists the kinds of events so far.
func (w *world) events() []EventKind {
	var out []EventKind
	for _, e := range w.view().Events {
		out = append(out, e.Kind)
	}
	return out
}

func (w *world) wantEvents(want ...EventKind) {
	w.t.Helper()
	if got := w.events(); !slices.Equal(got, want) {
		w.t.Errorf("events %q, want %q", got, want)
	}
}
