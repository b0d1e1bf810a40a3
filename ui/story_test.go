package ui

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

// The story that the pictures tell: at 12:04:27.118 someone ran iptables -t nat -F FLANNEL-POSTRTG on worker-3.
var (
	noon     = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	now      = noon.Add(4*time.Minute + 31*time.Second + 400*time.Millisecond)
	flushed  = noon.Add(4*time.Minute + 27*time.Second + 118*time.Millisecond)
	started  = noon.Add(-6 * time.Minute)
	networks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("2001:db8:42::/56")}
	subnets  = []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24"), netip.MustParsePrefix("2001:db8:42:3::/64")}
)

func at(t time.Time) flannel.Time {
	return flannel.Time{Wall: t, Boot: t.Sub(started) + time.Hour, Session: "s"}
}

// story builds a view.
type story struct {
	incident.View
	rng *rand.Rand
}

func newStory() *story {
	s := &story{rng: rand.New(rand.NewPCG(1, 2))}
	s.Now, s.Started = at(now), at(started)
	s.Bucket = int64(now.Sub(started) / incident.Step)
	s.Node = flannel.Node{
		Name:     "worker-3",
		Networks: flannel.Know(networks, "/run/flannel/subnet.env", at(started)),
		Subnets:  flannel.Know(subnets, "/run/flannel/subnet.env", at(started)),
	}
	s.Table = calmTable()
	s.Flannel = diagnose.Flannel{State: diagnose.FlannelLive, Dialect: "iptables", Generation: "v0.21.0"}
	return s
}

func (s *story) reads(b flannel.Backend, gen uint32) {
	s.Backends = append(s.Backends, incident.BackendView{Backend: b, State: flannel.Known, Generation: gen, Read: s.Now})
	s.Flannel.Backends = append(s.Flannel.Backends, b)
}

// add puts Flannel's chains of a backend and family into the view, healthy, with rates around the given ones.
func (s *story) add(b flannel.Backend, f flannel.Family, conns, packets float64) {
	gen := flannel.GenV0210
	if b == flannel.Nftables {
		gen = flannel.GenV0250
	}
	o := flannel.Options{Masq: true, Forward: true, RandomFully: true}
	for _, w := range flannel.Expected(networks, subnets, gen, o, b, f) {
		rate := packets
		if isNat(w.ID) {
			rate = conns
		}
		s.Chains = append(s.Chains, s.chain(w, rate))
	}
	slices.SortFunc(s.Chains, func(a, b incident.ChainView) int { return a.ID.Compare(b.ID) })
}

func (s *story) chain(w flannel.Wanted, rate float64) incident.ChainView {
	c := incident.ChainView{
		ID: w.ID, State: flannel.ChainOK, Since: s.Started, Wanted: len(w.Rules), Found: len(w.Rules),
		Counted: w.ID.Backend != flannel.Nftables, Lane: []incident.Span{{From: s.Started, State: flannel.ChainOK}},
	}
	if w.HookChain.Name != "" {
		c.Hook = flannel.Hook{Chain: w.HookChain.Name, Position: 2, Of: 4, Copies: 1}
	}
	share := 1.0
	for i, r := range w.Rules {
		v := incident.RuleView{RuleDiff: flannel.RuleDiff{Rule: r, Status: flannel.RuleOK, Want: i + 1, Found: i + 1, Times: 1}}
		if c.Counted {
			share *= 0.45
			v.Counted = true
			v.Rate = incident.Rate{Known: true, Packets: math.Floor(rate * share), Bytes: rate * share * 960}
			v.Counter = flannel.Counter{Packets: uint64(rate * share * 21600), Bytes: uint64(rate * share * 21600 * 960)}
			c.Total.Packets += v.Counter.Packets
			c.Total.Bytes += v.Counter.Bytes
		}
		c.Rules = append(c.Rules, v)
	}
	if c.Counted {
		c.Rate = incident.Rate{Known: true, Packets: rate, Bytes: rate * 960}
		c.History = incident.SeriesOf(0, s.curve(rate, int(s.Bucket)+1)...)
	}
	return c
}

func (s *story) curve(rate float64, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = rate * (1 + 0.25*math.Sin(float64(i)/17) + 0.3*(s.rng.Float64()-0.5))
	}
	return out
}

// change gives the chain of a name for changing.
func (s *story) change(b flannel.Backend, f flannel.Family, name string) *incident.ChainView {
	for i := range s.Chains {
		if c := &s.Chains[i]; c.ID.Backend == b && c.ID.Family == f && c.ID.Name == name {
			return c
		}
	}
	panic("no chain " + name)
}

