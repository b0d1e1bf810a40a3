package journal

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

// world is a node made by hand that tells observations as a watcher does: rulesets that it overwrites afterwards.
type world struct {
	rng    *rand.Rand
	now    flannel.Time
	rules  map[flannel.Backend]*flannel.Ruleset
	gen    uint32
	handle uint64
	sink   func(*incident.Observation)
}

const session = "4c5e5a9e-boot/4711"

var (
	networks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("2001:db8:42::/56")}
	subnets  = []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24"), netip.MustParsePrefix("2001:db8:42:3::/64")}
	noon     = time.Date(2026, 11, 30, 12, 0, 0, 123456000, time.UTC)

	// nasty is what names and command lines can hold.
	nasty = []string{"iptables", "x\x1b[31m", "\xff\xfe", `"quoted"`, "`", "zwölf<&>", "a b\nc", "", "\u202e", `\x41`}
)

func newWorld(seed uint64, sink func(*incident.Observation)) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 5)), rules: map[flannel.Backend]*flannel.Ruleset{}, gen: 4800, handle: 10, sink: sink}
	w.now = flannel.Time{Wall: noon, Boot: 6*time.Hour + 17*time.Microsecond, Session: session}
	for _, b := range flannel.Backends {
		w.rules[b] = &flannel.Ruleset{Backend: b, Revision: 1}
		for _, id := range flannel.Looked(b) {
			w.rules[b].Chains = append(w.rules[b].Chains, flannel.Chain{ID: id})
		}
	}
	return w
}

// fill writes Flannel's rules of both families anew.
func (w *world) fill(b flannel.Backend) {
	g := flannel.GenV0210
	if b == flannel.Nftables {
		g = flannel.GenV0250
	}
	rs := w.rules[b]
	for _, f := range flannel.Families {
		for _, want := range flannel.Expected(networks, subnets, g, flannel.Options{RandomFully: true, Forward: true, Masq: true}, b, f) {
			c := rs.Chain(want.ID)
			*c = flannel.Chain{ID: want.ID, Present: true, Base: want.Base}
			for _, r := range want.Rules {
				c.Entries = append(c.Entries, w.entry(b, r))
			}
			if !rs.HasTable(want.ID.TableID()) {
				rs.Tables = append(rs.Tables, want.ID.TableID())
			}
			if base := rs.Chain(want.HookChain); base != nil && b != flannel.Nftables {
				base.Present, base.Base = true, &flannel.BaseChain{Type: "nat", Policy: "accept", Priority: -100}
				base.Entries = slices.DeleteFunc(base.Entries, func(e flannel.Entry) bool { return e.Rule.Target.Chain == want.ID.Name })
				base.Entries = append(base.Entries, w.entry(b, want.Hook))
			}
		}
	}
	w.changed(b)
}

func (w *world) changed(b flannel.Backend) {
	w.gen++
	w.rules[b].Revision++
	for _, b := range []flannel.Backend{flannel.IptablesNft, flannel.Nftables} {
		w.rules[b].Generation = w.gen
	}
}

func (w *world) entry(b flannel.Backend, r flannel.Rule) flannel.Entry {
	h := fnv.New64a()
	h.Write([]byte(r.String()))
	w.handle++
	e := flannel.Entry{Rule: r, Body: h.Sum64(), Counted: b != flannel.Nftables}
	if b != flannel.IptablesLegacy {
		e.Handle = w.handle
	}
	return e
}

// tell hands over an observation and spoils what it points to, as a sender may.
func (w *world) tell(o incident.Observation) {
	o.Time = w.now
	w.sink(&o)
}

func (w *world) read(b flannel.Backend) {
	w.tell(incident.Observation{Rules: &incident.RulesRead{Backend: b, Ruleset: flannel.Know(*w.rules[b], "kernel", w.now)}})
}

func (w *world) word() string { return nasty[w.rng.IntN(len(nasty))] }

func (w *world) words() []string {
	out := make([]string, w.rng.IntN(4))
	for i := range out {
		out[i] = w.word()
	}
	return out
}

