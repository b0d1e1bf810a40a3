package diagnose

import (
	"cmp"
	"fmt"
	"slices"

	"flanwatch/flannel"
)

// Assessment is the verdict on a node at one moment.
type Assessment struct {
	Flannel  Flannel
	Chains   []flannel.ChainDiff // sorted by ID: every chain that is due or that Flannel left
	Findings []Finding           // worst first, of equal ones causes above effects
	Due      []flannel.Wanted    // the chains that Flannel should have here, as far as anything tells their rules
	Leftover []Leftover          // what it left and does not use
	Paths    []Path              // what becomes of typical packets; empty where that is not known

	Remains []Remain // the same piece by piece, with links, routes and files

	Masquerade map[flannel.Family]bool // families in which pods are meant to leave with the node's address
}

// Leftover is what Flannel left in one family of one backend and does not use any more.
type Leftover struct {
	Backend flannel.Backend
	Family  flannel.Family
	Chains  []flannel.ChainID // of its own, that are there
	Table   bool              // its native table is there
	Bare    []flannel.Trace   // generations whose rules stand in the base chains
}

// Assess judges what is known of a node. It never takes what could not be read for missing.
func Assess(f Facts, h History) Assessment {
	j := &judgement{facts: f, history: h, sights: look(f)}
	j.judgeFlannel()
	j.judgeConfig()
	j.judgeReaders()
	for _, s := range j.sights {
		j.judgeSight(s)
	}
	j.judgeUnread()
	j.judgeSplit()
	j.judgePaths()
	j.judgeSurroundings()
	j.judgeLostPorts()
	j.judgeConntrack()
	j.judgeRemains()
	slices.SortFunc(j.chains, func(a, b flannel.ChainDiff) int { return a.ID.Compare(b.ID) })
	slices.SortStableFunc(j.findings, func(a, b Finding) int {
		return cmp.Or(a.Severity.Rank()-b.Severity.Rank(), causality(a.ID)-causality(b.ID))
	})
	return Assessment{
		Flannel: j.flannel, Chains: j.chains, Findings: j.findings, Due: j.duties, Leftover: j.leftovers, Paths: j.paths,
		Remains:    j.remains,
		Masquerade: j.masqueradeDue(),
	}
}

// judgement is the work on one assessment.
type judgement struct {
	facts    Facts
	history  History
	sights   []sight
	flannel  Flannel
	chains   []flannel.ChainDiff
	findings []Finding

	duties    []flannel.Wanted
	leftovers []Leftover
	paths     []Path
	remains   []Remain
}

// causes lists finding ids, causes above effects.
var causes = []string{
	"config-damaged", "config-key-ignored", "flannel-crash-looping", "lock-held", "table-unreadable", "ip-forward-off",
	"br-netfilter-missing", "bridge-nf-call-off", "subnet-mismatch", "route-missing", "backend-split", "foreign-leftover",
	"ipv6-no-masquerade",
	"table-missing", "chain-missing", "chain-empty", "hook-missing", "base-differs", "rule-missing", "rule-order", "rule-extra",
	"rule-duplicate", "rule-variant", "old-generation-rules", "leftover-table", "leftover-chain",
	"damaged-rule", "path-shadowed", "policy-shadowed", "foreign-drop", "foreign-snat", "pod-snat", "forward-dropped", "path-differs",
	"hostport-missing", "ipam-stale", "vxlan-checksum", "tool-missing",
	"leftover-saved-rules", "leftover-link", "leftover-route", "leftover-file",
	"conntrack-full", "conntrack-evicting", "snat-port-race", "flows-bare", "flows-translated", "stale-udp-flow", "arriving-snat",
	"conntrack-clash",
}

func causality(id string) int { return slices.Index(causes, id) }

func (j *judgement) find(f Finding) {
	if f.Remedy == "" {
		f.Remedy = RemedyNone
	}
	if f.Since.IsZero() && f.Chain != (flannel.ChainID{}) {
		f.Since = j.history.Since[f.Chain]
	}
	j.findings = append(j.findings, f)
}

// judgeSight compares what a backend holds in a family with what is due there.
func (j *judgement) judgeSight(s sight) {
	if !j.due() || !j.expectedIn(s.backend) {
		j.leave(s, s.places(), s.bare)
		return
	}
	wanted, old := j.wanted(s)
	for _, w := range wanted {
		d := flannel.Compare(s.rules, w)
		if d.State == flannel.ChainAbsent && j.activeElsewhere(s, w) {
			continue // the split itself is told of
		}
		j.chains = append(j.chains, d)
		j.duties = append(j.duties, w)
		j.judgeChain(s, w, d)
	}
	j.judgeTable(s, wanted)
	j.leave(s, slices.DeleteFunc(s.places(), func(p place) bool {
		return slices.ContainsFunc(wanted, func(w flannel.Wanted) bool { return w.ID == p.id })
	}), old)
}

// leave notes what is left over in a backend and family.
func (j *judgement) leave(s sight, places []place, old []flannel.Trace) {
	left := Leftover{Backend: s.backend, Family: s.family, Bare: old}
	for _, p := range places {
		left.Chains = append(left.Chains, p.id)
	}
	left.Table = s.table && !j.normalTable(s)
	if len(left.Chains) > 0 || left.Table || len(old) > 0 {
		j.leftovers = append(j.leftovers, left)
		j.remainRules(s, left)
	}
	j.judgeLeftover(s, places)
	j.judgeBare(s, old)
	if slices.Contains(left.Chains, s.masq.id) || left.Table {
		j.judgePodSnat(s)
	}
}

