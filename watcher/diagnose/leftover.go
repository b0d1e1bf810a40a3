package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"flanwatch/flannel"
)

// judgeLeftover tells of chains that Flannel made and does not use any more.
func (j *judgement) judgeLeftover(s sight, places []place) {
	for _, p := range places {
		d := flannel.Compare(s.rules, blank(p.id))
		d.State, d.Wanted, d.Found = flannel.ChainLeftover, 0, 0
		j.chains = append(j.chains, d)
		if s.backend != flannel.Nftables {
			j.findLeftoverChain(s, p)
		}
	}
	if s.table && (len(places) > 0 || !j.normalTable(s)) {
		j.findLeftoverTable(s)
	}
}

// normalTable tells whether a native table without chains is as it should be: flanneld makes both tables, and fills only
// those of the families that it serves.
func (j *judgement) normalTable(s sight) bool { return j.due() && j.expectedIn(s.backend) }

func (j *judgement) findLeftoverChain(s sight, p place) {
	f := Finding{
		ID: "leftover-chain", Severity: Info, Object: p.id.String(), Chain: p.id,
		Detail: []string{rulesAndJumps(p)},
	}
	masq := p.id.Table == flannel.TableNat
	switch {
	case p.rules == 0 && p.hooks == 0:
		f.Summary = fmt.Sprintf("%s is left over, empty and unreferenced: harmless.", j.name(p.id))
	case p.rules == 0:
		f.Summary = fmt.Sprintf("%s is left over, empty, with its jump: harmless.", j.name(p.id))
	case p.hooks == 0:
		f.Summary = fmt.Sprintf("%s is left over with %s that nothing jumps to: without effect.", j.name(p.id), rules(p.rules))
	case masq:
		f.Severity = Warning
		if n := masqueraded(s.rules.Chain(p.id)); n > 0 {
			f.Detail = append(f.Detail, fmt.Sprintf("it has masqueraded %d connections", n))
		}
		f.Summary = fmt.Sprintf("%s is left over and still masquerades: traffic between pods can get a node's address.",
			j.name(p.id))
	default:
		f.Summary = fmt.Sprintf("%s is left over and still accepts forwarded pod traffic.", j.name(p.id))
		if !j.runs() {
			f.Severity = Warning
		}
	}
	j.offerPurge(&f)
	j.find(f)
}

// masqueraded is how many connections the rules of a chain have masqueraded.
func masqueraded(c *flannel.Chain) uint64 {
	var n uint64
	for i := range c.Entries {
		if e := &c.Entries[i]; e.Counted && e.Rule.Target.Kind == flannel.TargetMasquerade {
			n += e.Counter.Packets
		}
	}
	return n
}

func (j *judgement) findLeftoverTable(s sight) {
	id := s.masq.id.TableID()
	f := Finding{ID: "leftover-table", Severity: Info, Object: id.String()}
	for _, p := range s.places() {
		f.Detail = append(f.Detail, rulesAndJumps(p))
	}
	f.Summary = fmt.Sprintf("Table %s %s is left over, without rules: harmless.", id.Family, id.Name)
	switch {
	case s.masq.active():
		f.Severity = Warning
		f.Summary = fmt.Sprintf("Table %s %s is left over and still masquerades: traffic between pods can get a node's address.",
			id.Family, id.Name)
	case s.forward.active():
		f.Summary = fmt.Sprintf("Table %s %s is left over and still accepts forwarded pod traffic.", id.Family, id.Name)
	}
	j.offerPurge(&f)
	j.find(f)
}

// judgeBare tells of rules that an old generation wrote into the base chains, where no later one looks for them.
func (j *judgement) judgeBare(s sight, old []flannel.Trace) {
	for _, t := range old {
		for _, w := range flannel.Expected(t.Networks, t.Subnets, t.Generation, t.Options, s.backend, s.family) {
			d := flannel.Compare(s.rules, w)
			if d.Found == 0 {
				continue
			}
			d.State, d.Wanted = flannel.ChainLeftover, 0
			d.Rules = slices.DeleteFunc(d.Rules, func(r flannel.RuleDiff) bool { return r.Found == 0 })
			j.chains = append(j.chains, d)
			j.findBare(s, t, d)
		}
	}
}

func (j *judgement) findBare(s sight, t flannel.Trace, d flannel.ChainDiff) {
	f := Finding{ID: "old-generation-rules", Severity: Warning, Object: d.ID.String(), Chain: d.ID}
	verb := "are left over"
	if s.own != nil && j.due() {
		verb = "stand before those of today and win"
	}
	f.Summary = fmt.Sprintf("%s of Flannel %s in %s %s: no later Flannel removes them.",
		rules(d.Found), era(t.Generation), j.name(d.ID), verb)
	for _, r := range d.Rules {
		f.Detail = append(f.Detail, fmt.Sprintf("%d: %s", r.Found, text(r.Rule, d.ID)))
	}
	j.offerPurge(&f)
	j.find(f)
}

// era names the versions that wrote a generation without chains of its own.
func era(g flannel.Generation) string {
	switch g {
	case flannel.GenV080:
		return "v0.8–v0.10"
	case flannel.GenV0110:
		return "v0.11–v0.16.1"
	}
	return "v0.16.2–v0.19"
}

// offerPurge offers to remove what Flannel does not use, if it is known that it does not.
func (j *judgement) offerPurge(f *Finding) {
	f.Detail = append(f.Detail, j.presence())
	if cni := j.otherCNI(); cni != "" {
		f.Detail = append(f.Detail, "another network plugin is here: "+cni)
	}
	f.Remedy = RemedyPurge
	if j.flannel.State == FlannelUnknown {
		f.Remedy, f.Refused = RemedyNone, "whether Flannel runs here is not known, and a running Flannel may need it"
	}
}

// otherCNI names interfaces of other network plugins.
func (j *judgement) otherCNI() string {
	var names []string
	for _, l := range j.facts.Links.Value {
		for _, prefix := range []string{"vxlan.calico", "vxlan-v6.calico", "cali", "cilium_", "kube-bridge", "weave"} {
			if strings.HasPrefix(l.Name, prefix) && len(names) < 3 {
				names = append(names, flannel.Printable(l.Name))
				break
			}
		}
	}
	return strings.Join(names, ", ")
}

func rulesAndJumps(p place) string {
	jumps := "no jump"
	switch {
	case p.id.Backend == flannel.Nftables && p.hooks > 0:
		jumps = "called by the kernel"
	case p.hooks == 1:
		jumps = "1 jump"
	case p.hooks > 1:
		jumps = fmt.Sprintf("%d jumps", p.hooks)
	}
	return fmt.Sprintf("%s: %s, %s", p.id.Short(), rules(p.rules), jumps)
}

func rules(n int) string {
	if n == 1 {
		return "1 rule"
	}
	return fmt.Sprintf("%d rules", n)
}

// text is a rule fit for a terminal.
func text(r flannel.Rule, id flannel.ChainID) string {
	return flannel.Printable(r.Text(id.Backend, id.Family))
}