func (w *world) who() incident.Who {
	who := incident.Who{PID: w.rng.IntN(3) * 48213, Comm: w.word()}
	if w.rng.IntN(2) == 0 {
		o := &incident.Origin{Cmdline: incident.Fact[[]string]{Value: w.words(), Certainty: incident.Exact, How: w.word()}}
		for _, comm := range w.words() {
			o.Parents.Value = append(o.Parents.Value, incident.Ancestor{PID: 1, Comm: comm, Cmdline: w.words()})
		}
		o.Container.Value = diagnose.Container{ID: "c0ffee", Pod: w.word()}
		who.Origin = o
	}
	return who
}

// random does one thing that can happen.
func (w *world) random() {
	b := flannel.Backends[w.rng.IntN(3)]
	rs := w.rules[b]
	c := &rs.Chains[w.rng.IntN(len(rs.Chains))]
	w.now = w.now.Add(time.Duration(w.rng.Int64N(int64(2 * time.Second))))
	w.now.Wall = w.now.Wall.Add(time.Duration(w.rng.IntN(200) - 100)) // the clocks are read one after the other
	switch w.rng.IntN(27) {
	case 0, 1, 2, 3:
		w.count(b)
		w.read(b)
	case 4, 5, 6, 7:
		w.read(b)
	case 8:
		state := []flannel.ReadState{flannel.Unreadable, flannel.Absent}[w.rng.IntN(2)]
		w.tell(incident.Observation{Rules: &incident.RulesRead{Backend: b, Ruleset: flannel.Miss[flannel.Ruleset](state, w.word(), "netlink", w.now)}})
	case 9:
		c.Entries = nil
		w.changed(b)
		w.read(b)
	case 10, 11:
		w.fill(b)
		w.read(b)
	case 12:
		*c = flannel.Chain{ID: c.ID}
		w.changed(b)
	case 13, 14:
		w.commit(b, c)
	case 15:
		w.procs()
	case 16:
		w.node()
	case 17:
		links := flannel.Know([]diagnose.Link{{Name: "flannel.1", Type: "vxlan", Up: w.rng.IntN(2) == 0}, {Name: w.word()}}, "", w.now)
		w.tell(incident.Observation{Links: &links})
	case 18:
		if w.rng.IntN(2) == 0 {
			w.tell(incident.Observation{Action: w.action(c.ID)})
			return
		}
		w.tell(incident.Observation{Fault: &incident.Fault{Reader: []string{"nft", "namespace"}[w.rng.IntN(2)], Why: w.word()}})
	case 19:
		w.now.Wall = w.now.Wall.Add(-time.Hour)
	case 20:
		for i := range c.Entries {
			c.Entries[i].Counter = flannel.Counter{Packets: w.rng.Uint64()}
		}
		w.read(b)
	case 21, 22:
		w.table()
	case 23:
		w.probe()
	case 24:
		w.flows()
	case 25:
		w.around()
	case 26:
		w.remains()
	default:
		w.now = w.now.Add(time.Duration(w.rng.Int64N(int64(5 * time.Minute))))
		w.tell(incident.Observation{})
	}
}

func (w *world) count(b flannel.Backend) {
	for i := range w.rules[b].Chains {
		for j := range w.rules[b].Chains[i].Entries {
			e := &w.rules[b].Chains[i].Entries[j]
			if w.rng.IntN(3) == 0 {
				e.Counter.Packets += w.rng.Uint64N(1000)
				e.Counter.Bytes += w.rng.Uint64N(100000)
			}
		}
	}
}

func (w *world) commit(b flannel.Backend, c *flannel.Chain) {
	w.changed(b)
	ch := incident.ChainChange{Chain: c.ID, Created: w.rng.IntN(2) == 0, Deleted: w.rng.IntN(2) == 0, Rules: w.rng.IntN(4) - 1}
	for _, e := range c.Entries {
		ch.Removed = append(ch.Removed, incident.RuleRemoved{Handle: e.Handle, Body: e.Body, Counter: e.Counter, Counted: e.Counted})
	}
	ch.Added = []incident.RuleAdded{{Handle: w.rng.Uint64(), After: w.rng.Uint64N(30), Last: true, Body: math.MaxUint64}}
	w.tell(incident.Observation{Commit: &incident.Commit{
		Backend: b, Generation: w.gen, Who: w.who(), Lost: w.rng.IntN(4) == 0, Changes: []incident.ChainChange{ch},
		Tables: []incident.TableChange{{Table: c.ID.TableID(), Deleted: true}},
	}})
}

