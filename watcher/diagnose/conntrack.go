package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"flanwatch/conntrack"
	"flanwatch/flannel"
)

// judgeConntrack says what connection tracking suffers from, and which connections keep what a gap or a dead rule made.
func (j *judgement) judgeConntrack() {
	if h, known := j.facts.Conntrack.Get(); known {
		for _, s := range conntrack.Symptoms(h, j.history.Conntrack) {
			j.judgeSymptom(s, h)
		}
	}
	if s, known := j.facts.Flows.Get(); known {
		j.judgeBareFlows(&s)
		j.judgeTranslatedFlows(&s)
		j.judgeStaleFlows(&s)
		j.judgeArrivingFlows(&s)
	}
}

const tableObject = "connection tracking"

func (j *judgement) judgeSymptom(s conntrack.Symptom, h conntrack.Health) {
	t := j.history.Conntrack
	f := Finding{Object: tableObject, Summary: upper(s.Words(h, t)) + ".", Detail: j.tableDetail(h, t)}
	switch s {
	case conntrack.Full:
		f.ID, f.Severity = "conntrack-full", Critical
		f.Detail = append(f.Detail, "the kernel logs \"nf_conntrack: table full, dropping packet\"",
			"see who has the most entries with flanwatch flows; raise net.netfilter.nf_conntrack_max only together with the hash")
		f.Refused = "emptying the table would cut every connection on the node"
		if t.Drop.Known && t.Drop.N == 0 {
			f.Severity = Warning
			f.Summary = fmt.Sprintf("The connection table is full (%d of %d).", h.Count.N, h.Max.N)
		}
	case conntrack.Evicting:
		f.ID, f.Severity = "conntrack-evicting", Warning
		f.Detail = append(f.Detail, "the kernel logs nothing while it finds entries to evict; those evicted were not answered in both directions yet")
		f.Refused = "the maximum (net.netfilter.nf_conntrack_max) is the node's to set"
	case conntrack.PortRace:
		f.ID, f.Severity = "snat-port-race", Warning
		f.Detail = append(f.Detail, "a connection that loses is retried by its sender after 1 s, 3 s, …")
		f.Detail = append(f.Detail, j.randomFully())
		f.Refused = "the table is not full: a larger maximum would change nothing"
	case conntrack.Clash:
		f.ID, f.Severity = "conntrack-clash", Info
	}
	j.find(f)
}

func (j *judgement) tableDetail(h conntrack.Health, t conntrack.Trend) []string {
	var out []string
	if fill, ok := h.Fill(); ok {
		out = append(out, fmt.Sprintf("%d of %d entries in use (%.0f %%), read from %s", h.Count.N, h.Max.N, 100*fill, h.Source))
	}
	var words []string
	for _, c := range []struct {
		name string
		n    conntrack.Count
	}{
		{"insert_failed", t.InsertFailed},
		{"drop", t.Drop},
		{"early_drop", t.EarlyDrop},
		{"clash_resolve", t.ClashResolve},
	} {
		if c.n.Known {
			words = append(words, fmt.Sprintf("%s +%d", c.name, c.n.N))
		}
	}
	if len(words) > 0 {
		out = append(out, fmt.Sprintf("in %.1f s: %s", t.Over.Seconds(), strings.Join(words, ", ")))
	}
	return out
}

// randomFully says what the masquerade rules do about the race.
func (j *judgement) randomFully() string {
	plain, random := 0, 0
	for _, s := range j.sights {
		if c := s.rules.Chain(s.masq.id); c != nil {
			for _, e := range c.Entries {
				switch {
				case e.Rule.Target.Kind != flannel.TargetMasquerade:
				case e.Rule.Target.RandomFully:
					random++
				default:
					plain++
				}
			}
		}
	}
	switch {
	case plain > 0:
		return "Flannel's masquerade rules choose ports in order: with --random-fully the race all but goes away"
	case random > 0:
		return "Flannel's masquerade rules choose ports fully at random, so it is another rule, or one destination is asked too often"
	}
	return "no masquerade rule of Flannel's was found"
}

// unmade are findings with which a deleted bare connection would come back bare.
var unmade = []string{
	"chain-empty", "chain-missing", "hook-missing", "rule-missing", "table-missing", "flannel-crash-looping",
}

