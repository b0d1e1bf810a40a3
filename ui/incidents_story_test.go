package ui

import (
	"fmt"
	"math"
	"slices"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

// someone is who runs iptables -F in the story.
func someone() *incident.Who {
	return &incident.Who{PID: 48213, Comm: "iptables", Origin: &incident.Origin{
		Cmdline: incident.Fact[[]string]{Value: []string{"iptables", "-w", "-t", "nat", "-F", "FLANNEL-POSTRTG"}, Certainty: incident.Exact, How: "read 3 ms after exec"},
		Parents: incident.Fact[[]incident.Ancestor]{Value: []incident.Ancestor{{PID: 47990, Comm: "bash"}, {PID: 812, Comm: "sshd"}}, Certainty: incident.Exact, How: "read 3 ms after exec"},
	}}
}

func resync() *incident.Who {
	return &incident.Who{PID: 48290, Comm: "iptables-restor", Origin: &incident.Origin{
		Parents: incident.Fact[[]incident.Ancestor]{Value: []incident.Ancestor{{PID: 2210, Comm: "flanneld"}}, Certainty: incident.Exact, How: "read 1 ms after exec"},
	}}
}

// closed is an incident in which every rule of a chain went, and came back.
func closed(n int, kind incident.Kind, id flannel.ChainID, from time.Time, d time.Duration, lost int) incident.Incident {
	return incident.Incident{
		Number: n, Kind: kind, Severity: diagnose.Critical, Start: at(from), End: at(from.Add(d)), Complete: true,
		Spells: []incident.Spell{{Chain: id, State: flannel.ChainEmpty, From: at(from), To: at(from.Add(d)), Lost: lost}},
	}
}

// incidents is the story a few seconds on, after a morning of seven incidents, the last of them the third of its kind.
func incidents() *incident.View {
	v := recovered()
	masq, fwd := flannel.MasqChain(flannel.IptablesNft, flannel.IPv4), flannel.ForwardChain(flannel.IptablesNft, flannel.IPv4)
	var list []incident.Incident
	for n, d := range []time.Duration{4100, 380, 4900, 412, 4301, 97} {
		i := closed(n+1, incident.KindFlushed, masq, noon.Add(time.Duration(n-7)*8*time.Minute), d*time.Millisecond, 6)
		i.By, i.RecoveredBy = someone(), resync()
		if n%2 == 1 {
			i.Kind, i.By = incident.KindStartup, resync()
			i.Spells = append(i.Spells, incident.Spell{Chain: fwd, State: flannel.ChainEmpty, From: i.Start, To: i.End, Lost: 2})
		}
		list = append(list, i)
	}
	list[0].Before = true
	last := v.Incidents[0]
	last.Number, last.By, last.RecoveredBy, last.Generation = 7, someone(), resync(), 4812
	last.SameCause = []int{1, 3, 5}
	last.Verified = last.End.Add(901 * time.Millisecond)
	last.Effects = []string{"v4 masquerading: new connections of pods in 10.244.3.0/24 to the outside left with pod addresses"}
	v.Incidents = append(list, last)
	for i := range v.Events {
		switch e := &v.Events[i]; e.Kind {
		case incident.EventEmptied:
			e.Who, e.Generation = someone(), 4812
		case incident.EventRefilled:
			e.Who, e.Generation = resync(), 4813
		}
	}
	c := &v.Chains[slices.IndexFunc(v.Chains, func(c incident.ChainView) bool { return c.ID == masq })]
	s := &story{rng: newStory().rng}
	values := s.curve(41, int(v.Bucket)+1)
	for i := int(last.Start.Sub(v.Started) / incident.Step); i < int(last.End.Sub(v.Started)/incident.Step); i++ {
		values[i] = math.NaN()
	}
	c.History = incident.SeriesOf(0, values...)
	return v
}

// openIncident is the emptied node with its incident, in which the forward chains went too.
func openIncident() *incident.View {
	v := emptied()
	v.Incidents = []incident.Incident{{
		Number: 1, Kind: incident.KindRulesetFlush, Severity: diagnose.Critical, Start: at(flushed), Open: true, Uncertain: true, Generation: 4812,
		Effects: []string{
			"v4 masquerading: new connections of pods in 10.244.3.0/24 to the outside left with pod addresses",
			"v4 forwarding: traffic of pods in 10.244.3.0/24 passed only where FORWARD's policy and other rules let it",
		},
	}}
	i := &v.Incidents[0]
	for n, b := range []flannel.Backend{flannel.IptablesNft, flannel.IptablesNft, flannel.Nftables, flannel.Nftables, flannel.Nftables, flannel.Nftables} {
		f := flannel.Families[n%2]
		id := flannel.MasqChain(b, f)
		if n > 3 {
			id = flannel.ForwardChain(b, f)
		}
		i.Spells = append(i.Spells, incident.Spell{Chain: id, State: flannel.ChainEmpty, From: at(flushed.Add(time.Duration(n) * 70 * time.Millisecond)), Open: true, Lost: 6 - n})
	}
	return v
}

// forgotten is an incident of so long ago that its events are no longer kept, and whose chain is gone.
func forgotten() *incident.View {
	v := incidents()
	v.Events, v.Chains = nil, nil
	v.Incidents[6].Complete, v.Incidents[6].RecoveredBy, v.Incidents[6].By, v.Incidents[6].Generation = false, nil, nil, 0
	return v
}

// findings is a node with something wrong of every severity.
func findings() *incident.View {
	v := emptied()
	v.Findings[0].Summary = "v4 nat FLANNEL-POSTRTG is empty: new connections of pods to the outside leave with pod addresses and get no answer."
	v.Findings[0].Detail = []string{"flanneld 2210 runs since 06:12:40", "Flannel repairs its rules every 5 s as seen here: none of its repairs came"}
	v.Findings[0].Remedy = diagnose.RemedyReapply
	v.Findings[1].Refused = "the rule is not Flannel's, and flanwatch removes no rule of others"
	for i := range 9 {
		v.Findings[1].Detail = append(v.Findings[1].Detail, fmt.Sprintf("rule %d of FORWARD: -s 10.244.%d.0/24 -m comment --comment \"a long comment by somebody else\" -j REJECT", i+1, i))
	}
	v.Findings = append(v.Findings,
		diagnose.Finding{
			ID: "flows-bare", Severity: diagnose.Warning, Object: "pod connections", Summary: "640 connections of pods to the outside live on without source NAT.",
			Detail: []string{"the kernel translates a connection by its first packet"}, Remedy: diagnose.RemedyUnstick,
		},
		diagnose.Finding{
			ID: "rule-variant", Severity: diagnose.Info, Object: "iptables-nft ip6 nat FLANNEL-POSTRTG",
			Summary: "v6 nat FLANNEL-POSTRTG masquerades without --random-fully.", Remedy: diagnose.RemedyNone,
		})
	return v
}

func gone(m *model) {
	m.page, m.finding.set = pageFinding, true
	m.finding.key = findingKey{"chain-missing", "iptables-nft ip nat FLANNEL-POSTRTG"}
}

var laterScenes = []scene{
	{"incidents", incidents, func(m *model) { m.page = pageIncidents }},
	{"no-incidents", healthy, func(m *model) { m.page = pageIncidents }},
	{"incident", incidents, func(m *model) { m.page, m.cursor = pageIncident, 1 }},
	{"incident-open", openIncident, func(m *model) { m.page = pageIncident }},
	{"incident-forgotten", forgotten, func(m *model) { m.page = pageIncident }},
	{"findings", findings, func(m *model) { m.page = pageFindings }},
	{"no-findings", healthy, func(m *model) { m.page = pageFindings }},
	{"unread-findings", readerFailing, func(m *model) { m.page = pageFindings }},
	{"finding", findings, func(m *model) { m.page = pageFinding; m.finding.move(findingKeys(m.view.Findings), 1) }},
	{"finding-gone", findings, gone},
	{"leftovers", leftovers, func(m *model) { m.page = pageLeftovers }},
	{"leftovers-below", leftovers, func(m *model) { m.page = pageLeftovers; m.leftover.move(leftoverKeys(m.leftoverRows()), 8) }},
	{"no-leftovers", healthy, func(m *model) { m.page = pageLeftovers }},
}

// leftovers is a node on the day after a migration.
func leftovers() *incident.View {
	v := healthy()
	v.Flannel.State = diagnose.FlannelLeftover
	v.Hunted = flannel.Know(struct{}{}, "/", v.Now)
	saved := []string{"/etc/iptables/rules.v4, lines 14, 15, 16, 17, 18, 19, 20, 23, …"}
	chain := func(id flannel.ChainID, active bool, why ...string) diagnose.Remain {
		return diagnose.Remain{
			Kind: diagnose.RemainChain, Backend: id.Backend, Family: id.Family, Object: id.String(), Active: active, Why: why, Returns: saved,
		}
	}
	v.Leftovers = []diagnose.Remain{
		chain(flannel.MasqChain(flannel.IptablesNft, flannel.IPv4), true, "v4 nat FLANNEL-POSTRTG: 6 rules, 1 jump", "its rules have met 48211 connections"),
		chain(flannel.ForwardChain(flannel.IptablesNft, flannel.IPv4), true, "v4 filter FLANNEL-FWD: 2 rules, 1 jump", "its rules have met 9210422 packets"),
		chain(flannel.MasqChain(flannel.IptablesLegacy, flannel.IPv6), false, "v6 nat FLANNEL-POSTRTG: 0 rules, no jump"),
		{
			Kind: diagnose.RemainTable, Backend: flannel.Nftables, Family: flannel.IPv6, Object: "nftables ip6 flannel-ipv6",
			Why: []string{"it holds nothing"},
		},
		{Kind: diagnose.RemainLink, Object: "flannel.1", Why: []string{"type vxlan, 10.244.3.0/32", "it keeps UDP port 8472"}},
		{Kind: diagnose.RemainLink, Object: "cni0", Active: true, Why: []string{"type bridge, 10.244.3.1/24", "plugged into it: 3 pods"}},
		{
			Kind: diagnose.RemainConfig, Object: "/etc/cni/net.d/10-flannel.conflist", Returns: []string{"it lies on the disk"},
			Why: []string{"another configuration stands before it, so no runtime takes it", "plugins flannel, portmap"},
		},
		{Kind: diagnose.RemainFile, Object: "/run/flannel/subnet.env", Why: []string{"its presence proves nothing; it is gone after a reboot"}},
		{
			Kind: diagnose.RemainSaved, Object: "/etc/iptables/rules.v4", Active: true, Returns: []string{"it lies on the disk"},
			Why: []string{saved[0], "-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment \"flanneld masq\" -j RETURN"},
		},
	}
	return v
}
