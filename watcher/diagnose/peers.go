package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"flanwatch/flannel"
)

// judgePeers tells of other nodes for which a part of what Flannel keeps of each is missing.
func (j *judgement) judgePeers() {
	r, known := j.facts.Around.Routing.Get()
	if !known || !j.runs() || len(r.Peers) == 0 {
		return
	}
	f := Finding{ID: "route-missing", Severity: Warning, Object: r.Peers[0].Link}
	if r.Whole == 0 && j.flannel.State != FlannelStarting && slices.ContainsFunc(r.Peers, func(p Peer) bool { return !p.Route }) {
		f.Severity = Critical
	}
	f.Summary = fmt.Sprintf("The way to the pods of %s is not whole: they are not reached, though every rule is right.", counted(uint64(len(r.Peers)), "other node"))
	for i, p := range r.Peers {
		if i == listed {
			f.Detail = append(f.Detail, fmt.Sprintf("and %d more", len(r.Peers)-i))
			break
		}
		f.Detail = append(f.Detail, p.lack())
	}
	for _, l := range r.Links {
		if l.Name == f.Object && len(l.Addresses) == 0 {
			f.Detail = append(f.Detail, l.Name+" has no address either")
		}
	}
	f.Detail = append(f.Detail, fmt.Sprintf("nothing is missing for %s", counted(uint64(r.Whole), "other node")))
	f.Detail = append(f.Detail, "systemd-networkd removes routes that it did not make: set ManageForeignRoutes=no in /etc/systemd/networkd.conf.d")
	f.Refused = "which subnet belongs to which node flanneld knows from the API; restart it, and it makes the routes anew"
	j.find(f)
}

// lack says what is missing for another node.
func (p Peer) lack() string {
	var have, lack []string
	for _, part := range []struct {
		name  string
		there bool
	}{{"route", p.Route}, {"neighbour entry", p.Neighbour}, {"forwarding entry", p.Forward}} {
		if part.there {
			have = append(have, part.name)
		} else {
			lack = append(lack, part.name)
		}
	}
	who := "tunnel address " + p.Gateway.String()
	switch {
	case p.Node.IsValid() && p.Gateway.IsValid():
		who = p.Node.String() + " (" + who + ")"
	case p.Node.IsValid():
		who = p.Node.String()
	}
	return fmt.Sprintf("%s over %s: no %s; there is %s", who, flannel.Printable(p.Link), strings.Join(lack, ", no "), strings.Join(have, ", "))
}

// judgeTunnel tells of VXLAN packets that arrive broken, as kernels before 5.7 and some network cards send them when they are
// masqueraded on their way out.
func (j *judgement) judgeTunnel() {
	for _, l := range j.facts.Around.Routing.Value.Links {
		if l.Type != "vxlan" || !flannelsLink(l.Name) || !j.due() {
			continue
		}
		c, known := j.counter("UdpInCsumErrors")
		outer := j.masqueradesOuter(l.Port)
		if !known || c.Rose == 0 && outer == "" {
			continue
		}
		f := Finding{ID: "vxlan-checksum", Severity: Info, Object: l.Name}
		f.Summary = fmt.Sprintf("The packets of the tunnel %s are masqueraded on their way out: with some kernels and cards they arrive broken.", l.Name)
		f.Refused = "no such packet has arrived here; receivers count them, so look at UdpInCsumErrors on the other nodes before anything is switched off"
		f.Detail = []string{fmt.Sprintf("UDP packets with a bad checksum: %d", c.Total)}
		if c.Rose > 0 {
			f.Severity = Warning
			f.Summary = "UDP packets arrive with a bad checksum and are thrown away: connections over the tunnel hang."
			f.Detail[0] += fmt.Sprintf(", %d more in %.0f s", c.Rose, c.Over.Seconds())
			f.Refused = "the cure is on the nodes that send them, and lasts until the link is made anew"
			f.Detail = append(f.Detail, fmt.Sprintf("there: ethtool -K %s tx-checksum-ip-generic off", l.Name))
		}
		if outer != "" {
			f.Detail = append(f.Detail, outer)
		}
		f.Detail = append(f.Detail, "checksums of "+l.Name+" are "+offloadWords[l.Offload])
		j.find(f)
	}
}

var offloadWords = map[flannel.ReadState]string{
	flannel.Known: "left to the card", flannel.Absent: "written by the kernel", flannel.Unreadable: "written by nobody knows whom", flannel.Unread: "not looked at",
}

// masqueradesOuter quotes the rule that translates packets to a UDP port in a base chain, "" if there is none.
func (j *judgement) masqueradesOuter(port int) string {
	for _, s := range j.sights {
		if s.family != flannel.IPv4 || s.backend == flannel.Nftables {
			continue
		}
		c := s.rules.Chain(baseOf(s.masq.id))
		if c == nil {
			continue
		}
		for i, e := range c.Entries {
			if e.Rule.Target.Kind == flannel.TargetMasquerade && strings.Contains(e.Rule.String(), fmt.Sprintf("--dport %d ", port)) {
				out := fmt.Sprintf("%s %d: %s", j.name(c.ID), i+1, text(e.Rule, c.ID))
				if e.Counted {
					out += fmt.Sprintf(" (%d)", e.Counter.Packets)
				}
				return out
			}
		}
	}
	return ""
}

func (j *judgement) counter(name string) (Counter, bool) {
	i := slices.IndexFunc(j.facts.Around.Counters.Value, func(c Counter) bool { return c.Name == name })
	if i < 0 {
		return Counter{}, false
	}
	return j.facts.Around.Counters.Value[i], true
}