func (w *world) procs() {
	list := []diagnose.Process{}
	for i := range w.rng.IntN(3) {
		list = append(list, diagnose.Process{
			PID: 2210 + i, Kind: diagnose.ProcFlanneld, Comm: w.word(), Cmdline: w.words(), Started: w.now.Add(-time.Minute),
			Env: map[string]string{"FLANNELD_" + w.word(): w.word()},
		})
	}
	r := flannel.Know(list, "/proc", w.now)
	w.tell(incident.Observation{Procs: &r})
}

func (w *world) action(id flannel.ChainID) *incident.Action {
	results := []incident.ActionResult{incident.ActionVerified, incident.ActionRefused, incident.ActionStarted}
	return &incident.Action{
		Plan: "3f9a", Kind: "reapply", Title: w.word(), Receipt: w.word(), Result: results[w.rng.IntN(3)], Why: w.word(), User: w.word(),
		Chains: []flannel.ChainID{id}, Who: incident.Who{PID: 7, Comm: w.word()},
	}
}

func (w *world) node() {
	n := flannel.Node{Name: w.word(), Written: noon.Add(-time.Hour)}
	n.Networks = flannel.Know(networks, "/run/flannel/subnet.env", w.now)
	n.Subnets = flannel.Know(subnets, "/run/flannel/subnet.env", w.now)
	n.IPMasq = flannel.Know(true, "/run/flannel/subnet.env", w.now)
	n.ForwardRules = flannel.Miss[bool](flannel.Unreadable, w.word(), w.word(), w.now)
	n.Resync = flannel.Know(5*time.Second, "", w.now)
	n.MTU = flannel.Know(0, "", w.now)
	n.Others = []flannel.Source{{Name: w.word(), Networks: networks[:1], Subnets: []netip.Prefix{}, Written: noon}}
	n.Problems = []flannel.Problem{{File: w.word(), Line: 3, What: w.word()}}
	w.tell(incident.Observation{Node: &n})
}

func (w *world) table() {
	h := conntrack.Health{Source: conntrack.SourceNetlink, Count: conntrack.Counted(w.rng.Uint64N(500)), Max: conntrack.Counted(262144)}
	h.Found = conntrack.Counted(math.MaxUint32 - w.rng.Uint64N(9))
	if w.rng.IntN(4) == 0 {
		h.Drop = conntrack.Counted(3)
	}
	r := flannel.Know(h, "ctnetlink", w.now)
	w.tell(incident.Observation{Table: &r})
}

// probe tells of one attempt to connect, or of several.
func (w *world) probe() {
	p := incident.Probe{Target: "tcp://198.51.100.1:443", From: "10.244.3.7", Took: time.Duration(w.rng.Int64N(1e6))}
	switch w.rng.IntN(4) {
	case 0:
		p.Why = w.word()
	case 1:
		p.From = w.word()
	default:
		p.Count, p.Max, p.First, p.Last = 2+w.rng.IntN(9), p.Took+5000, time.Second, time.Duration(w.rng.Int64N(1e8))
	}
	w.tell(incident.Observation{Probe: &p})
}

func (w *world) flows() {
	a := netip.AddrFrom4([4]byte{10, 244, 3, byte(w.rng.IntN(9))})
	survey := conntrack.Survey{
		Took: time.Millisecond, Entries: 12, Kinds: map[conntrack.Kind]conntrack.Tally{conntrack.Bare: {Flows: 3}},
		Flows:      []conntrack.Sample{{Flow: conntrack.Flow{Orig: conntrack.Tuple{Src: a, SPort: 9}}, Kind: conntrack.Bare, Seen: w.now}},
		Sources:    []conntrack.Talker{{Addr: a, Pod: w.word(), Entries: 3}},
		Masquerade: map[flannel.Family]bool{flannel.IPv4: true, flannel.IPv6: false},
	}
	r := flannel.Know(survey, "ctnetlink", w.now)
	w.tell(incident.Observation{Flows: &r})
}

