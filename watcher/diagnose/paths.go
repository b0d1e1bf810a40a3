package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"flanwatch/flannel"
	"flanwatch/flannel/path"
)

// Path is what becomes of a typical packet here, beside what should.
type Path struct {
	path.Verdict
	Expected path.Kind // path.Unknown where nothing tells
}

// Well tells whether the packet goes as it should, as far as anything tells.
func (p Path) Well() bool {
	return p.Kind == p.Expected || p.Expected == path.Unknown || p.Kind == path.May || p.Kind == path.Unknown ||
		p.Kind == path.Unchanged && p.Expected == path.Masqueraded && p.own() ||
		p.Kind == path.Masqueraded && p.Expected == path.Unchanged && p.own()
}

// own tells whether the packet has the node's address on its way out already: to give it that address changes nothing.
func (p Path) own() bool {
	return p.Packet.In == "" && (!p.Source.IsValid() || p.Source == p.Packet.Source)
}

// String names the path: "pod-to-outside (v4)".
func (p Path) String() string { return fmt.Sprintf("%s (%s)", p.Packet.Path, p.Packet.Family.Short()) }

// judgePaths compares what becomes of typical packets with what should, and names the rule that decides.
func (j *judgement) judgePaths() {
	r := j.facts.Paths
	if r.State != flannel.Known {
		return
	}
	evaluators := map[flannel.Family]*path.Evaluator{}
	for _, v := range r.Value.Verdicts {
		p := Path{Verdict: v, Expected: path.Unknown}
		if want, told := j.expectedOf(v.Packet, evaluators); told {
			p.Expected = want
		}
		j.paths = append(j.paths, p)
	}
	for _, p := range j.paths {
		if !p.Well() {
			j.judgePath(p)
		}
	}
	j.judgeShadows()
}

// expectedOf is what should become of a packet: between pods it keeps its source, whoever runs the network; the rest is what
// Flannel's own rules, complete and alone, would make of it.
func (j *judgement) expectedOf(p path.Packet, evaluators map[flannel.Family]*path.Evaluator) (path.Kind, bool) {
	switch p.Path {
	case path.PodToRemotePod, path.ForeignPodToRemotePod, path.RemotePodToPod:
		return path.Unchanged, j.due() || j.flannel.State == FlannelLeftover
	}
	if !j.due() || len(j.duties) == 0 || !j.toldMasquerade(p.Family) {
		return path.Unknown, false
	}
	e := evaluators[p.Family]
	if e == nil {
		e = path.New(j.dutiesAlone(), j.pathFacts(p.Family))
		evaluators[p.Family] = e
	}
	kind := e.Packet(p).Kind
	return kind, kind == path.Masqueraded || kind == path.Unchanged
}

// toldMasquerade tells whether it is known, by flags, files or rules, that pods are meant to be masqueraded or not.
func (j *judgement) toldMasquerade(f flannel.Family) bool {
	if _, known := j.masqueradeOf(f).Get(); known {
		return true
	}
	return slices.ContainsFunc(j.duties, func(w flannel.Wanted) bool { return w.ID.Family == f && masquerades(w.ID) && len(w.Rules) > 0 })
}

func (j *judgement) pathFacts(f flannel.Family) path.Facts {
	for i, p := range flannel.Families {
		if p == f && i < len(j.facts.Paths.Value.Facts) {
			return j.facts.Paths.Value.Facts[i]
		}
	}
	return path.Facts{}
}

// dutiesAlone is a node on which nothing but Flannel's rules is, all of them.
func (j *judgement) dutiesAlone() path.Tables {
	var t path.Tables
	for _, w := range j.duties {
		c := flannel.Chain{ID: w.ID, Present: true, Base: w.Base, Entries: entries(w.Rules)}
		if w.Base == nil && w.HookChain == (flannel.ChainID{}) {
			c.Base = baseChainOf(w.ID) // rules of a generation without chains of its own
		}
		t.Chains = append(t.Chains, c)
		if w.HookChain != (flannel.ChainID{}) {
			t.Chains = append(t.Chains, flannel.Chain{
				ID: w.HookChain, Present: true, Base: baseChainOf(w.HookChain), Entries: entries([]flannel.Rule{w.Hook}),
			})
		}
	}
	return t
}

func entries(rules []flannel.Rule) []flannel.Entry {
	list := make([]flannel.Entry, len(rules))
	for i, r := range rules {
		list[i].Rule = r
	}
	return list
}

// baseChainOf is the place of an iptables base chain that Flannel uses.
func baseChainOf(id flannel.ChainID) *flannel.BaseChain {
	if id.Table == flannel.TableNat {
		return &flannel.BaseChain{Type: "nat", Hook: "postrouting", Priority: 100, Policy: "accept"}
	}
	return &flannel.BaseChain{Type: "filter", Hook: "forward", Policy: "accept"}
}