func (s *story) event(t time.Time, kind incident.EventKind, sev diagnose.Severity, c *incident.ChainView, text string, who *incident.Who) {
	e := incident.Event{Time: at(t), Kind: kind, Severity: sev, Text: text, Who: who}
	if c != nil {
		e.Chain, e.Text = c.ID, c.ID.Short()+" "+text
	}
	s.Events = append(s.Events, e)
}

func (s *story) find(id string, sev diagnose.Severity, c *incident.ChainView, since time.Time, summary string) {
	s.Findings = append(s.Findings, diagnose.Finding{ID: id, Severity: sev, Object: c.ID.String(), Summary: summary, Chain: c.ID, Since: at(since)})
}

func (s *story) put(c *incident.ChainView, state flannel.ChainState, since time.Time) {
	c.State, c.Since = state, at(since)
	c.Lane = append(c.Lane, incident.Span{From: at(since), State: state})
}

// empty lets the chain lose its rules.
func (s *story) empty(c *incident.ChainView, since time.Time) {
	s.put(c, flannel.ChainEmpty, since)
	c.Found, c.Rate = 0, incident.Rate{}
	for i := range c.Rules {
		r := &c.Rules[i]
		r.Status, r.Found, r.Counted, r.Rate, r.Counter = flannel.RuleMissing, 0, false, incident.Rate{}, flannel.Counter{}
	}
	n := int(at(since).Sub(s.Started) / incident.Step)
	c.History = incident.SeriesOf(0, s.curve(41, n)...)
}

func healthy() *incident.View {
	s := newStory()
	s.reads(flannel.IptablesNft, 4813)
	s.add(flannel.IptablesNft, flannel.IPv4, 41, 18400)
	s.add(flannel.IptablesNft, flannel.IPv6, 12, 140)
	fwd := s.change(flannel.IptablesNft, flannel.IPv4, "FLANNEL-FWD")
	s.event(started.Add(4*time.Minute), incident.EventChanged, diagnose.Info, fwd, "changed, +1 −1 rules", &incident.Who{PID: 47110, Comm: "iptables"})
	return &s.View
}

func emptied() *incident.View {
	s := newStory()
	s.reads(flannel.IptablesNft, 4812)
	s.add(flannel.IptablesNft, flannel.IPv4, 41, 18400)
	s.add(flannel.IptablesNft, flannel.IPv6, 12, 140)
	six := s.change(flannel.IptablesNft, flannel.IPv6, "FLANNEL-FWD")
	s.put(six, flannel.ChainShadowed, noon.Add(-2*time.Minute))
	six.Hook.Position = 4
	s.find("path-shadowed", diagnose.Warning, six, noon.Add(-2*time.Minute), "a foreign REJECT stands before Flannel's jump in v6 FORWARD")
	s.event(noon.Add(-2*time.Minute+771*time.Millisecond), incident.EventChanged, diagnose.Warning, six,
		"is shadowed: REJECT 3/4 stands before the jump 4/4", &incident.Who{PID: 47110, Comm: "ip6tables"})
	s.event(noon.Add(220*time.Second+502*time.Millisecond), incident.EventRestarted, diagnose.Info, six, "counts from 0 again: same rules, new counters",
		&incident.Who{PID: 2981, Comm: "kube-proxy"})
	four := s.change(flannel.IptablesNft, flannel.IPv4, "FLANNEL-POSTRTG")
	s.empty(four, flushed)
	s.Findings = slices.Insert(s.Findings, 0, diagnose.Finding{
		ID: "chain-empty", Severity: diagnose.Critical, Object: four.ID.String(),
		Summary: "the masquerade chain is empty", Chain: four.ID, Since: at(flushed),
	})
	s.event(flushed, incident.EventEmptied, diagnose.Critical, four, "emptied, −6 rules", &incident.Who{PID: 48213, Comm: "iptables", Origin: &incident.Origin{
		Cmdline: incident.Fact[[]string]{Value: []string{"iptables", "-w", "-t", "nat", "-F", "FLANNEL-POSTRTG"}, Certainty: incident.Exact, How: "read 3 ms after exec"},
		Parents: incident.Fact[[]incident.Ancestor]{Value: []incident.Ancestor{{PID: 47990, Comm: "bash"}, {PID: 812, Comm: "sshd"}}, Certainty: incident.Exact, How: "read 3 ms after exec"},
	}})
	return &s.View
}

