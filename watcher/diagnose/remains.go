package diagnose

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"flanwatch/conntrack"
	"flanwatch/flannel"
)

// RemainKind is the sort of a thing that Flannel leaves; the words are part of the JSON contract.
type RemainKind string

// The sorts, in the order in which a purge removes them.
const (
	RemainChain       RemainKind = "chain"        // with its jumps
	RemainBare        RemainKind = "bare-rules"   // of an old generation, in the base chains
	RemainTable       RemainKind = "table"        // native
	RemainConnections RemainKind = "connections"  // that keep a translation
	RemainLink        RemainKind = "link"         //
	RemainRoute       RemainKind = "route"        //
	RemainFile        RemainKind = "file"         //
	RemainConfig      RemainKind = "cni-config"   //
	RemainPool        RemainKind = "reservations" // of addresses
	RemainSaved       RemainKind = "saved-rules"  // that come back at boot
)

// RemainKinds lists the sorts in display order.
var RemainKinds = []RemainKind{
	RemainChain, RemainBare, RemainTable, RemainConnections, RemainLink, RemainRoute, RemainConfig, RemainPool, RemainFile, RemainSaved,
}

// Remain is one thing that Flannel left on the node and does not use.
type Remain struct {
	Kind    RemainKind      `json:"kind"`
	Backend flannel.Backend `json:"backend,omitzero"` // of rules
	Family  flannel.Family  `json:"family,omitzero"`  // of rules
	Object  string          `json:"object"`
	Active  bool            `json:"active"` // packets meet it, or programs follow it
	Why     []string        `json:"evidence"`
	Returns []string        `json:"returns"` // what brings it back at boot
}

// gone tells whether Flannel is known not to be here, nor to be about to come back.
func (j *judgement) gone() bool {
	return !j.due() && (j.facts.Procs.State == flannel.Known || j.facts.Procs.State == flannel.Absent)
}

// remain notes a thing that is left.
func (j *judgement) remain(r Remain) {
	if r.Why == nil {
		r.Why = []string{}
	}
	r.Returns = j.returns(r)
	j.remains = append(j.remains, r)
}

// returns says what brings a thing back at boot.
func (j *judgement) returns(r Remain) []string {
	out := []string{}
	switch r.Kind {
	case RemainChain, RemainBare, RemainTable:
		for _, s := range j.facts.Remains.Value.Saved {
			out = append(out, savedWords(s))
		}
	case RemainConfig, RemainPool, RemainSaved:
		out = append(out, "it lies on the disk")
	case RemainFile:
		if !strings.HasPrefix(r.Object, "/run/") {
			out = append(out, "it lies on the disk")
		}
	}
	return out
}

func savedWords(s SavedRules) string {
	lines := make([]string, 0, listed)
	for i, n := range s.Lines {
		if i == listed {
			lines = append(lines, "…")
			break
		}
		lines = append(lines, fmt.Sprint(n))
	}
	word := "line "
	if len(s.Lines) > 1 {
		word = "lines "
	}
	return flannel.Printable(s.Path) + ", " + word + strings.Join(lines, ", ")
}

// remainRules notes what is left of rules in a backend and family.
func (j *judgement) remainRules(s sight, left Leftover) {
	for _, id := range left.Chains {
		if id.Backend == flannel.Nftables {
			continue // the table holds them
		}
		p := s.masq
		if id == s.forward.id {
			p = s.forward
		}
		r := Remain{Kind: RemainChain, Backend: s.backend, Family: s.family, Object: id.String(), Active: p.active()}
		r.Why = append(r.Why, rulesAndJumps(p))
		r.Why = append(r.Why, j.counts(s.rules.Chain(id))...)
		j.remain(r)
	}
	if left.Table {
		r := Remain{Kind: RemainTable, Backend: s.backend, Family: s.family, Object: s.masq.id.TableID().String()}
		r.Active = s.masq.active() || s.forward.active()
		for _, p := range s.places() {
			r.Why = append(r.Why, rulesAndJumps(p))
		}
		if r.Active {
			r.Why = append(r.Why, "its rules have no counters: whether packets meet them cannot be told")
		}
		j.remain(r)
	}
	for _, t := range left.Bare {
		j.remain(Remain{
			Kind: RemainBare, Backend: s.backend, Family: s.family, Active: true,
			Object: fmt.Sprintf("%s %s rules of Flannel %s", s.backend, s.family, era(t.Generation)),
			Why:    []string{"they stand in the base chains, where every packet passes"},
		})
	}
}