// judgePath turns one path that does not go as it should into a finding, or into evidence of the finding that causes it.
func (j *judgement) judgePath(p Path) {
	if j.fold(p) {
		return
	}
	f := Finding{ID: j.pathFinding(p), Severity: j.pathSeverity(p), Summary: j.pathSummary(p), Remedy: RemedyNone}
	if f.ID == "pod-snat" && !j.due() {
		f.Remedy = RemedyPurge
	}
	if p.By != nil {
		f.Object = p.By.Backend.String() + " " + p.Packet.Family.String() + " " + p.By.Table + " " + p.By.Chain
		f.Refused = j.pathRefusal(p)
	} else {
		f.Object = string(p.Packet.Path) + " " + p.Packet.Family.String()
	}
	f.Detail = j.pathEvidence(p)
	for i, g := range j.findings { // one finding for all that one chain does
		if g.ID == f.ID && g.Object == f.Object {
			for _, line := range f.Detail {
				if !slices.Contains(j.findings[i].Detail, line) {
					j.findings[i].Detail = append(j.findings[i].Detail, line)
				}
			}
			if f.Severity.Rank() < g.Severity.Rank() {
				j.findings[i].Severity, j.findings[i].Summary = f.Severity, f.Summary
			}
			return
		}
	}
	j.find(f)
}

// explained are findings of chains that say why packets are not masqueraded, or not accepted.
var explained = []string{
	"table-missing", "chain-missing", "chain-empty", "hook-missing", "base-differs", "rule-missing", "rule-order", "subnet-mismatch",
	"leftover-chain", "leftover-table", "old-generation-rules",
}

// fold adds what a path suffers to the finding that causes it, if there is one.
func (j *judgement) fold(p Path) bool {
	for i := range j.findings {
		f := &j.findings[i]
		if slices.Contains(explained, f.ID) && f.Chain.Family == p.Packet.Family && j.causes(*f, p) {
			f.Detail = append(f.Detail, j.pathLine(p))
			return true
		}
	}
	return false
}

// causes tells whether a finding about a chain is why a path does not go as it should.
func (j *judgement) causes(f Finding, p Path) bool {
	left := strings.HasPrefix(f.ID, "leftover") || f.ID == "old-generation-rules"
	switch {
	case p.Kind == path.Masqueraded: // by the chain that is left over, or that holds the wrong rules
		return p.By != nil && p.By.Owner == path.OwnerFlannel && f.ID != "leftover-table" && f.Chain.Backend == p.By.Backend &&
			f.Chain.Table == p.By.Table && f.Chain.Name == p.By.Chain && !left
	case left:
		return false
	case p.Kind == path.Unchanged && p.Expected == path.Masqueraded:
		return masquerades(f.Chain) && !j.shielded(p)
	case p.Kind == path.Dropped:
		return !masquerades(f.Chain) && p.By != nil && p.By.Position == 0
	}
	return false
}

// shielded tells whether a rule of somebody else keeps the packet from Flannel's.
func (j *judgement) shielded(p Path) bool { return p.By != nil && p.By.Owner != path.OwnerFlannel }

// pathFinding is the id of what is wrong with a path.
func (j *judgement) pathFinding(p Path) string {
	damaged := p.By != nil && unconditional(p.By.Text) && p.By.Position > 0
	switch {
	case p.Kind == path.Dropped && (p.By == nil || p.By.Position == 0):
		return "forward-dropped"
	case p.Kind == path.Dropped && j.beforeFlannels(p) && p.By.Owner == path.OwnerUnknown:
		return "path-shadowed"
	case p.Kind == path.Dropped:
		return "foreign-drop"
	case p.By == nil:
		return "path-differs"
	case damaged && p.By.Owner == path.OwnerFlannel && p.Kind == path.Unchanged,
		damaged && p.Kind == path.Masqueraded && (p.By.Owner == path.OwnerPortmap || p.By.Owner == path.OwnerBridge):
		return "damaged-rule"
	case p.Kind == path.Masqueraded && p.By.Owner == path.OwnerFlannel:
		return "pod-snat"
	case p.Kind == path.Masqueraded:
		return "foreign-snat"
	case p.By.Owner == path.OwnerFlannel:
		return "path-differs"
	}
	return "path-shadowed"
}

// unconditional tells whether a rule has no condition: nothing but a comment before what it does.
func unconditional(text string) bool {
	r, err := flannel.ParseRule(text)
	if err != nil {
		return false
	}
	return !slices.ContainsFunc(r.Matches, func(m flannel.Match) bool { return m.Kind != flannel.MatchComment })
}

// beforeFlannels tells whether the deciding rule stands in the base chain in which Flannel's jump stands.
func (j *judgement) beforeFlannels(p Path) bool {
	return slices.ContainsFunc(j.duties, func(w flannel.Wanted) bool {
		id := w.HookChain
		return id.Family == p.Packet.Family && id.Backend == p.By.Backend && id.Table == p.By.Table && id.Name == p.By.Chain
	})
}

// pathSeverity weighs what happens to a path. A program that polices pods and runs here drops what it is told to drop.
func (j *judgement) pathSeverity(p Path) Severity {
	switch {
	case p.Kind == path.Dropped && p.By != nil && p.By.Position > 0 && j.polices(p.By.Owner):
		return Info
	case !j.runs() && !j.bereft():
		return Warning
	case p.Kind == path.Dropped && p.Packet.Path == path.OutsideToPod:
		return Warning
	case p.Kind == path.Dropped, p.Kind == path.Unchanged && p.Packet.Path == path.PodToOutside:
		return Critical
	}
	return Warning
}

