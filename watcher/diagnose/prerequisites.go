package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"flanwatch/flannel"
)

// judgeSurroundings tells what keeps pods from each other and from the outside although every rule is as it should be.
func (j *judgement) judgeSurroundings() {
	j.judgeForwarding()
	j.judgeBridge()
	j.judgeIPv6()
	j.judgeCNI0()
	j.judgePeers()
	j.judgeTunnel()
	j.judgeLock()
	j.judgeTools()
	j.judgeForeign()
	j.judgeHostPorts()
	j.judgePools()
}

// forwardings are the switches without which the kernel passes nothing on.
var forwardings = map[flannel.Family]string{flannel.IPv4: "net.ipv4.ip_forward", flannel.IPv6: "net.ipv6.conf.all.forwarding"}

// judgeForwarding tells of forwarding that is switched off where there are pods.
func (j *judgement) judgeForwarding() {
	for _, f := range flannel.Families {
		if !j.pods(f) || !j.due() && j.otherCNI() == "" {
			continue
		}
		s := j.facts.Around.Setting(forwardings[f])
		if value, known := s.Value.Get(); known && value == "0" {
			j.forwardingOff(s, f)
			continue
		}
		j.undoneAtBoot("ip-forward-off", s.Name)
		link := j.facts.Around.Setting("net." + map[flannel.Family]string{flannel.IPv4: "ipv4", flannel.IPv6: "ipv6"}[f] + ".conf.cni0.forwarding")
		if value, known := link.Value.Get(); known && value == "0" {
			j.forwardingOff(link, f)
		}
	}
}

func (j *judgement) forwardingOff(s Setting, f flannel.Family) {
	severity := Warning
	if j.runs() || j.bereft() {
		severity = Critical
	}
	fd := Finding{ID: "ip-forward-off", Severity: severity, Object: s.Name, Remedy: RemedySet, Since: s.Changed}
	fd.Summary = fmt.Sprintf("%s is 0: nothing is forwarded, and pods reach nothing over %s beyond this node.", s.Name, word(f))
	fd.Detail = append(j.settingDetail(s), "every rule can be right and no packet comes to it")
	if s.Name != forwardings[f] {
		fd.Remedy, fd.Refused = RemedyNone, "flanwatch turns the switch of the whole node only; this one is of a single interface"
	}
	j.find(fd)
}

