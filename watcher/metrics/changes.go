package metrics

import (
	"slices"
	"strings"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// programs are those that are told apart; whatever else changes rules is "other", so that no program can make series at will.
var programs = []string{
	"flanneld", "k3s", "kube-proxy", "iptables", "iptables-restore", "nft", "calico-node", "cilium-agent", "dockerd", "firewalld",
}

const otherProgram = "other"

// change names one counter of ruleset_changes_total.
type change struct{ family, backend, table, program string }

// changes counts commits that changed Flannel's chains.
type changes map[change]uint64

func (c changes) add(k *incident.Commit) {
	who := program(k.Who.Comm)
	var counted []flannel.TableID // a commit counts once for each table
	count := func(id flannel.TableID) {
		if slices.Contains(counted, id) {
			return
		}
		counted = append(counted, id)
		c[change{id.Family.String(), id.Backend.String(), tableOf(id.Name), who}]++
	}
	for _, t := range k.Tables {
		count(t.Table)
	}
	for _, ch := range k.Changes {
		count(ch.Chain.TableID())
	}
}

// tableOf gives a table that Flannel uses its name; there are no others in a commit.
func tableOf(name string) string {
	switch name {
	case flannel.TableNat, flannel.TableFilter:
		return name
	}
	return "native"
}

// program gives the listed name of a program, whose own names are cut at 15 bytes and differ by family and backend.
func program(comm string) string {
	name := strings.TrimPrefix(comm, "ip6")
	name = strings.TrimPrefix(name, "ip")
	if strings.HasPrefix(comm, "ip") && strings.HasPrefix(name, "tables") {
		if strings.Contains(name, "-rest") || strings.HasSuffix(name, "-res") || strings.HasSuffix(name, "-re") {
			return "iptables-restore"
		}
		return "iptables"
	}
	switch {
	case strings.HasPrefix(comm, "xtables-"):
		return "iptables"
	case strings.HasPrefix(comm, "k3s"), strings.HasPrefix(comm, "rke2"):
		return "k3s"
	case slices.Contains(programs, comm):
		return comm
	}
	return otherProgram
}

func (c changes) send(p *page) {
	for k, n := range c {
		p.put(descChanges, float64(n), k.family, k.backend, k.table, k.program)
	}
}