// polices tells whether a program runs here that lets pods talk only as network policies say.
func (j *judgement) polices(owner string) bool {
	prefixes := map[string][]string{
		path.OwnerCalico: {"cali", "vxlan.calico"}, path.OwnerCilium: {"cilium_"}, path.OwnerKubeRouter: {"kube-bridge", "kube-dummy-if"},
	}[owner]
	return slices.ContainsFunc(j.facts.Links.Value, func(l Link) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(l.Name, p) })
	})
}

var pathWords = map[path.Name]string{
	path.PodToOutside:          "traffic of pods to the outside",
	path.PodToRemotePod:        "traffic of pods to pods of other nodes",
	path.ForeignPodToRemotePod: "traffic of pods outside Flannel's subnet to pods of other nodes",
	path.RemotePodToPod:        "traffic of other nodes' pods to pods here",
	path.OutsideToPod:          "traffic from outside to pods here",
	path.NodeToRemotePod:       "traffic of this node to pods of other nodes",
}

func (j *judgement) pathSummary(p Path) string {
	what := strings.ToUpper(pathWords[p.Packet.Path][:1]) + pathWords[p.Packet.Path][1:]
	who := "nothing"
	if p.By != nil {
		who = byWords(*p.By)
	}
	switch {
	case p.Kind == path.Dropped:
		return fmt.Sprintf("%s is dropped by %s.", what, who)
	case p.Kind == path.Masqueraded:
		return fmt.Sprintf("%s gets another source address by %s: who answers, or has a policy for pods, sees a node.", what, who)
	case p.By != nil:
		return fmt.Sprintf("%s leaves with pod addresses and gets no answer: %s decides first.", what, who)
	}
	return what + " leaves with pod addresses and gets no answer: no rule masquerades it."
}

// byWords names a rule for a sentence.
func byWords(b path.By) string {
	place := fmt.Sprintf("%s %s %s", b.Backend, flannel.Printable(b.Table), flannel.Printable(b.Chain))
	if b.Position == 0 {
		return "the policy of " + place
	}
	owner := ""
	if b.Owner != path.OwnerUnknown {
		owner = " of " + b.Owner
	}
	return fmt.Sprintf("rule %d%s in %s", b.Position, owner, place)
}

func (j *judgement) pathEvidence(p Path) []string {
	out := []string{j.pathLine(p)}
	if p.By != nil && p.By.Position > 0 {
		out = append(out, fmt.Sprintf("%d: %s", p.By.Position, flannel.Printable(p.By.Text)))
	}
	for _, s := range p.Trail {
		if p.By != nil && s.By == *p.By && s.Counted && s.Counter.Packets > 0 {
			out = append(out, fmt.Sprintf("it has counted %d packets", s.Counter.Packets))
		}
	}
	return out
}

// pathLine says in one line what becomes of a packet and what should.
func (j *judgement) pathLine(p Path) string {
	line := fmt.Sprintf("%s, %s to %s: %s, wanted %s", p, p.Packet.Source, p.Packet.Destination, p.Kind, p.Expected)
	if p.By != nil {
		line += ", by " + byWords(*p.By)
	}
	return line
}

func (j *judgement) pathRefusal(p Path) string {
	switch {
	case p.By.Owner == path.OwnerFlannel:
		return ""
	case p.By.Position == 0:
		return "a policy that drops protects the node; what pods need is a rule that accepts, before it"
	}
	return "the rule is not Flannel's, and flanwatch removes no rule of others"
}

// judgeShadows tells of Flannel's accept that stands before a chain of policies, which then sees nothing.
func (j *judgement) judgeShadows() {
	for _, s := range j.sights {
		if s.backend == flannel.Nftables || !s.forward.active() {
			continue
		}
		base := s.rules.Chain(baseOf(s.forward.id))
		seen := false
		for i := range base.Entries {
			to := base.Entries[i].Rule.Target.Chain
			seen = seen || to == s.forward.id.Name
			if !seen || !policyChain(to) {
				continue
			}
			owner := path.Owner(base.ID, base.Entries[i].Rule)
			j.find(Finding{
				ID: "policy-shadowed", Severity: Warning, Object: base.ID.String(), Chain: base.ID,
				Summary: fmt.Sprintf("Flannel's accept stands before %s in %s: network policies of %s see no forwarded pod traffic.",
					flannel.Printable(to), j.name(base.ID), owner),
				Detail:  []string{fmt.Sprintf("%d: %s", i+1, text(base.Entries[i].Rule, base.ID))},
				Remedy:  RemedyNone,
				Refused: "the order is for " + owner + " to put right, which inserts its jump first when it starts",
			})
			break
		}
	}
}

// policyChain tells the chains that police forwarded traffic of pods.
func policyChain(name string) bool {
	return slices.Contains([]string{"cali-FORWARD", "KUBE-ROUTER-FORWARD", "CILIUM_FORWARD", "WEAVE-NPC"}, name)
}
