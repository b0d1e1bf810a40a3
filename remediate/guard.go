package remediate

import (
	"fmt"
	"slices"
	"strings"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// The guards. Their names are for --override and for records.
const (
	GuardRunning      = "flannel-running"
	GuardLive         = "flannel-live"
	GuardStarting     = "flannel-starting"
	GuardUnknown      = "flannel-unknown"
	GuardStopped      = "flannel-stopped-now"
	GuardDialect      = "dialect-known"
	GuardBackend      = "backend-known"
	GuardReadable     = "readable"
	GuardNetworks     = "networks-known"
	GuardMasq         = "ip-masq"
	GuardFlags        = "random-fully-known"
	GuardOtherCNI     = "other-cni"
	GuardFlapping     = "flapping"
	GuardIncompatible = "incompatible-table"
	GuardForeign      = "foreign-rules"
	GuardRewritten    = "rewritten-since"
	GuardReceipt      = "receipt"
	GuardRules        = "rules-missing"
)

// Guard is one condition of a plan and how it was judged.
type Guard struct {
	Name   string `json:"guard"`
	OK     bool   `json:"ok"`
	Why    string `json:"why"`              // one sentence: what was found
	Change string `json:"change,omitempty"` // what would change it, where it is not met
	Judge  bool   `json:"judge"`            // a person can override it
}

// Refusal is a guard that is not met.
type Refusal = Guard

// judged tells whether guards stand in the way, and records those that a person overrode.
func judged(guards []Guard, c Choice) (passed []Guard, refused []Refusal) {
	for _, g := range guards {
		switch {
		case g.OK:
			passed = append(passed, g)
		case g.Judge && slices.Contains(c.Override, g.Name):
			g.Why = "overridden: " + g.Why
			passed = append(passed, g)
		default:
			refused = append(refused, g)
		}
	}
	return passed, refused
}

func met(name, why string) Guard { return Guard{Name: name, OK: true, Why: why} }

func runs(s diagnose.FlannelState) bool {
	return s == diagnose.FlannelLive || s == diagnose.FlannelStarting || s == diagnose.FlannelCrashing
}

// presence is the guard on whether Flannel's rules are due at all.
func (f Facts) presence(a diagnose.Assessment) Guard {
	switch s := a.Flannel.State; {
	case s == diagnose.FlannelUnknown:
		return Guard{
			Name: GuardUnknown, Why: "Whether Flannel runs here is not known: " + processes(a) + ".",
			Change: "run flanwatch where it can read /proc of the node's processes",
		}
	case s == diagnose.FlannelStarting:
		return Guard{
			Name: GuardStarting, Why: "flanneld is starting and fills its chains itself; a repair now could double its rules.",
			Change: "wait until its first repair period is over",
		}
	case !runs(s) && len(a.Due) == 0:
		return Guard{
			Name: GuardRunning, Why: "Flannel does not run here: " + processes(a) + ". Nothing would look after the rules.",
			Change: "start flanneld, which writes its rules itself",
		}
	case !runs(s):
		return met(GuardRunning, "Flannel ran here a moment ago and may come back")
	}
	return met(GuardRunning, processes(a))
}

// processes is the first piece of evidence: what was found of Flannel's processes.
func processes(a diagnose.Assessment) string {
	if len(a.Flannel.Evidence) == 0 {
		return "no evidence"
	}
	return a.Flannel.Evidence[0]
}

// dialect is the guard on whether it is known where the rules belong.
func (f Facts) dialect(a diagnose.Assessment, c Choice) []Guard {
	var out []Guard
	if runs(a.Flannel.State) && a.Flannel.Dialect == diagnose.DialectNone {
		out = append(out, Guard{
			Name: GuardDialect, Why: "Nothing tells whether flanneld is in iptables or in nftables mode.",
			Change: "make its net-conf.json readable, or let it write its rules once",
		})
	}
	backends := map[flannel.Backend]bool{}
	var names []string
	for _, w := range a.Due {
		if c.wants(w.ID) && !backends[w.ID.Backend] {
			backends[w.ID.Backend] = true
			names = append(names, w.ID.Backend.String())
		}
	}
	if len(names) > 1 {
		out = append(out, Guard{
			Name: GuardBackend, Change: "name the chains of one backend", Judge: true,
			Why: fmt.Sprintf("Flannel's rules lie in %s at once, and nothing tells which of them flanneld writes.", strings.Join(names, " and ")),
		})
	}
	return out
}

// readable is the guard on backends that could not be read although the rules may lie there.
func (f Facts) readable(a diagnose.Assessment) []Guard {
	var out []Guard
	for _, b := range []flannel.Backend{flannel.IptablesNft, flannel.IptablesLegacy} {
		r := f.Rules[b]
		if r.State != flannel.Unreadable && r.State != flannel.Unread {
			continue
		}
		if found(a) {
			continue
		}
		out = append(out, Guard{
			Name: GuardReadable, Judge: true,
			Why:    fmt.Sprintf("%s could not be read (%s) and may hold the rules.", b, flannel.Printable(orElse(r.Why, "not looked at"))),
			Change: "give flanwatch the privilege that is missing",
		})
	}
	return out
}

// found tells whether any rule that is due is there.
func found(a diagnose.Assessment) bool {
	return slices.ContainsFunc(a.Chains, func(d flannel.ChainDiff) bool { return d.Found > 0 })
}

func (f Facts) networks() Guard {
	if n := f.Node.Networks; n.State != flannel.Known {
		return Guard{
			Name: GuardNetworks, Why: "The networks of the pods are not known: " + orElse(flannel.Printable(n.Why), "no source tells them") + ".",
			Change: "name them with --network and --subnet",
		}
	}
	return met(GuardNetworks, "networks from "+flannel.Printable(f.Node.Networks.Source))
}

// masq is the guard for a node on which flanneld does not masquerade.
func (f Facts) masq(a diagnose.Assessment) []Guard {
	told, known := f.Node.IPMasq.Get()
	if !known || told {
		return nil
	}
	return []Guard{{
		Name: GuardMasq, Why: "flanneld was told not to masquerade (" + flannel.Printable(f.Node.IPMasq.Source) + "): no such rules are due.",
		Change: "start flanneld with --ip-masq",
	}}
}

// others are interfaces by which network plugins are known that own a node alone. Felix's cali* beside Flannel is Canal.
var others = []struct{ prefix, plugin string }{
	{"vxlan.calico", "Calico"},
	{"vxlan-v6.calico", "Calico"},
	{"wireguard.cali", "Calico"},
	{"tunl0", "Calico"},
	{"cilium_vxlan", "Cilium"},
	{"cilium_geneve", "Cilium"},
	{"cilium_host", "Cilium"},
	{"kube-bridge", "kube-router"},
	{"weave", "Weave Net"},
	{"antrea-gw", "Antrea"},
	{"ovn-k8s", "OVN-Kubernetes"},
}

// otherCNI names a network plugin that owns the node, "" if none is seen.
func (f Facts) otherCNI() (plugin, link string) {
	for _, l := range f.Links.Value {
		for _, o := range others {
			if strings.HasPrefix(l.Name, o.prefix) && (l.Name != "tunl0" || l.Up) {
				return o.plugin, flannel.Printable(l.Name)
			}
		}
	}
	return "", ""
}

func (f Facts) ownedByOther() []Guard {
	plugin, link := f.otherCNI()
	if plugin == "" {
		return nil
	}
	return []Guard{{
		Name: GuardOtherCNI, Judge: true,
		Why:    fmt.Sprintf("%s owns this node (interface %s): Flannel's rules would translate its pods' traffic.", plugin, link),
		Change: "finish the migration, or remove the other network plugin",
	}}
}

// steady gives the guards on tables and chains that a plan is about to touch.
func (f Facts) steady(p Plan) []Guard {
	var out []Guard
	for _, e := range p.Edits {
		if flap, is := f.History.Flapping[e.Chain]; is {
			out = append(out, Guard{
				Name: GuardFlapping, Judge: true, Change: "find out who does it, and stop that",
				Why: fmt.Sprintf("%s is damaged again and again (%s): a change would not last.", e.Chain.Short(), told(flap)),
			})
		}
	}
	for _, b := range p.Backends() {
		for _, t := range p.TablesOf(b) {
			if why, is := f.Incompatible[t]; is {
				out = append(out, Guard{
					Name: GuardIncompatible, Change: "take the foreign rules out of that table with nft",
					Why: fmt.Sprintf("iptables-nft refuses to work on table %s %s (%s), and so would flanneld.", t.Family, t.Name, flannel.Printable(why)),
				})
			}
		}
	}
	return out
}

func told(f diagnose.Flap) string {
	by := "nothing tells by whom"
	if f.By != "" {
		by = "last by " + flannel.Printable(f.By)
	}
	return fmt.Sprintf("%d times in %v, %s", f.Times, f.In, by)
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