// recovered is the story a few seconds later: flanneld has put the rules back.
func recovered() *incident.View {
	v := healthy()
	end := flushed.Add(4886 * time.Millisecond)
	id := flannel.MasqChain(flannel.IptablesNft, flannel.IPv4)
	who := &incident.Who{PID: 48213, Comm: "iptables"}
	v.Now = at(end.Add(3 * time.Second))
	v.Bucket = int64(v.Now.Sub(v.Started) / incident.Step)
	v.Incidents = []incident.Incident{{
		Number: 1, Kind: incident.KindFlushed, Severity: diagnose.Critical, Start: at(flushed), End: at(end), Complete: true, By: who,
		Spells: []incident.Spell{{Chain: id, State: flannel.ChainEmpty, From: at(flushed), To: at(end), Lost: 6}},
	}}
	c := &v.Chains[0]
	c.Since = at(end)
	c.Lane = append(c.Lane, incident.Span{From: at(flushed), State: flannel.ChainEmpty}, incident.Span{From: at(end), State: flannel.ChainOK})
	v.Events = append(v.Events,
		incident.Event{Time: at(flushed), Kind: incident.EventEmptied, Severity: diagnose.Critical, Chain: id, Text: id.Short() + " emptied, −6 rules", Who: who},
		incident.Event{
			Time: at(end), Kind: incident.EventRefilled, Severity: diagnose.Info, Chain: id, Text: id.Short() + " refilled, +6 rules",
			Who: &incident.Who{PID: 48290, Comm: "iptables-restor"},
		})
	return v
}

// damaged shows every way in which a rule can differ.
func damaged() *incident.View {
	s := newStory()
	s.reads(flannel.IptablesNft, 5120)
	s.add(flannel.IptablesNft, flannel.IPv4, 41, 18400)
	c := s.change(flannel.IptablesNft, flannel.IPv4, "FLANNEL-POSTRTG")
	s.put(c, flannel.ChainPartial, flushed)
	c.Found = 5
	c.Rules[0].Times, c.Rules[0].Status = 3, flannel.RuleDuplicate
	c.Rules[1].Status, c.Rules[1].Found, c.Rules[1].Counted = flannel.RuleMissing, 0, false
	c.Rules[2].Status, c.Rules[2].Found = flannel.RuleMisplaced, 5
	c.Rules[4].Status = flannel.RuleVariant
	extra := flannel.NewRule(flannel.Target{Kind: flannel.TargetDrop}, flannel.Match{Kind: flannel.MatchProtocol, Text: "udp"})
	odd := flannel.NewRule(flannel.Target{Kind: flannel.TargetReturn}, flannel.Match{Kind: flannel.MatchOpaque, Text: "-m bpf --bytecode \"4,48 0 0 9\""})
	c.Rules = append(c.Rules,
		incident.RuleView{RuleDiff: flannel.RuleDiff{Rule: extra, Status: flannel.RuleExtra, Found: 8, Times: 1}, Counted: true, Rate: incident.Rate{Known: true, Packets: 3}},
		incident.RuleView{RuleDiff: flannel.RuleDiff{Rule: odd, Status: flannel.RuleOpaque, Found: 9, Times: 1}, Counted: true, Rate: incident.Rate{Known: true}})
	s.find("rule-missing", diagnose.Critical, c, flushed, "a rule of the masquerade chain is missing")
	s.event(flushed, incident.EventChanged, diagnose.Warning, c, "changed, +3 −1 rules", nil)
	return &s.View
}

func sideBySide() *incident.View {
	s := newStory()
	s.reads(flannel.IptablesNft, 812)
	s.reads(flannel.IptablesLegacy, 0)
	s.add(flannel.IptablesNft, flannel.IPv4, 41, 18400)
	s.add(flannel.IptablesLegacy, flannel.IPv4, 0, 0)
	for _, name := range []string{"FLANNEL-POSTRTG", "FLANNEL-FWD"} {
		c := s.change(flannel.IptablesLegacy, flannel.IPv4, name)
		s.put(c, flannel.ChainLeftover, started)
		s.find("leftover-chain", diagnose.Warning, c, started, "legacy chain of a Flannel that now writes to nf_tables")
	}
	c := s.change(flannel.IptablesLegacy, flannel.IPv4, "FLANNEL-FWD")
	s.event(started.Add(time.Second), incident.EventCreated, diagnose.Info, c, "created, 2 rules", &incident.Who{Comm: "iptables-legacy"})
	return &s.View
}

func native() *incident.View {
	s := newStory()
	s.Flannel.Dialect, s.Flannel.Generation = "nftables", "v0.25.0"
	s.reads(flannel.Nftables, 77)
	s.add(flannel.Nftables, flannel.IPv4, 0, 0)
	s.add(flannel.Nftables, flannel.IPv6, 0, 0)
	return &s.View
}

