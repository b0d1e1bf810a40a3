package proc

import (
	"slices"

	"flanwatch/watcher/diagnose"
)

// role is what a process is to the watcher.
type role uint8

const (
	none    role = iota
	runs         // runs Flannel
	manages      // makes this a node: a kubelet or container runtime
	near         // decides or explains what else is in the packet filter
)

// roleOf goes by the kernel's name of a process, which costs one small read.
func roleOf(comm []byte) role {
	switch string(comm) {
	case "flanneld", "k3s-server", "k3s-agent", "k3s":
		return runs
	case "kubelet", "containerd", "dockerd", "crio":
		return manages
	case "kube-proxy", "rke2", "calico-node", "cilium-agent", "kube-router":
		return near
	}
	return none
}

// kindOf tells what a process with the role runs is, by its command line too: k3s is also kubectl, crictl and ctr, and may
// have been told to leave Flannel out.
func kindOf(comm string, cmdline []string) (diagnose.ProcessKind, bool) {
	if comm == "flanneld" {
		return diagnose.ProcFlanneld, true
	}
	if comm == "k3s" && (len(cmdline) < 2 || cmdline[1] != "server" && cmdline[1] != "agent") {
		return "", false
	}
	return diagnose.ProcK3s, !flannelOff(cmdline)
}

func flannelOff(cmdline []string) bool {
	if slices.Contains(cmdline, "--flannel-backend=none") || slices.Contains(cmdline, "--no-flannel") {
		return true
	}
	i := slices.Index(cmdline, "--flannel-backend")
	return i >= 0 && i+1 < len(cmdline) && cmdline[i+1] == "none"
}
