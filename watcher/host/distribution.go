package host

import (
	"slices"
	"strings"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// telling are the files by which a distribution is told when its processes are gone.
var telling = []string{
	"/etc/cni/net.d/10-canal.conflist", "/etc/cni/net.d/10-flannel.conflist", k3sNetConf, rke2Data,
}

// Paths of Rancher's distributions.
const (
	k3sNetConf = "/var/lib/rancher/k3s/agent/etc/flannel/net-conf.json"
	rke2Data   = "/var/lib/rancher/rke2"
)

// distribution tells in which shape Flannel came to the node, from what runs here and from files. The reading's source is
// the evidence.
func distribution(
	procs flannel.Reading[[]diagnose.Process], near []diagnose.Process, files []string, now flannel.Time,
) flannel.Reading[string] {
	runs := func(kind diagnose.ProcessKind) bool {
		return slices.ContainsFunc(procs.Value, func(p diagnose.Process) bool { return p.Kind == kind })
	}
	is := func(comm string) bool {
		return slices.ContainsFunc(near, func(p diagnose.Process) bool { return p.Comm == comm })
	}
	has := func(file string) bool { return slices.Contains(files, file) }
	var evidence []string
	see := func(seen bool, what string) bool {
		if seen {
			evidence = append(evidence, what)
		}
		return seen
	}
	know := func(name string) flannel.Reading[string] {
		return flannel.Know(name, strings.Join(evidence, ", "), now)
	}

	if see(runs(diagnose.ProcK3s), "a k3s process") {
		return know("k3s")
	}
	flanneld := see(runs(diagnose.ProcFlanneld), "a flanneld process")
	if !flanneld && see(has(k3sNetConf), k3sNetConf) {
		return know("k3s")
	}
	felix := see(is("calico-node"), "a calico-node process")
	canal := see(has("/etc/cni/net.d/10-canal.conflist"), "10-canal.conflist")
	rke2 := see(is("rke2"), "an rke2 process") || see(has(rke2Data), rke2Data)
	conflist := see(has("/etc/cni/net.d/10-flannel.conflist"), "10-flannel.conflist")
	switch {
	case rke2 && (canal || flanneld && felix):
		return know("rke2-canal")
	case canal || flanneld && felix:
		return know("canal")
	case rke2 && flanneld:
		return know("rke2-flannel")
	case flanneld && kubeSubnets(procs.Value) || conflist:
		return know("kube-flannel")
	case flanneld:
		return know("flanneld with etcd")
	}
	return flannel.Miss[string](flannel.Absent, "neither processes nor files of a distribution were found", "", now)
}

// kubeSubnets tells whether a flanneld takes its subnet from Kubernetes, as in every distribution.
func kubeSubnets(procs []diagnose.Process) bool {
	return slices.ContainsFunc(procs, func(p diagnose.Process) bool {
		if p.Kind != diagnose.ProcFlanneld {
			return false
		}
		on := flanneldOf(p).bool("kube-subnet-mgr", false)
		return on != nil && *on
	})
}