func (j *judgement) judgeBareFlows(s *conntrack.Survey) {
	n := s.Kinds[conntrack.Bare]
	if n.Flows == 0 {
		return
	}
	f := Finding{
		ID: "flows-bare", Severity: Warning, Object: "pod connections", Remedy: RemedyUnstick,
		Summary: fmt.Sprintf("%s of pods to the outside %s on without source NAT.", counted(n.Flows, "connection"), live(n.Flows)),
		Detail: append(tallyDetail(n), "the kernel translates a connection by its first packet: one that began while the masquerade rule "+
			"was missing stays as it is after the rule is back"),
	}
	f.Detail = append(f.Detail, examples(s, conntrack.Bare)...)
	if i := slices.IndexFunc(j.findings, func(g Finding) bool { return slices.Contains(unmade, g.ID) }); i >= 0 {
		f.Remedy = RemedyNone
		f.Refused = "the rules are not in place (" + j.findings[i].ID + "): they would begin anew without source NAT"
	}
	j.find(f)
}

func (j *judgement) judgeTranslatedFlows(s *conntrack.Survey) {
	n := s.Kinds[conntrack.Translated]
	if n.Flows == 0 {
		return
	}
	f := Finding{
		ID: "flows-translated", Severity: Warning, Object: "pod connections", Remedy: RemedyUnstick,
		Summary: fmt.Sprintf("%s from pod to pod %s under another address than the pod's.", counted(n.Flows, "connection"), run(n.Flows)),
		Detail:  append(tallyDetail(n), "network policies do not recognize the pod behind such an address, and the other pod sees the wrong source"),
	}
	f.Detail = append(f.Detail, examples(s, conntrack.Translated)...)
	j.find(f)
}

func (j *judgement) judgeStaleFlows(s *conntrack.Survey) {
	n := s.Kinds[conntrack.Stale]
	if n.Flows == 0 {
		return
	}
	j.find(Finding{
		ID: "stale-udp-flow", Severity: Warning, Object: "pod connections", Remedy: RemedyUnstick,
		Summary: fmt.Sprintf("%s %s datagrams to a pod that is no more.", counted(n.Flows, "UDP flow"), sends(n.Flows)),
		Detail: append([]string{"never answered, and neither a neighbour nor a route leads to the pod; each datagram keeps the entry alive"},
			examples(s, conntrack.Stale)...),
	})
}

func (j *judgement) judgeArrivingFlows(s *conntrack.Survey) {
	n := s.Kinds[conntrack.Arriving]
	if n.Flows == 0 {
		return
	}
	from := map[string]int{}
	for i := range s.Flows {
		if s.Flows[i].Kind == conntrack.Arriving {
			from[s.Flows[i].From]++
		}
	}
	nodes := make([]string, 0, len(from))
	for node := range from {
		nodes = append(nodes, node)
	}
	slices.Sort(nodes)
	j.find(Finding{
		ID: "arriving-snat", Severity: Info, Object: "pod connections",
		Summary: fmt.Sprintf("%s to pods here %s from the tunnel address of another node.", counted(n.Flows, "connection"), comes(n.Flows)),
		Detail: append([]string{
			"from " + strings.Join(nodes, ", "),
			"processes of that node itself have this address; pods have it only where a rule there translates them: look there",
		}, examples(s, conntrack.Arriving)...),
		Refused: "what translates them is on the other node",
	})
}

func tallyDetail(n conntrack.Tally) []string {
	return []string{fmt.Sprintf("%d answered, %d not", n.Replied, n.Flows-n.Replied)}
}

// maxListed is how many connections a finding names.
const maxListed = 5

func examples(s *conntrack.Survey, k conntrack.Kind) []string {
	var out []string
	for i := range s.Flows {
		if s.Flows[i].Kind == k && len(out) < maxListed {
			out = append(out, s.Flows[i].Flow.String())
		}
	}
	return out
}

func counted(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func live(n uint64) string  { return verb(n, "lives", "live") }
func run(n uint64) string   { return verb(n, "runs", "run") }
func sends(n uint64) string { return verb(n, "sends", "send") }
func comes(n uint64) string { return verb(n, "comes", "come") }

func verb(n uint64, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// masqueradeDue tells in which families pods are meant to leave with the node's address: where Flannel lives here and was
// told to masquerade, or, where that is not known, where its rule does. Beside a Flannel that is gone the present plugin may
// translate without the kernel's connection tracking.
func (j *judgement) masqueradeDue() map[flannel.Family]bool {
	due := map[flannel.Family]bool{}
	if j.flannel.State == FlannelLeftover || j.flannel.State == FlannelAbsent {
		return due
	}
	for _, f := range flannel.Families {
		if told, known := j.masqueradeOf(f).Get(); known {
			due[f] = told
		} else {
			due[f] = slices.ContainsFunc(j.sights, func(s sight) bool { return s.family == f && s.masq.any() })
		}
	}
	return due
}
