package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"flanwatch/flannel"
)

// lockPatience is how long the lock of iptables-legacy may be held before it is worth a word. A restore of a large table
// takes a second.
const lockPatience = 2 * time.Second

// judgeLock tells of a lock that nobody gives back.
func (j *judgement) judgeLock() {
	l, known := j.facts.Around.Lock.Get()
	held := j.facts.At.Sub(l.Since)
	if !known || held < lockPatience {
		return
	}
	who := "a process that cannot be seen from here"
	if l.PID > 0 {
		who = fmt.Sprintf("%s[%d]", flannel.Printable(l.Comm), l.PID)
	}
	f := Finding{ID: "lock-held", Severity: Info, Object: j.facts.Around.Lock.Source, Since: l.Since}
	f.Summary = fmt.Sprintf("%s has held the lock of iptables-legacy since %s at least: nobody else can write legacy rules.", who, clock(l.Since, j.facts.At))
	if r := j.facts.Rules[flannel.IptablesLegacy]; r.State == flannel.Known {
		f.Severity = Warning
	} else {
		f.Detail = append(f.Detail, "there are no legacy tables here; iptables-nft takes no lock")
	}
	f.Detail = append(f.Detail, "held by "+who, "flanwatch takes no lock to read; a list by iptables-legacy hangs meanwhile")
	f.Refused = "killing the holder or deleting the lock file would let two writers spoil each other's rules"
	j.find(f)
}

// judgeTools tells of programs that a person will miss here. Where none at all is found, the files are not a node's.
func (j *judgement) judgeTools() {
	tools, known := j.facts.Around.Tools.Get()
	if !known || len(tools) == 0 || j.flannel.State == FlannelAbsent {
		return
	}
	has := func(names ...string) bool {
		return slices.ContainsFunc(names, func(n string) bool { _, ok := tools[n]; return ok })
	}
	var missing []string
	for _, t := range [][]string{{"iptables", "iptables-nft", "iptables-legacy"}, {"nft"}} {
		if !has(t...) {
			missing = append(missing, t[0])
		}
	}
	needed := "iptables"
	if j.flannel.Dialect == DialectNftables {
		needed = "nft"
	}
	if len(missing) == 0 || !slices.Contains(missing, needed) && needed == "iptables" {
		return
	}
	f := Finding{ID: "tool-missing", Severity: Info, Object: strings.Join(missing, ", ")}
	f.Summary = fmt.Sprintf("This node has no %s: nobody can list such rules by hand here.", strings.Join(missing, " and no "))
	for _, name := range []string{"iptables-nft", "iptables-legacy", "nft", "conntrack"} {
		if t, ok := tools[name]; ok {
			f.Detail = append(f.Detail, name+" is there: "+flannel.Printable(strings.TrimSpace(t.Path+" "+t.Version)))
		} else {
			f.Detail = append(f.Detail, name+" is not there")
		}
	}
	f.Detail = append(f.Detail, "flanwatch reads every backend from the kernel and needs none of them; a flanneld that runs outside a container does")
	j.find(f)
}

// judgeForeign tells of chains that another network plugin left where Flannel runs now.
func (j *judgement) judgeForeign() {
	if !j.runs() || j.facts.Procs.State != flannel.Known {
		return
	}
	for _, owner := range []string{"Calico", "Cilium", "kube-router"} {
		var chains []string
		alive := false
		for _, s := range j.facts.Around.Signs.Value {
			switch {
			case s.Owner != owner:
			case s.Chain == (flannel.ChainID{}):
				alive = true
			default:
				chains = append(chains, s.What)
			}
		}
		if alive || len(chains) == 0 {
			continue
		}
		f := Finding{ID: "foreign-leftover", Severity: Warning, Object: owner}
		f.Summary = fmt.Sprintf("Chains of %s are here and no process of it: what they drop or translate, nobody keeps up to date.", owner)
		f.Detail = chains
		if cni := j.otherCNI(); cni != "" {
			f.Detail = append(f.Detail, "interfaces of another network plugin: "+cni)
		}
		f.Detail = append(f.Detail, cleanups[owner])
		f.Refused = "these chains are not Flannel's, and flanwatch removes nothing of others"
		j.find(f)
	}
}