// expectedIn tells whether Flannel's rules are due in a backend.
func (j *judgement) expectedIn(b flannel.Backend) bool {
	if slices.Contains(j.flannel.Backends, b) || b == flannel.Nftables && j.bothDialects() {
		return true
	}
	return j.undecided() && b == j.likeliest()
}

// places gives the chains of Flannel's own that leave a trace.
func (s sight) places() []place {
	return slices.DeleteFunc([]place{s.masq, s.forward}, func(p place) bool { return !p.present })
}

// wanted gives the chains that are due in a family of a backend, and the generations whose bare rules are not.
func (j *judgement) wanted(s sight) ([]flannel.Wanted, []flannel.Trace) {
	p := j.prefixes(s)
	gen, old := j.generationOf(s)
	o := j.options(s, gen)
	wanted := flannel.Expected(p.networks, p.subnets, gen, o, s.backend, s.family)
	if j.familyOff(s.family) {
		return nil, old
	}
	// A chain that is there although nothing tells its rules is due for what it is.
	for _, pl := range s.places() {
		due := pl.id.Table == flannel.TableFilter && o.Forward || pl.id.Name == flannel.ChainMasq && o.Masq ||
			pl.id.Name == flannel.NativeForward && o.Forward || pl.id.Name == flannel.NativeMasq && o.Masq
		if due && !slices.ContainsFunc(wanted, func(w flannel.Wanted) bool { return w.ID == pl.id }) {
			wanted = append(wanted, blank(pl.id))
		}
	}
	return wanted, old
}

// blank is a chain of which nothing but its place is known.
func blank(id flannel.ChainID) flannel.Wanted {
	w := flannel.Wanted{ID: id}
	if id.Backend != flannel.Nftables {
		w.HookChain = baseOf(id)
		w.Hook = flannel.NewRule(flannel.Target{Kind: flannel.TargetJump, Chain: id.Name})
	}
	return w
}

// generationOf gives the generation that is due, and those whose rules are not.
func (j *judgement) generationOf(s sight) (flannel.Generation, []flannel.Trace) {
	if g := ofVersion(j.flannel.Version); g.OwnChains() && g != "" && j.runs() && s.backend != flannel.Nftables {
		return g, s.bare
	}
	switch {
	case s.own != nil && !s.own.Guessed:
		return s.own.Generation, s.bare
	case s.own == nil && len(s.bare) > 0:
		return s.bare[0].Generation, s.bare[1:]
	}
	if g := flannel.Generation(j.flannel.Generation); g != "" && (g == flannel.GenV0250) == (s.backend == flannel.Nftables) {
		return g, s.bare
	}
	return flannel.GenV0210, s.bare // nothing tells: today's
}

// ofVersion gives the generation of iptables rules that a version of flanneld writes, "" where the version is not known. It
// is surer than rules of which half is missing.
func ofVersion(version string) flannel.Generation {
	var major, minor, patch int
	if n, _ := fmt.Sscanf(version, "v%d.%d.%d", &major, &minor, &patch); n < 3 {
		return ""
	}
	switch {
	case major > 0 || minor > 20:
		return flannel.GenV0210
	case minor == 20 && patch >= 2:
		return flannel.GenV0202
	case minor == 20:
		return flannel.GenV0200
	}
	return ""
}

// options decides what flanneld's flags decide: as it was told, else as the rules show.
func (j *judgement) options(s sight, g flannel.Generation) flannel.Options {
	n := j.facts.Node
	masq, forward := s.masq, s.forward
	if !g.OwnChains() && len(s.bare) > 0 {
		// Bare rules show by themselves what was asked for.
		t := s.bare[0].Options
		return flannel.Options{Masq: t.Masq, Forward: t.Forward, RandomFully: t.RandomFully}
	}
	o := flannel.Options{
		Masq:        j.told(j.masqueradeOf(s.family), masq),
		Forward:     j.told(n.ForwardRules, forward),
		RandomFully: true,
	}
	if told, known := n.RandomFully.Get(); known {
		o.RandomFully = told
	} else if s.own != nil {
		o.RandomFully = s.own.Options.RandomFully
	}
	return o
}

// told gives what flanneld was told, and where that is not known whether the chain is there or was.
func (j *judgement) told(r flannel.Reading[bool], p place) bool {
	if told, known := r.Get(); known {
		return told
	}
	_, was := j.history.Since[p.id]
	return p.any() || was
}

// masqueradeOf is what flanneld was told for a family. k3s masquerades IPv6 only where it is told so, which a server can
// read in a file and an agent hears from its server: what is not on its command line is not known.
func (j *judgement) masqueradeOf(f flannel.Family) flannel.Reading[bool] {
	if f == flannel.IPv4 {
		return j.facts.Node.IPMasq
	}
	told := j.facts.Node.IPMasq6
	if told.State == flannel.Unread {
		told = j.facts.Node.IPMasq
	}
	for _, p := range j.procs() {
		if p.Kind == ProcK3s && !slices.Contains(p.Cmdline, "--flannel-ipv6-masq") {
			return flannel.Reading[bool]{State: flannel.Unreadable, Why: "k3s can be told in a file"}
		}
	}
	return told
}