// counts says how much the rules of a chain have counted, and whether they still do.
func (j *judgement) counts(c *flannel.Chain) []string {
	var packets uint64
	counted := false
	for _, e := range c.Entries {
		packets += e.Counter.Packets
		counted = counted || e.Counted
	}
	if !counted {
		return nil
	}
	what := "packets"
	if c.ID.Table == flannel.TableNat {
		what = "connections"
	}
	return []string{fmt.Sprintf("its rules have met %d %s", packets, what)}
}

// judgeRemains tells of what Flannel left beside rules: connections, links, routes and files.
func (j *judgement) judgeRemains() {
	if j.gone() {
		j.remainConnections()
		j.remainLinks()
		j.remainRoutes()
		j.remainFiles()
	}
	j.judgeSaved()
}

func (j *judgement) remainConnections() {
	s, known := j.facts.Flows.Get()
	if n := s.Kinds[conntrack.Translated].Flows; known && n > 0 {
		j.remain(Remain{
			Kind: RemainConnections, Object: "pod connections", Active: true,
			Why: append([]string{fmt.Sprintf("%s from pod to pod under another address", counted(n, "connection"))}, examples(&s, conntrack.Translated)...),
		})
	}
}

// remainLinks notes the links of Flannel's backends, and the bridge of its plugin.
func (j *judgement) remainLinks() {
	r := &j.facts.Around.Routing.Value
	for _, l := range r.Links {
		if !flannelsLink(l.Name) && (l.Name != "cni0" || !j.flannelsBridge(l)) {
			continue
		}
		name := flannel.Printable(l.Name)
		f := Finding{ID: "leftover-link", Severity: Info, Object: name}
		f.Summary = fmt.Sprintf("The link %s is left over.", name)
		f.Detail = append(f.Detail, fmt.Sprintf("type %s, %s", flannel.Printable(l.Type), orWord(join(l.Addresses), "no address")))
		if l.Port > 0 {
			f.Detail = append(f.Detail, fmt.Sprintf("it keeps UDP port %d", l.Port))
		}
		j.offerPurge(&f)
		plugged := l.Name == "cni0" && r.Ports > 0
		if plugged {
			f.Detail = append(f.Detail, fmt.Sprintf("plugged into it: %s", podCount(r.Ports)))
			f.Remedy, f.Refused = RemedyNone, "pods are plugged into it and would lose their network"
		}
		j.find(f)
		j.remain(Remain{Kind: RemainLink, Object: name, Active: plugged, Why: f.Detail})
	}
}

// flannelsBridge tells whether cni0 has an address of Flannel's networks, or nothing else tells whose it is.
func (j *judgement) flannelsBridge(l Interface) bool {
	networks := j.facts.Node.Networks.Value
	if len(networks) == 0 || len(l.Addresses) == 0 {
		return j.flannel.State == FlannelLeftover
	}
	for _, a := range l.Addresses {
		for _, n := range networks {
			if n.Contains(a.Addr()) {
				return true
			}
		}
	}
	return false
}