func (w *world) around() {
	s := diagnose.Surroundings{Settings: []diagnose.Setting{{Name: "net.ipv4.ip_forward", Value: flannel.Know(w.word(), "", w.now), Changed: w.now}}}
	s.Routing = flannel.Know(diagnose.Routing{
		Links:  []diagnose.Interface{{Name: w.word(), Type: "vxlan", Addresses: networks, Port: 8472, Offload: flannel.Absent}},
		Pods:   []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 3, 5})},
		Peers:  []diagnose.Peer{{Link: "flannel.1", Node: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Route: true}},
		Remote: subnets, Holes: []diagnose.Route{{To: subnets[0]}},
	}, "rtnetlink", w.now)
	s.Signs = flannel.Know([]diagnose.Sign{{Owner: "kubelet", What: w.word(), Chain: flannel.MasqChain(flannel.IptablesNft, flannel.IPv6)}}, "", w.now)
	s.Lock = flannel.Know(diagnose.Lock{PID: 7, Comm: w.word(), Since: w.now}, "", w.now)
	s.Counters = flannel.Know([]diagnose.Counter{{Name: "UdpInCsumErrors", Total: w.rng.Uint64(), Rose: 3, Over: time.Second}}, "", w.now)
	s.Tools = flannel.Know(map[string]diagnose.Tool{"nft": {Path: w.word(), Version: w.word()}, "ip": {}}, "", w.now)
	w.tell(incident.Observation{Around: &s})
}

func (w *world) remains() {
	r := flannel.Know(diagnose.Remains{
		Files:    []diagnose.File{{Path: w.word(), Written: noon}},
		Saved:    []diagnose.SavedRules{{Path: w.word(), Lines: []int{1, 7}, First: w.word()}},
		Configs:  []diagnose.CNIConfig{{Path: w.word(), Types: w.words()}},
		Pools:    []diagnose.Pool{{Path: w.word(), Reserved: 7, Told: true, Stale: w.words()}},
		Ports:    []diagnose.HostPort{{Port: 443, Pod: w.word()}},
		Boot:     []diagnose.BootSetting{{Name: "net.ipv4.ip_forward", Value: "0", Path: w.word(), Line: 3}},
		Failures: w.words(),
	}, "/", w.now)
	w.tell(incident.Observation{Remains: &r})
}

// cloned copies an observation with what its sender will overwrite.
func cloned(o *incident.Observation) incident.Observation {
	c := *o
	if o.Rules != nil {
		r := *o.Rules
		r.Ruleset.Value = o.Rules.Ruleset.Value.Clone()
		c.Rules = &r
	}
	if o.Table != nil {
		r := *o.Table
		c.Table = &r
	}
	if o.Probe != nil {
		p := *o.Probe
		c.Probe = &p
	}
	return c
}

// sameAll compares every field, those of other packages among them. Moments are compared by what they say.
var sameAll = cmp.Options{
	cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) }),
	cmp.Comparer(func(a, b flannel.Rule) bool { return sameRule(&a, &b) }), // Rule.Equal refuses opaque rules
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }),
	cmp.Comparer(func(a, b float32) bool { return a == b || a != a && b != b }),
	cmp.Exporter(func(reflect.Type) bool { return true }),
}

// written encodes a story and gives the stream, its journal and the state it led to.
func written(t testing.TB, seed uint64, steps int) (seen []incident.Observation, text []byte, view *incident.View) {
	t.Helper()
	s := incident.NewState()
	e := NewEncoder(Header{Version: "v1", Node: "worker-3", BootID: "4c5e5a9e-boot", Session: session})
	var err error
	w := newWorld(seed, func(o *incident.Observation) {
		seen = append(seen, cloned(o))
		s.Apply(o)
		if text, _, err = e.Append(text, o); err != nil {
			t.Fatal(err)
		}
	})
	if text, err = e.Begin(text, w.now, nil); err != nil {
		t.Fatal(err)
	}
	w.node()
	w.procs()
	w.fill(flannel.Backends[seed%3])
	for _, b := range flannel.Backends {
		w.read(b)
	}
	for range steps {
		w.random()
	}
	return seen, text, s.View(w.now)
}

func describe(o *incident.Observation) string {
	switch {
	case o.Rules != nil:
		return fmt.Sprintf("%s of %s", o.Rules.Ruleset.State, o.Rules.Backend)
	case o.Commit != nil:
		return "commit"
	}
	return "fact"
}