// cleanups names what each plugin's own project says for its removal.
var cleanups = map[string]string{
	"Calico":      "its own clean-up: calico's hack/remove-calico-policy/remove-policy.sh on each node, or a reboot",
	"Cilium":      "its own clean-up: cilium-dbg post-uninstall-cleanup on each node, or a reboot",
	"kube-router": "its own clean-up: kube-router --cleanup-config on each node, or a reboot",
}

// judgeHostPorts tells of ports of the node that were promised to pods and lead nowhere. The plugin writes their rules when a
// pod starts, and never again.
func (j *judgement) judgeHostPorts() {
	rem, known := j.facts.Remains.Get()
	if !known || len(rem.Ports) == 0 || !j.due() || j.sign("portmap") != "" || j.facts.Around.Signs.State != flannel.Known {
		return
	}
	if len(rem.Configs) > 0 && !slices.Contains(rem.Configs[0].Types, "portmap") {
		return // somebody else leads ports to pods
	}
	var ports []string
	for _, p := range rem.Ports {
		ports = append(ports, fmt.Sprintf("%d/%s of %s", p.Port, flannel.Printable(p.Protocol), orWord(p.Pod, "a pod")))
	}
	slices.Sort(ports)
	f := Finding{ID: "hostport-missing", Severity: Warning, Object: "host ports"}
	f.Summary = fmt.Sprintf("The rules for %s of this node that lead to pods are gone, and do not come back by themselves.", counted(uint64(len(ports)), "port"))
	f.Detail = append(slices.Clone(ports[:min(len(ports), listed)]), "no chain CNI-HOSTPORT-DNAT and no table cni_hostport is here",
		"the plugin portmap writes them when a pod starts: delete these pods, and they come back with their ports")
	f.Refused = "these rules belong to the CNI plugin portmap, and flanwatch makes up no rules of others"
	j.find(f)
}

// reservedShare is the part of a subnet's addresses of which, if it is reserved, new pods soon get none.
const reservedShare = 0.9

// judgePools holds the reservations of addresses against the pods that are there.
func (j *judgement) judgePools() {
	if !j.due() || j.facts.Around.Routing.State != flannel.Known {
		return
	}
	for _, p := range j.facts.Remains.Value.Pools {
		alive := j.facts.Around.Routing.Value.Ports
		if p.Told && p.Alive > alive {
			alive = p.Alive
		}
		if p.Reserved <= alive+2 || !j.flannelsPool(p) { // a pod that starts or ends has one, or none, for a moment
			continue
		}
		f := Finding{ID: "ipam-stale", Severity: Info, Object: flannel.Printable(p.Path)}
		f.Summary = fmt.Sprintf("%d addresses are reserved for pods here, and there are %s: the others belong to pods that are no more.",
			p.Reserved, podCount(alive))
		if room := j.addresses(); room > 0 {
			f.Detail = append(f.Detail, fmt.Sprintf("the node's subnet has %d addresses for pods", room))
			if float64(p.Reserved) >= reservedShare*float64(room) {
				f.Severity = Warning
				f.Detail = append(f.Detail, `new pods fail with "no IP addresses available in range set"`)
			}
		}
		if len(p.Stale) > 0 {
			f.Detail = append(f.Detail, "of containers that do not run: "+flannel.Printable(strings.Join(p.Stale[:min(len(p.Stale), listed)], ", ")))
		}
		f.Refused = "the folder is not emptied while pods run: two pods could get one address"
		j.find(f)
	}
}

func podCount(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}

// flannelsPool tells whether reservations are for Flannel's network.
func (j *judgement) flannelsPool(p Pool) bool {
	name := p.Path[strings.LastIndexByte(p.Path, '/')+1:]
	return name == "cbr0" || slices.ContainsFunc(j.facts.Remains.Value.Configs, func(c CNIConfig) bool { return c.Flannels() && c.Name == name })
}

// addresses is how many pods the IPv4 subnet has room for: without network, broadcast and the bridge's own.
func (j *judgement) addresses() int {
	subnets := slices.DeleteFunc(flannel.Of(flannel.IPv4, j.facts.Node.Subnets.Value), func(p netip.Prefix) bool { return p.Bits() > 30 || p.Bits() < 8 })
	if len(subnets) == 0 {
		return 0
	}
	return 1<<(32-subnets[0].Bits()) - 3
}
