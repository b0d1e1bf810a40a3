package diagnose

import (
	"net/netip"
	"slices"

	"flanwatch/flannel"
)

// harm tells how bad it is for pods when a chain does nothing.
func (j *judgement) harm(s sight, w flannel.Wanted) Severity {
	switch {
	case !j.runs() && !j.bereft():
		return Warning // whether there are any pods of Flannel's here is not known
	case j.elsewhere() != "":
		return Warning
	case masquerades(w.ID), j.policyDrops(s):
		return Critical
	}
	return Warning
}

// elsewhere says where the rules may lie instead: in a backend that could not be read, if no other holds any and none is
// known to have held them.
func (j *judgement) elsewhere() string {
	unread := j.unread()
	if len(unread) == 0 || j.seen(sight.filled) || len(j.history.Flannel.Backends) > 0 {
		return ""
	}
	return join(unread) + " could not be read and may hold the rules"
}

// activeElsewhere tells whether another backend that Flannel uses holds the chain's counterpart, and packets pass its rules.
func (j *judgement) activeElsewhere(s sight, w flannel.Wanted) bool {
	return j.seen(func(o sight) bool {
		p := o.forward
		if masquerades(w.ID) {
			p = o.masq
		}
		return o.backend != s.backend && o.family == s.family && slices.Contains(j.flannel.Backends, o.backend) && p.active()
	})
}

// effect says what it does to pods when a chain does nothing.
func (j *judgement) effect(s sight, w flannel.Wanted) string {
	switch {
	case masquerades(w.ID):
		return "new connections of pods to the outside leave with pod addresses and get no answer."
	case j.policyDrops(s):
		return "forwarded pod traffic is dropped by FORWARD's policy."
	}
	return "forwarded pod traffic passes only while FORWARD's policy and other rules let it."
}

// masquerades tells a chain that changes addresses from one that accepts.
func masquerades(id flannel.ChainID) bool {
	return id.Table == flannel.TableNat || id.Name == flannel.NativeMasq
}

// policyDrops tells whether the iptables FORWARD chain of the same backend drops what no rule accepts.
func (j *judgement) policyDrops(s sight) bool {
	if s.backend == flannel.Nftables {
		return false
	}
	c := s.rules.Chain(baseOf(s.forward.id))
	return c != nil && c.Base != nil && c.Base.Policy == "drop"
}

// missingHarm weighs missing rules by the gravest of them.
func (j *judgement) missingHarm(s sight, w flannel.Wanted, l []flannel.RuleDiff) Severity {
	if !masquerades(w.ID) || outward(w, l) {
		return j.harm(s, w)
	}
	return Warning
}

func missingEffect(j *judgement, s sight, w flannel.Wanted, l []flannel.RuleDiff) string {
	switch {
	case !masquerades(w.ID), outward(w, l):
		return j.effect(s, w)
	case slices.ContainsFunc(l, func(r flannel.RuleDiff) bool { return r.Rule.Target.Kind == flannel.TargetReturn }):
		return "traffic that it spares can get this node's address."
	}
	return "traffic from elsewhere to pods keeps its source."
}

// outward tells whether the rule that masquerades pods on their way out is among the missing: the first one that does.
func outward(w flannel.Wanted, l []flannel.RuleDiff) bool {
	first := slices.IndexFunc(w.Rules, func(r flannel.Rule) bool { return r.Target.Kind == flannel.TargetMasquerade })
	return slices.ContainsFunc(l, func(r flannel.RuleDiff) bool { return r.Want == first+1 })
}

func pair(networks, subnets []netip.Prefix) string {
	switch {
	case len(subnets) == 0:
		return join(networks)
	case len(networks) == 0:
		return "subnet " + join(subnets)
	}
	return join(networks) + " with subnet " + join(subnets)
}
