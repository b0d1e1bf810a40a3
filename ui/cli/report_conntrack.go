package cli

import (
	"fmt"
	"strings"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

// conntrackReport is check's word on connection tracking. What is unknown is null.
type conntrackReport struct {
	Count              conntrack.Count `json:"count"`
	Max                conntrack.Count `json:"max"`
	Source             *string         `json:"source"`
	BareFlows          conntrack.Count `json:"bareFlows"`
	TranslatedPodFlows conntrack.Count `json:"translatedPodFlows"`
	InsertFailed       conntrack.Count `json:"insertFailed"`
	Drop               conntrack.Count `json:"drop"`
	EarlyDrop          conntrack.Count `json:"earlyDrop"`
	ClashResolve       conntrack.Count `json:"clashResolve"`

	state flannel.ReadState
	why   string
}

func newConntrackReport(t incident.TableView) conntrackReport {
	r := conntrackReport{state: t.Health.State, why: t.Health.Why}
	if h, known := t.Health.Get(); known {
		r.Count, r.Max, r.Source = h.Count, h.Max, &h.Source
		r.InsertFailed, r.Drop, r.EarlyDrop, r.ClashResolve = h.InsertFailed, h.Drop, h.EarlyDrop, h.ClashResolve
	}
	if s, known := t.Flows.Get(); known {
		r.TranslatedPodFlows = conntrack.Counted(s.Kinds[conntrack.Translated].Flows)
		if due(s.Masquerade) {
			r.BareFlows = conntrack.Counted(s.Kinds[conntrack.Bare].Flows)
		}
	}
	return r
}

// due tells whether pods are meant to be translated at all: if not, no connection is bare.
func due(masquerade map[flannel.Family]bool) bool {
	for _, yes := range masquerade {
		if yes {
			return true
		}
	}
	return false
}

// unreadableTable lists what of connection tracking could not be read.
func unreadableTable(t incident.TableView) []unreadable {
	var out []unreadable
	if t.Health.State == flannel.Unreadable {
		out = append(out, unreadable{"connection tracking", t.Health.Why, diagnose.GroupConntrack})
	}
	if t.Flows.State == flannel.Unreadable {
		out = append(out, unreadable{"connections", t.Flows.Why, diagnose.GroupConntrack})
	}
	return out
}

func (r conntrackReport) text(b *strings.Builder) {
	switch r.state {
	case flannel.Unread:
		return
	case flannel.Known:
	default:
		fmt.Fprintf(b, "\nconnection tracking  %s\n", flannel.Printable(r.why))
		return
	}
	fmt.Fprintf(b, "\nconnection tracking  %s of %s entries, from %s\n", figure(r.Count), figure(r.Max), *r.Source)
	fmt.Fprintf(b, "  insert_failed %s, drop %s, early_drop %s, clash_resolve %s\n",
		figure(r.InsertFailed), figure(r.Drop), figure(r.EarlyDrop), figure(r.ClashResolve))
	if r.TranslatedPodFlows.Known {
		fmt.Fprintf(b, "  bare flows %s, translated pod flows %s\n", figure(r.BareFlows), figure(r.TranslatedPodFlows))
	}
}

func figure(c conntrack.Count) string {
	if !c.Known {
		return "–"
	}
	return fmt.Sprint(c.N)
}