// remainRoutes notes the blackhole of the node's subnet, and routes to subnets of other nodes that no plugin that is here made.
func (j *judgement) remainRoutes() {
	r := &j.facts.Around.Routing.Value
	for _, h := range r.Holes {
		if h.Protocol == "bird" || h.Protocol == "calico" || !slices.Contains(j.facts.Node.Subnets.Value, h.To) {
			continue
		}
		j.leaveRoute("blackhole "+h.To.String(), "packets to addresses of the node's old subnet that no pod has vanish in it")
	}
	for _, x := range r.Routes {
		over := flannelsLink(x.Link)
		host := x.Link == r.Uplink && x.Protocol != "bird" && x.Protocol != "calico" && j.otherCNI() == "" && x.Protocol != "kernel"
		inside := slices.ContainsFunc(j.facts.Node.Networks.Value, func(n netip.Prefix) bool { return n.Overlaps(x.To) && n.Bits() < x.To.Bits() })
		if inside && (over || host) {
			j.leaveRoute(fmt.Sprintf("%s via %s dev %s", x.To, x.Via, flannel.Printable(x.Link)), "it leads to the pods of another node's old subnet")
		}
	}
}

func (j *judgement) leaveRoute(object, effect string) {
	f := Finding{ID: "leftover-route", Severity: Info, Object: object, Detail: []string{effect}}
	f.Summary = fmt.Sprintf("The route %s is left over.", object)
	j.offerPurge(&f)
	j.find(f)
	j.remain(Remain{Kind: RemainRoute, Object: object, Active: true, Why: f.Detail})
}

// remainFiles notes what lies in files.
func (j *judgement) remainFiles() {
	rem := &j.facts.Remains.Value
	for _, x := range rem.Files {
		effect := "nothing reads it while Flannel is not here"
		if x.Path == "/run/flannel/subnet.env" {
			effect = "its presence proves nothing; it is gone after a reboot"
		}
		j.leaveFile(RemainFile, x.Path, false, effect, fmt.Sprintf("written %s", x.Written.UTC().Format("2006-01-02 15:04")))
	}
	for i, c := range rem.Configs {
		if !c.Flannels() {
			continue
		}
		first := !slices.ContainsFunc(rem.Configs[:i], func(d CNIConfig) bool { return path.Dir(d.Path) == path.Dir(c.Path) })
		effect := "another configuration stands before it, so no runtime takes it"
		if first {
			effect = "it is the first of its folder: new pods are connected by Flannel's plugin, or not at all"
		}
		j.leaveFile(RemainConfig, c.Path, first, effect, "plugins "+flannel.Printable(strings.Join(c.Types, ", ")))
	}
	for _, p := range rem.Pools {
		if j.flannelsPool(p) {
			j.leaveFile(RemainPool, p.Path, false, fmt.Sprintf("%d addresses are reserved in it", p.Reserved))
		}
	}
}

func (j *judgement) leaveFile(kind RemainKind, name string, active bool, evidence ...string) {
	f := Finding{ID: "leftover-file", Severity: Info, Object: flannel.Printable(name), Detail: evidence}
	f.Summary = fmt.Sprintf("%s is left over.", flannel.Printable(name))
	j.offerPurge(&f)
	if kind == RemainFile && !strings.HasPrefix(name, "/run/") {
		f.Remedy = RemedyNone
	}
	j.find(f)
	j.remain(Remain{Kind: kind, Object: f.Object, Active: active, Why: f.Detail})
}

// judgeSaved tells of firewall files that hold rules of Flannel, and load them at boot.
func (j *judgement) judgeSaved() {
	for _, s := range j.facts.Remains.Value.Saved {
		f := Finding{ID: "leftover-saved-rules", Severity: Info, Object: flannel.Printable(s.Path)}
		f.Summary = fmt.Sprintf("%s holds %s of Flannel, which are loaded at boot before Flannel starts.", flannel.Printable(s.Path), rules(len(s.Lines)))
		if j.gone() {
			f.Severity = Warning
			f.Summary = fmt.Sprintf("%s brings %s of Flannel back at boot.", flannel.Printable(s.Path), rules(len(s.Lines)))
		}
		f.Detail = []string{savedWords(s), flannel.Printable(s.First)}
		f.Refused = "flanwatch edits no file of the node: take these lines out, or save the rules anew after a purge"
		j.find(f)
		if j.gone() {
			j.remain(Remain{Kind: RemainSaved, Object: f.Object, Active: true, Why: f.Detail})
		}
	}
}
