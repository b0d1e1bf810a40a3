package metrics

import (
	"fmt"
	"slices"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

func (p *page) flannel(v *incident.View) {
	mode := v.Flannel.Dialect
	if len(v.Flannel.Backends) > 0 {
		mode = v.Flannel.Backends[0].String()
	}
	if mode == "" {
		mode = "none"
	}
	counters := "no"
	if slices.ContainsFunc(v.Chains, func(c incident.ChainView) bool { return c.Counted && flannels(c.ID) }) {
		counters = "yes"
	}
	p.put(descFlannel, 1, mode, v.Flannel.Generation, counters)
}

// The sources, as metrics name them.
const (
	readerNft       = "nft"
	readerLegacy    = "legacy"
	readerConntrack = "conntrack"
	readerProcfs    = "procfs"
)

func (p *page) readers(v *incident.View) {
	up := map[string]bool{readerNft: true, readerLegacy: true, readerProcfs: true}
	for _, b := range v.Backends {
		reader := readerNft
		if b.Backend == flannel.IptablesLegacy {
			reader = readerLegacy
		}
		up[reader] = up[reader] && b.State != flannel.Unreadable
	}
	up[readerConntrack] = v.Table.Health.State != flannel.Unreadable
	if slices.ContainsFunc(v.Faults, func(f incident.Fault) bool { return f.Reader == "namespace" }) {
		up[readerNft], up[readerLegacy] = false, false
	}
	up[readerProcfs] = v.Flannel.State != diagnose.FlannelUnknown
	for reader, is := range up {
		p.yes(descReader, is, reader)
	}
}

// findings tells of every finding of the catalogue whether it is active, where that is known.
func (p *page) findings(v *incident.View) {
	unknown := unevaluated(v)
	for _, g := range diagnose.Groups {
		p.yes(descUnknown, unknown[g], string(g))
	}
	type key struct {
		group diagnose.Group
		id    string
	}
	active := map[key]bool{}
	for _, f := range v.Findings {
		for _, g := range f.Groups() {
			active[key{g, f.ID}] = true
		}
	}
	for id, groups := range diagnose.Catalogue() {
		for _, g := range groups {
			k := key{g, id}
			if active[k] || !unknown[g] {
				p.yes(descFinding, active[k], string(g), id)
			}
			delete(active, k)
		}
	}
}

// unevaluated tells which parts of the verdict lack a source that they need.
func unevaluated(v *incident.View) map[diagnose.Group]bool {
	out := map[diagnose.Group]bool{diagnose.GroupConntrack: v.Table.Health.State == flannel.Unreadable}
	blind := slices.ContainsFunc(v.Backends, func(b incident.BackendView) bool { return b.State == flannel.Unreadable }) ||
		slices.ContainsFunc(v.Faults, func(f incident.Fault) bool { return f.Reader == "namespace" })
	if blind {
		out[diagnose.GroupMasquerade], out[diagnose.GroupForward], out[diagnose.GroupLeftovers] = true, true, true
	}
	if state := v.Flannel.State; state == diagnose.FlannelUnknown || blind {
		out[diagnose.GroupPrerequisites] = true
	}
	return out
}

// chains tells of Flannel's own chains only: others bear any name, and there may be any number of them.
func (p *page) chains(v *incident.View, detail bool) {
	for i := range v.Chains {
		c := &v.Chains[i]
		if !flannels(c.ID) {
			continue
		}
		labels := []string{c.ID.Family.String(), c.ID.Backend.String(), c.ID.Name}
		matched, unexpected := 0, 0
		for _, r := range c.Rules {
			switch {
			case r.Status == flannel.RuleOK:
				matched++
			case r.Want == 0 && r.Found > 0:
				unexpected += max(1, r.Times)
			}
			unexpected += max(0, r.Times-1) * min(1, r.Want)
		}
		p.put(descExpected, float64(c.Wanted), labels...)
		p.put(descMatched, float64(matched), labels...)
		p.put(descUnexpected, float64(unexpected), labels...)
		if detail {
			p.rules(c, labels)
		}
	}
}

// maxRules bounds the series of one chain: no generation of Flannel has more rules in it.
const maxRules = 8

func (p *page) rules(c *incident.ChainView, labels []string) {
	used := map[string]int{}
	for i := range c.Rules {
		r := &c.Rules[i]
		if r.Want == 0 || len(used) == maxRules || !c.Counted {
			continue
		}
		name := slug(r.Rule)
		used[name]++
		if n := used[name]; n > 1 {
			name = fmt.Sprintf("%s_%d", name, n)
		}
		with := append(slices.Clone(labels), name)
		p.put(descRulePackets, float64(r.Total.Packets), with...)
		p.put(descRuleBytes, float64(r.Total.Bytes), with...)
	}
}

// flannels tells whether a chain is one that Flannel makes.
func flannels(id flannel.ChainID) bool {
	switch id.Name {
	case "FLANNEL-POSTRTG":
		return id.Table == flannel.TableNat
	case "FLANNEL-FWD":
		return id.Table == flannel.TableFilter
	}
	return id.Backend == flannel.Nftables
}

// slug names a rule by what it does and what it looks at, for example masquerade_src_notdst.
func slug(r flannel.Rule) string {
	name := "none"
	switch r.Target.Kind {
	case flannel.TargetAccept:
		name = "accept"
	case flannel.TargetReturn:
		name = "return"
	case flannel.TargetMasquerade:
		name = "masquerade"
	}
	for _, m := range r.Matches {
		not := ""
		if m.Not {
			not = "not"
		}
		switch m.Kind {
		case flannel.MatchSource:
			name += "_" + not + "src"
		case flannel.MatchDestination:
			name += "_" + not + "dst"
		case flannel.MatchMark:
			name += "_" + not + "mark"
		}
	}
	return name
}

// problems are the kinds of wrongly treated connections, as metrics name them.
var problems = map[conntrack.Kind]string{
	conntrack.Bare:       "pod_to_outside_without_snat",
	conntrack.Translated: "pod_to_pod_with_snat",
	conntrack.Arriving:   "arriving_with_snat",
	conntrack.Stale:      "udp_to_dead_pod",
}

func (p *page) flows(v *incident.View) {
	survey, known := v.Table.Flows.Get()
	if !known {
		return
	}
	for kind, name := range problems {
		p.put(descFlows, float64(survey.Kinds[kind].Flows), name)
	}
}

func (p *page) journal(j recording) {
	written := 0.0
	if !j.written.IsZero() {
		written = float64(j.written.Wall.UnixMilli()) / 1000
	}
	p.put(descJournalSize, float64(j.Size))
	p.put(descJournalWritten, written)
	p.put(descJournalFailed, float64(j.failed))
}