func word(f flannel.Family) string {
	if f == flannel.IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// pods tells whether there are pods of a family here that need the node to forward.
func (j *judgement) pods(f flannel.Family) bool {
	r := &j.facts.Around.Routing.Value
	if slices.ContainsFunc(r.Pods, func(a netip.Addr) bool { return a.BitLen() == f.Bits() }) {
		return true
	}
	served := f == flannel.IPv4 || len(flannel.Of(f, j.facts.Node.Networks.Value)) > 0
	return served && slices.ContainsFunc(r.Links, func(l Interface) bool { return l.Name == "cni0" || flannelsLink(l.Name) })
}

// settingDetail says when a switch was turned, and what turns it at boot.
func (j *judgement) settingDetail(s Setting) []string {
	var out []string
	if !s.Changed.IsZero() {
		out = append(out, "it was turned off at "+clock(s.Changed, j.facts.At))
	}
	if b, ok := j.boot(s.Name); ok && b.Value == "0" {
		out = append(out, fmt.Sprintf("%s:%d sets it to 0 at boot; flanwatch edits no file of the node", flannel.Printable(b.Path), b.Line))
	} else if j.facts.Remains.State == flannel.Known {
		out = append(out, "no file that is read at boot sets it to 0")
	}
	return out
}

func (j *judgement) boot(name string) (BootSetting, bool) {
	for _, b := range j.facts.Remains.Value.Boot {
		if b.Name == name {
			return b, true
		}
	}
	return BootSetting{}, false
}

// undoneAtBoot tells of a file that turns a switch off at the next boot, which is on now.
func (j *judgement) undoneAtBoot(id, name string) {
	b, ok := j.boot(name)
	if value, known := j.facts.Around.Setting(name).Value.Get(); !ok || !known || value != "1" || b.Value != "0" {
		return
	}
	j.find(Finding{
		ID: id, Severity: Info, Object: fmt.Sprintf("%s:%d", flannel.Printable(b.Path), b.Line),
		Summary: fmt.Sprintf("%s is 1 now, and %s sets it to 0 at boot.", name, flannel.Printable(b.Path)),
		Detail:  []string{fmt.Sprintf("%s:%d", flannel.Printable(b.Path), b.Line), "something has to turn it on again after each boot"},
		Refused: "flanwatch edits no file of the node",
	})
}

// bridgeCalls are the switches that take bridged packets through the rules of a family.
var bridgeCalls = map[flannel.Family]string{
	flannel.IPv4: "net.bridge.bridge-nf-call-iptables", flannel.IPv6: "net.bridge.bridge-nf-call-ip6tables",
}

// judgeBridge tells of bridged packets that pass no rule. That matters where the rules translate services: the answer of a pod
// on the same bridge comes from the pod's address then, which its client does not know.
func (j *judgement) judgeBridge() {
	if !j.due() || !slices.ContainsFunc(j.facts.Around.Routing.Value.Links, func(l Interface) bool { return l.Name == "cni0" }) {
		return
	}
	relies := j.serviceProxy()
	for _, f := range flannel.Families {
		if f == flannel.IPv6 && len(flannel.Of(f, j.facts.Node.Networks.Value)) == 0 {
			continue
		}
		s := j.facts.Around.Setting(bridgeCalls[f])
		value, known := s.Value.Get()
		switch {
		case s.Value.State == flannel.Absent && relies != "" && f == flannel.IPv4:
			j.find(Finding{
				ID: "br-netfilter-missing", Severity: Warning, Object: s.Name,
				Summary: "The module br_netfilter is not loaded: services whose pod is on the same node as the client do not answer.",
				Detail:  []string{relies, "bridged packets pass no rule without it", "load it now and at boot: modprobe br_netfilter; echo br_netfilter >/etc/modules-load.d/br_netfilter.conf"},
				Refused: "flanwatch loads no kernel module",
			})
		case known && value == "0":
			j.bridgeOff(s, relies)
		case known:
			j.undoneAtBoot("bridge-nf-call-off", s.Name)
		}
	}
}

func (j *judgement) bridgeOff(s Setting, relies string) {
	f := Finding{ID: "bridge-nf-call-off", Severity: Info, Object: s.Name, Since: s.Changed}
	f.Summary = fmt.Sprintf("%s is 0: packets between pods of this node pass no rule.", s.Name)
	f.Detail = j.settingDetail(s)
	if relies == "" {
		f.Refused = "no kube-proxy is here that needs it, and whoever translates services may have switched it off on purpose"
		j.find(f)
		return
	}
	f.Severity, f.Remedy = Warning, RemedySet
	f.Summary = fmt.Sprintf("%s is 0: services whose pod is on the same node as the client answer from the pod's address.", s.Name)
	f.Detail = append([]string{"services are translated by rules here: " + relies}, f.Detail...)
	j.find(f)
}

// serviceProxy says by what it is known that services are translated by rules here, "" if nothing tells so.
func (j *judgement) serviceProxy() string {
	if what := j.sign("kube-proxy"); what != "" {
		return what + " (kube-proxy)"
	}
	for _, p := range j.procs() {
		if p.Kind == ProcK3s && !slices.Contains(p.Cmdline, "--disable-kube-proxy") {
			return flannel.Printable(p.Comm) + " holds a kube-proxy"
		}
	}
	return ""
}

// sign gives the first sign of an owner, "" if there is none.
func (j *judgement) sign(owner string) string {
	for _, s := range j.facts.Around.Signs.Value {
		if s.Owner == owner {
			return s.What
		}
	}
	return ""
}

// judgeIPv6 tells of pods with private IPv6 addresses that nothing translates. Public ones may be routed; and where Flannel was
// told to masquerade, the chain that lacks is told of already.
func (j *judgement) judgeIPv6() {
	private := slices.DeleteFunc(flannel.Of(flannel.IPv6, j.facts.Node.Networks.Value), func(p netip.Prefix) bool { return !p.Addr().IsPrivate() })
	if len(private) == 0 || !j.runs() || j.translates6() || len(j.unread()) > 0 {
		return
	}
	if _, known := j.masqueradeOf(flannel.IPv6).Get(); known {
		return
	}
	f := Finding{ID: "ipv6-no-masquerade", Severity: Warning, Object: join(private)}
	f.Summary = fmt.Sprintf("Nothing translates pods' private IPv6 addresses (%s): pods reach no public IPv6 address.", join(private))
	f.Detail = []string{"no rule in a POSTROUTING chain of ip6 masquerades, and no chain of Flannel does", j.presence()}
	if r, known := j.facts.Around.Routing.Get(); known && !r.Out6 {
		f.Severity = Info
		f.Detail = append(f.Detail, "this node has no way out for IPv6 itself")
	}
	f.Refused = "whether Flannel should masquerade IPv6 is not known: k3s does where its server was told --flannel-ipv6-masq"
	j.find(f)
}

// translates6 tells whether any rule that flanwatch reads translates IPv6 sources.
func (j *judgement) translates6() bool {
	for _, s := range j.sights {
		if s.family != flannel.IPv6 {
			continue
		}
		for i := range s.rules.Chains {
			c := &s.rules.Chains[i]
			if c.ID.Family == flannel.IPv6 && slices.ContainsFunc(c.Entries, func(e flannel.Entry) bool {
				return e.Rule.Target.Kind == flannel.TargetMasquerade || e.Rule.Target.Kind == flannel.TargetSNAT
			}) {
				return true
			}
		}
	}
	return false
}

// judgeCNI0 holds the bridge's address against the subnet that the node has.
func (j *judgement) judgeCNI0() {
	subnets := flannel.Of(flannel.IPv4, j.facts.Node.Subnets.Value)
	if !j.due() || len(subnets) == 0 || j.facts.Node.Subnets.State != flannel.Known {
		return
	}
	var addresses []netip.Prefix
	for _, l := range j.facts.Around.Routing.Value.Links {
		if l.Name == "cni0" {
			addresses = flannel.Of(flannel.IPv4, l.Addresses)
		}
	}
	if len(addresses) == 0 || slices.ContainsFunc(addresses, func(a netip.Prefix) bool {
		return slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Contains(a.Addr()) })
	}) {
		return
	}
	f := Finding{ID: "subnet-mismatch", Severity: Warning, Object: "cni0"}
	f.Summary = fmt.Sprintf("cni0 has the address %s, but the node's pod subnet is %s: new pods cannot be connected.", join(addresses), join(subnets))
	f.Detail = append([]string{fmt.Sprintf("subnet.env: %s, cni0: %s", join(subnets), join(addresses))}, j.sources()...)
	if src := j.facts.Node.Subnets.Source; !fromSubnetEnv(src) {
		f.Detail[0] = fmt.Sprintf("%s: %s, cni0: %s", flannel.Printable(src), join(subnets), join(addresses))
	}
	f.Detail = append(f.Detail, fmt.Sprintf("pods plugged into cni0: %d", j.facts.Around.Routing.Value.Ports))
	if j.facts.Around.Routing.Value.Ports == 0 {
		f.Severity = Info // no pod is here that would notice; the next one does
	}
	f.Refused = "the address of cni0 is not changed while pods are attached to it: drain the node, delete cni0, and let the plugin make it anew"
	j.find(f)
}

// flannelsLink tells whether a name is one that a backend of Flannel gives.
func flannelsLink(name string) bool { return Link{Name: name}.flannels() }