func noFlannel() *incident.View {
	s := newStory()
	s.Node.Networks, s.Node.Subnets = flannel.Reading[[]netip.Prefix]{}, flannel.Reading[[]netip.Prefix]{}
	s.reads(flannel.IptablesNft, 12)
	s.reads(flannel.IptablesLegacy, 0)
	s.Flannel = diagnose.Flannel{State: diagnose.FlannelAbsent, Dialect: "none", Evidence: []string{
		"no chain FLANNEL-POSTRTG or FLANNEL-FWD in iptables-nft or iptables-legacy",
		"no table flannel-ipv4 or flannel-ipv6",
		"no flanneld or k3s process in this network namespace",
		"/run/flannel/subnet.env does not exist",
	}}
	return &s.View
}

func noPrivilege() *incident.View {
	s := newStory()
	s.Node.Networks, s.Node.Subnets = flannel.Reading[[]netip.Prefix]{}, flannel.Reading[[]netip.Prefix]{}
	for _, b := range flannel.Backends {
		s.Backends = append(s.Backends, incident.BackendView{Backend: b, State: flannel.Unreadable, Why: "operation not permitted: CAP_NET_ADMIN is missing"})
	}
	s.Flannel = diagnose.Flannel{State: diagnose.FlannelUnknown}
	return &s.View
}

func readerFailing() *incident.View {
	v := healthy()
	v.Backends[0].State, v.Backends[0].Why = flannel.Unreadable, "netlink receive: no buffer space available"
	for i := range v.Chains {
		c := &v.Chains[i]
		c.State, c.Rate, c.Since = flannel.ChainUnreadable, incident.Rate{}, at(flushed)
		c.Lane = append(c.Lane, incident.Span{From: at(flushed), State: flannel.ChainUnreadable})
		for j := range c.Rules {
			c.Rules[j].Rate = incident.Rate{}
		}
	}
	v.Events = append(v.Events, incident.Event{
		Time: at(flushed), Kind: incident.EventReadFail, Severity: diagnose.Warning,
		Text: "iptables-nft cannot be read: netlink receive: no buffer space available",
	})
	return v
}

// many is a node with twenty chains, as a ruleset of several tools would give.
func many() *incident.View {
	s := newStory()
	s.reads(flannel.IptablesNft, 812)
	for i := range 20 {
		f := flannel.Families[i%2]
		id := flannel.ChainID{Backend: flannel.IptablesNft, Family: f, Table: flannel.TableNat, Name: fmt.Sprintf("FLANNEL-%02d", i)}
		if i%4 > 1 {
			id.Table = flannel.TableFilter
		}
		w := flannel.Expected(networks, subnets, flannel.GenV0210, flannel.Options{Masq: true}, flannel.IptablesNft, f)[0]
		w.ID = id
		s.Chains = append(s.Chains, s.chain(w, float64(i*i*i*11)))
	}
	slices.SortFunc(s.Chains, func(a, b incident.ChainView) int { return a.ID.Compare(b.ID) })
	c := s.change(flannel.IptablesNft, flannel.IPv4, "FLANNEL-08")
	s.empty(c, flushed)
	s.find("chain-empty", diagnose.Critical, c, flushed, "the chain is empty")
	for i := range 30 {
		s.event(started.Add(time.Duration(i)*17*time.Second), incident.EventChanged, diagnose.Info, c, fmt.Sprintf("changed, +%d −%d rules", i, i), &incident.Who{PID: 1000 + i, Comm: "kube-proxy"})
	}
	return &s.View
}

// scene is one picture that is kept as a golden.
type scene struct {
	name string
	view func() *incident.View
	set  func(*model) // what else differs from a screen just opened
}

var scenes = []scene{
	{"healthy", healthy, nil},
	{"emptied", emptied, nil},
	{"recovered", recovered, nil},
	{"damaged", damaged, nil},
	{"side-by-side", sideBySide, nil},
	{"native", native, nil},
	{"no-flannel", noFlannel, nil},
	{"no-privilege", noPrivilege, nil},
	{"reader-failing", readerFailing, nil},
	{"filtered", many, func(m *model) { m.filter = "v4 nat" }},
	{"many", many, nil},
	{"stale", healthy, func(m *model) { m.arrived = m.arrived.Add(-8 * time.Second) }},
	{"paused", emptied, func(m *model) { m.paused = true; m.arrived = m.arrived.Add(-12 * time.Second) }},
	{"first", func() *incident.View { return nil }, nil},
	{"help", healthy, func(m *model) { m.page = pageHelp }},
	{"chain", damaged, func(m *model) { m.page = pageChain }},
	{"event", emptied, func(m *model) { m.page, m.focus = pageEvent, panelTimeline }},
	{"bases", withBases, onBases},
	{"opened", withOpened, onOpened},
}
