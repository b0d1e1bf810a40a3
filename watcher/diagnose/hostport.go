package diagnose

import (
	"fmt"
	"slices"

	"flanwatch/flannel"
)

// Lost is a chain of another owner's that was there while we watched, and went along with Flannel's.
type Lost struct {
	Chain flannel.ChainID
	Since flannel.Time
}

// judgeLostPorts tells of host ports that went while we watched and that nobody brings back: the portmap plugin writes its
// rules when a pod is made, and never again. Where files tell which ports those are, that has been said already.
func (j *judgement) judgeLostPorts() {
	if slices.ContainsFunc(j.findings, func(f Finding) bool { return f.ID == "hostport-missing" }) {
		return
	}
	for _, l := range j.history.HostPorts {
		f := Finding{ID: "hostport-missing", Severity: Warning, Object: l.Chain.String(), Since: l.Since}
		f.Summary = fmt.Sprintf("%s is gone since %s and stays so: host ports of pods here do not answer.", j.name(l.Chain),
			clock(l.Since, j.facts.At))
		f.Detail = []string{
			"it went in the same moment as Flannel's rules; Flannel and kube-proxy have put theirs back",
			"CNI's portmap plugin writes its rules when a pod is made, and at no other time",
			"what to do: delete the pods on this node that have host ports, so that they are made anew",
		}
		f.Refused = "flanwatch writes no rules of other owners: only the plugin knows which host port leads to which pod"
		j.find(f)
	}
}
