package ui

import (
	"hash/fnv"
	"slices"
	"time"

	"flanwatch/flannel"
	"flanwatch/remediate"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

// desk makes plans from facts made by hand, and carries them out on these.
type desk struct {
	facts    remediate.Facts
	answers  *Box[Answer]
	direct   func(Answer) // answers go there instead, if it is set
	wishes   []Wish
	receipts []remediate.Receipt
	before   func() // made to happen before a plan is carried out
}

const stateDir = "/var/lib/flanwatch"

// newDesk is a node with Flannel's rules of a backend; without flanneld they are left over.
func newDesk(live bool) *desk {
	d := &desk{answers: NewAnswers()}
	f := &d.facts
	f.At = at(now)
	f.Node.Networks, f.Node.Subnets = flannel.Know(networks, "/run/flannel/subnet.env", f.At), flannel.Know(subnets, "/run/flannel/subnet.env", f.At)
	f.Node.IPMasq, f.Node.ForwardRules = flannel.Know(true, "flag", f.At), flannel.Know(true, "flag", f.At)
	f.Node.RandomFully, f.Node.NFTables = flannel.Know(true, "flag", f.At), flannel.Know(false, "net-conf.json", f.At)
	f.Links = flannel.Know([]diagnose.Link{{Name: "vxlan.calico", Type: "vxlan", Up: true}}, "netlink", f.At)
	f.Procs = flannel.Know([]diagnose.Process{}, "/proc", f.At)
	if live {
		f.Links.Value[0].Name = "flannel.1"
		f.Procs.Value = []diagnose.Process{{PID: 2210, Kind: diagnose.ProcFlanneld, Comm: "flanneld", Version: "v0.28.10", Started: at(started)}}
	}
	f.Rules = map[flannel.Backend]flannel.Reading[flannel.Ruleset]{
		flannel.IptablesNft:    flannel.Know(*flannelRules(), "nf_tables", f.At),
		flannel.IptablesLegacy: flannel.Miss[flannel.Ruleset](flannel.Absent, "the kernel has no legacy tables", "xtables", f.At),
		flannel.Nftables:       flannel.Know(flannel.Ruleset{Backend: flannel.Nftables}, "nf_tables", f.At),
	}
	return d
}

// flannelRules are those of both families, with one of others before each jump.
func flannelRules() *flannel.Ruleset {
	rs := &flannel.Ruleset{Backend: flannel.IptablesNft, Generation: 4812}
	for _, id := range flannel.Looked(flannel.IptablesNft) {
		rs.Chains = append(rs.Chains, flannel.Chain{ID: id})
	}
	handle := uint64(0)
	put := func(c *flannel.Chain, r flannel.Rule) {
		handle++
		h := fnv.New64a()
		h.Write([]byte(r.String()))
		c.Present = true
		c.Entries = append(c.Entries, flannel.Entry{Rule: r, Handle: handle, Body: h.Sum64(), Counted: true})
	}
	foreign, err := flannel.ParseRule(`-m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`)
	if err != nil {
		panic(err)
	}
	o := flannel.Options{RandomFully: true, Forward: true, Masq: true}
	for _, f := range flannel.Families {
		for _, w := range flannel.Expected(networks, subnets, flannel.GenV0210, o, flannel.IptablesNft, f) {
			for _, r := range w.Rules {
				put(rs.Chain(w.ID), r)
			}
			base := rs.Chain(w.HookChain)
			put(base, foreign)
			put(base, w.Hook)
			base.Base = &flannel.BaseChain{Policy: "accept"}
			rs.Tables = append(rs.Tables, w.ID.TableID())
		}
	}
	return rs
}

// edit changes a chain of the facts.
func (d *desk) edit(id flannel.ChainID, change func(*flannel.Chain)) *desk {
	r := d.facts.Rules[id.Backend]
	r.Value = r.Value.Clone()
	change(r.Value.Chain(id))
	d.facts.Rules[id.Backend] = r
	return d
}

func (d *desk) empty(id flannel.ChainID) *desk {
	return d.edit(id, func(c *flannel.Chain) { c.Entries = nil })
}

func (d *desk) ask(w Wish) {
	d.wishes = append(d.wishes, w)
	a := d.answer(w)
	if d.direct != nil {
		d.direct(a)
		return
	}
	d.answers.Put(a)
}

func (d *desk) answer(w Wish) Answer {
	a := Answer{Wish: w.Number}
	var offers []remediate.Offer
	switch w.Do {
	case DoOffer:
		offers = remediate.Offers(d.facts, w.Chains, w.Kind)
	case DoMake:
		if w.Kind == remediate.KindUndo && len(d.receipts) == 0 {
			a.Trouble = "nothing was carried out here that could be taken back"
			return a
		}
		offers = []remediate.Offer{d.make(w)}
	case DoApply:
		if d.before != nil {
			d.before()
		}
		d.apply(w, &a)
	case DoHistory:
		a.Receipts = append([]remediate.Receipt{}, d.receipts...)
		slices.Reverse(a.Receipts)
	}
	for _, o := range offers {
		a.Offers = append(a.Offers, OfferOf(o, stateDir, w.Opened))
	}
	return a
}

func (d *desk) make(w Wish) remediate.Offer {
	o := remediate.Offer{Kind: w.Kind, Choice: w.Choice, Receipt: w.Receipt}
	if w.Kind != remediate.KindUndo {
		return remediate.Make(d.facts, o)
	}
	r := d.receipts[len(d.receipts)-1]
	o.Receipt = r.ID
	o.Plan, o.Refused = remediate.Undo(r, d.facts, w.Choice)
	return o
}

func (d *desk) apply(w Wish, a *Answer) {
	o := d.make(w)
	a.Steps = []Step{{"check", 12 * time.Millisecond, true}}
	switch {
	case len(o.Refused) > 0:
		a.Outcome = &Outcome{Result: remediate.ResultRefused, Why: o.Refused[0].Why}
		return
	case o.Plan.Empty():
		a.Outcome = &Outcome{}
		return
	case o.Plan.ID != w.ID:
		a.Outcome = &Outcome{Result: remediate.ResultRefused, Why: "the plan is stale"}
		return
	}
	a.Steps = append(a.Steps, Step{"backup", 118 * time.Millisecond, true}, Step{"apply", 4 * time.Millisecond, true}, Step{"verify", 35 * time.Millisecond, true})
	r := remediate.NewReceipt(o.Plan, w.Opened, remediate.Place{})
	r.Result, r.By, r.Backup = remediate.ResultVerified, remediate.Actor{PID: 4711, Comm: "flanwatch", User: "root"}, stateDir+"/backup/"+r.ID+".rules"
	for i := range d.receipts {
		if d.receipts[i].ID == r.Undoes {
			d.receipts[i].Result, d.receipts[i].Why = remediate.ResultUndone, "by "+r.ID
		}
	}
	d.receipts = append(d.receipts, r)
	for _, e := range o.Plan.Edits {
		d.edit(e.Chain, func(c *flannel.Chain) {
			c.Present, c.Entries = !e.Delete, nil
			for i, rule := range e.After() {
				c.Entries = append(c.Entries, flannel.Entry{Rule: rule, Handle: uint64(1000 + i), Body: uint64(1000 + i)})
			}
		})
	}
	a.Outcome = &Outcome{Result: r.Result, Receipt: r.ID, Look: 10 * time.Second}
}

// at sits a model down at the desk and presses keys; each is answered at once.
func (d *desk) at(m *model, keys ...string) *desk {
	d.direct = m.answered
	m.opt.Ask = d.ask
	for _, k := range keys {
		m.press(keyNamed(k))
	}
	return d
}

func typed(word string, more ...string) []string {
	var keys []string
	for _, r := range word {
		keys = append(keys, string(r))
	}
	return append(keys, more...)
}

var (
	nat4 = flannel.MasqChain(flannel.IptablesNft, flannel.IPv4)
	nat6 = flannel.MasqChain(flannel.IptablesNft, flannel.IPv6)
)

// leftOver is a node whose Flannel is gone.
func leftOver() *incident.View {
	v := healthy()
	for i := range v.Chains {
		v.Chains[i].State = flannel.ChainLeftover
	}
	v.Flannel = diagnose.Flannel{State: diagnose.FlannelLeftover, Dialect: "iptables", Backends: []flannel.Backend{flannel.IptablesNft}}
	v.Findings = []diagnose.Finding{{
		ID: "leftover-chain", Severity: diagnose.Warning, Object: nat4.String(), Chain: nat4, Remedy: diagnose.RemedyPurge, Since: at(started),
		Summary: "Flannel is gone, and its chains are still there.", Detail: []string{"no flanneld runs in this network namespace"},
	}}
	return v
}

func withRemedy() *incident.View {
	v := emptied()
	v.Findings[0].Remedy = diagnose.RemedyReapply
	return v
}

// applied is a desk at which a plan of reapply was carried out.
func applied(m *model) *desk {
	return newDesk(true).empty(nat4).at(m, append([]string{"r"}, typed("reapply", "enter")...)...)
}

var remedyScenes = []scene{
	{"plan", withRemedy, func(m *model) { newDesk(true).empty(nat4).at(m, append([]string{"r"}, typed("reap")...)...) }},
	{"plan-typed", withRemedy, func(m *model) { newDesk(true).empty(nat4).at(m, append([]string{"r"}, typed("reapply")...)...) }},
	{"plan-commands", withRemedy, func(m *model) { newDesk(true).empty(nat4).at(m, "r", "tab") }},
	{"plan-waiting", withRemedy, func(m *model) { m.press(keyNamed("r")) }},
	{"plan-choice", withRemedy, func(m *model) { newDesk(true).empty(nat4).empty(nat6).at(m, "r") }},
	{"plan-changed", withRemedy, func(m *model) {
		d := newDesk(true).empty(nat4).at(m, append([]string{"r"}, typed("reapply")...)...)
		d.edit(nat4, func(c *flannel.Chain) { c.Entries = flannelRules().Chain(nat4).Entries[:2] })
		m.receive(withRemedy())
	}},
	{"plan-faster", withRemedy, func(m *model) {
		d := newDesk(true).empty(nat4).at(m, append([]string{"r"}, typed("reap")...)...)
		d.edit(nat4, func(c *flannel.Chain) { c.Entries = flannelRules().Chain(nat4).Entries })
		m.receive(healthy())
	}},
	{"plan-refused", withRemedy, func(m *model) {
		d := newDesk(true).empty(nat4)
		d.facts.Procs.Value[0].Started = at(now.Add(-3 * time.Second))
		d.at(m, "r")
	}},
	{"plan-read-only", withRemedy, func(m *model) { m.readOnly = true; newDesk(true).empty(nat4).at(m, "r") }},
	{"plan-purge", leftOver, func(m *model) { newDesk(false).at(m, "r") }},
	{"plan-purge-parts", leftOver, func(m *model) { stuck().at(m, "r") }},
	{"plan-unstick", withFlows, func(m *model) { m.press(keyNamed("c")); stuck().at(m, "r") }},
	{"plan-running", withRemedy, func(m *model) {
		applied(m)
		m.dialog.phase = phaseRunning
		m.dialog.steps = []Step{{"check", 12 * time.Millisecond, true}, {"backup", 118 * time.Millisecond, true}, {"apply", 0, false}}
	}},
	{"plan-done", withRemedy, func(m *model) { applied(m) }},
	{"plan-lasting", withRemedy, func(m *model) {
		d := applied(m)
		o := m.dialog.outcome
		o.Again, o.Lasting = "still so after 10 s", true
		m.answered(Answer{Wish: d.wishes[len(d.wishes)-1].Number, Outcome: &o, Steps: m.dialog.steps})
	}},
	{"plan-gone", withRemedy, func(m *model) {
		d := applied(m)
		o := m.dialog.outcome
		o.Again = "after 10 s it is not as it was left, and was not undone by flanwatch: re-apply 6 rules to iptables-nft v4 nat FLANNEL-POSTRTG"
		m.answered(Answer{Wish: d.wishes[len(d.wishes)-1].Number, Outcome: &o, Steps: m.dialog.steps})
	}},
	{"plan-unverified", withRemedy, func(m *model) {
		applied(m)
		m.dialog.outcome.Result, m.dialog.outcome.Why = remediate.ResultUnverified, "iptables-nft ip nat FLANNEL-POSTRTG has 0 rules, not 6"
		m.dialog.outcome.Look = 0
	}},
	{"plan-stale", withRemedy, func(m *model) {
		applied(m)
		m.dialog.steps = m.dialog.steps[:1]
		m.dialog.outcome = Outcome{Result: remediate.ResultRefused, Why: "the plan is stale: the rules concerned have changed since it was made"}
	}},
	{"plan-undo", healthy, func(m *model) { applied(m).at(m, "enter", "u") }},
	{"history", healthy, func(m *model) {
		d := applied(m)
		d.at(m, append(append([]string{"enter", "u"}, typed("undo", "enter")...), "enter", "U")...)
	}},
	{"no-history", healthy, func(m *model) { newDesk(true).at(m, "U") }},
}
