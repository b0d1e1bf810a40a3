package path

import (
	"net/netip"
	"strconv"
	"strings"

	"flanwatch/flannel"
)

// iface is an interface as rules see it: its name, empty where there is none. Before Linux 5.7 a packet had no incoming
// interface in postrouting; unsure says that it may be missing.
type iface struct {
	name    string
	unknown bool
	unsure  bool
}

// place is where a chain is called.
type place struct {
	hook    hook
	in, out iface
	tracked bool // connection tracking has seen the packet
}

// source tells which end of a connection is translated here.
func (p place) source() bool { return p.hook == postrouting || p.hook == input }

// view is all that conditions are about.
type view struct {
	*state
	place  place
	packet Packet
	facts  *Facts
	tables *Tables
	table  flannel.TableID
	wanted *wanted
}

// rule tells whether all conditions hold. Those that may are named.
func (v view) rule(r flannel.Rule) (t truth, unknown []string) {
	t = yes
	for _, m := range r.Matches {
		switch v.match(m) {
		case no:
			return no, nil
		case may:
			t = may
			unknown = append(unknown, condition(m))
		}
	}
	return t, unknown
}

// condition is the text of one condition.
func condition(m flannel.Match) string {
	if m.Kind == flannel.MatchOpaque {
		return m.Text
	}
	return flannel.NewRule(flannel.Target{Kind: flannel.TargetNone}, m).String()
}

func (v view) match(m flannel.Match) truth {
	switch m.Kind {
	case flannel.MatchSource:
		return within(m.Prefix, v.source).not(m.Not)
	case flannel.MatchDestination:
		return within(m.Prefix, v.destination).not(m.Not)
	case flannel.MatchIn:
		return v.place.in.is(m.Text).not(m.Not)
	case flannel.MatchOut:
		return v.place.out.is(m.Text).not(m.Not)
	case flannel.MatchProtocol:
		return v.protocol(m.Text).not(m.Not)
	case flannel.MatchMark:
		return v.mark.equals(m.Mask, m.Value).not(m.Not)
	case flannel.MatchComment:
		return yes
	case flannel.MatchExtension:
		return v.extension(m)
	}
	return may
}

func within(p netip.Prefix, a netip.Addr) truth {
	if !a.IsValid() {
		return may
	}
	return truthOf(p.Contains(a))
}

// is compares with the name in a rule, of which a "+" at the end stands for anything.
func (i iface) is(name string) truth {
	match := func(have string) bool {
		if beginning, wild := strings.CutSuffix(name, "+"); wild {
			return strings.HasPrefix(have, beginning)
		}
		return have == name
	}
	got := match(i.name)
	if i.unknown || i.unsure && got != match("") {
		return may
	}
	return truthOf(got)
}

func (v view) protocol(name string) truth {
	if v.packet.Protocol == "" {
		return may
	}
	return truthOf(v.packet.Protocol == name)
}

// extension evaluates every option, as each is a condition of its own.
func (v view) extension(m flannel.Match) truth {
	name := m.Extension()
	t := yes
	switch name {
	case "tcp", "udp":
		t = v.protocol(name)
	case "multiport":
		t = v.hasPorts()
	case "statistic":
		return statistic(m)
	case "addrtype":
		return v.addressTypes(m)
	case "rpfilter":
		return v.reversePath(m)
	case "connmark":
		t = v.hasConnection()
	}
	for o := range m.Options() {
		if o.Name == "--ctstatus" {
			t = min(t, v.hasConnection())
		}
		t = min(t, v.option(name, o).not(o.Not))
	}
	return t
}

// hasConnection tells whether connection tracking knows the packet. Without a connection its mark and its status equal
// nothing, nor differ from anything.
func (v view) hasConnection() truth {
	if !v.place.tracked {
		return no
	}
	return yes - v.untracked
}

func (v view) hasPorts() truth {
	switch v.packet.Protocol {
	case "":
		return may
	case "tcp", "udp", "sctp", "dccp", "udplite":
		return yes
	}
	return no
}

func (v view) option(extension string, o flannel.Option) truth {
	switch o.Name {
	case "--sport", "--sports":
		return ports(o.Value, v.sourcePort)
	case "--dport", "--dports":
		return ports(o.Value, v.destinationPort)
	case "--ports":
		return max(ports(o.Value, v.sourcePort), ports(o.Value, v.destinationPort))
	case "--tcp-flags":
		return firstFlags(o.Value)
	case "--ctstate", "--state":
		return v.states(o.Value)
	case "--ctstatus":
		return v.status(o.Value)
	case "--match-set":
		return v.set(o.Value)
	case "--is":
		return truthOf(o.Value == "ipv"+v.packet.Family.Short()[1:])
	case "--mark":
		return v.connectionMark(o.Value)
	}
	if extension == "physdev" {
		return v.bridged(o.Name)
	}
	return may
}

// ports compares with a list of ports and ranges.
func ports(list string, port uint16) truth {
	if port == 0 {
		return may
	}
	for one := range strings.SplitSeq(list, ",") {
		first, last, ranged := strings.Cut(one, ":")
		if !ranged {
			last = first
		}
		low, _ := strconv.ParseUint(first, 10, 16)
		high, _ := strconv.ParseUint(last, 10, 16)
		if uint64(port) >= low && uint64(port) <= high {
			return yes
		}
	}
	return no
}

// firstFlags compares the flags of a first packet, which has SYN alone: "FIN,SYN,RST,ACK SYN".
func firstFlags(value string) truth {
	looked, wanted, _ := strings.Cut(value, " ")
	if hasWord(looked, "SYN") || looked == "ALL" {
		return truthOf(wanted == "SYN")
	}
	return truthOf(wanted == "NONE")
}

func hasWord(list, word string) bool {
	for one := range strings.SplitSeq(list, ",") {
		if one == word {
			return true
		}
	}
	return false
}

// states compares the state of the connection. Before connection tracking has seen a packet, it is of no connection.
func (v view) states(list string) truth {
	if !v.place.tracked {
		return chosen(v.untracked, truthOf(hasWord(list, "UNTRACKED")), truthOf(hasWord(list, "INVALID")))
	}
	t := truthOf(hasWord(list, "NEW"))
	if hasWord(list, "DNAT") {
		t = max(t, v.dnat.changed)
	}
	if hasWord(list, "SNAT") {
		t = max(t, v.snat.changed)
	}
	return chosen(v.untracked, truthOf(hasWord(list, "UNTRACKED")), t)
}

// chosen is a where the condition holds, b where it does not.
func chosen(condition, a, b truth) truth {
	switch condition {
	case yes:
		return a
	case no:
		return b
	}
	return joinTruth(a, b)
}

// status compares what has happened to the connection, which is a translation at most.
func (v view) status(list string) truth {
	if hasWord(list, "NONE") || hasWord(list, "EXPECTED") {
		return may
	}
	t := no
	if hasWord(list, "DNAT") {
		t = max(t, v.dnat.changed)
	}
	if hasWord(list, "SNAT") {
		t = max(t, v.snat.changed)
	}
	return t
}

func (v view) connectionMark(value string) truth {
	m := flannel.ParseMasked(value)
	return v.connmark.equals(m.Mask, m.Value)
}

// bridged is about a packet that is routed: one that came through a bridge may have a port on it, none leaves by one yet.
func (v view) bridged(option string) truth {
	switch option {
	case "--physdev-in", "--physdev-is-in":
		for _, b := range v.facts.Bridges {
			if b == v.place.in.name {
				return may
			}
		}
	}
	return no
}

// reversePath tells whether the way back to the source leads over the interface that the packet came from. Where the facts do
// not say so, nobody knows.
func (v view) reversePath(m flannel.Match) truth {
	t := may
	if in := v.place.in; in.name != "" && !in.unknown && v.source.IsValid() && v.facts.route(v.source) == in.name {
		t = yes
	}
	for o := range m.Options() {
		if o.Name == "--invert" {
			t = t.not(true)
		}
	}
	return t
}

// statistic holds by chance, unless it holds always or never.
func statistic(m flannel.Match) truth {
	for o := range m.Options() {
		if o.Name != "--probability" {
			continue
		}
		switch p, _ := strconv.ParseFloat(o.Value, 64); {
		case p <= 0:
			return no.not(o.Not)
		case p >= 1:
			return yes.not(o.Not)
		}
	}
	return may
}

// addressTypes reads addrtype: whether the source or destination is an address of the node, or of another sort.
func (v view) addressTypes(m flannel.Match) truth {
	limited := strings.Contains(m.Text, " --limit-iface-")
	t := yes
	for o := range m.Options() {
		switch o.Name {
		case "--src-type":
			t = min(t, v.addressType(v.source, o.Value, limited, false).not(o.Not))
		case "--dst-type":
			t = min(t, v.addressType(v.destination, o.Value, limited, true).not(o.Not))
		}
	}
	return t
}

func (v view) addressType(a netip.Addr, list string, limited, destination bool) truth {
	switch {
	case !a.IsValid():
		return may
	case v.facts.local(a):
		if limited || v.facts.anycast(a) {
			return may
		}
		return truthOf(hasWord(list, "LOCAL"))
	case list == "LOCAL":
		return no
	case a.IsMulticast():
		return truthOf(hasWord(list, "MULTICAST"))
	case hasWord(list, "UNICAST") && destination && !limited:
		return yes // it is on its way there
	case hasWord(list, "UNICAST"), hasWord(list, "UNREACHABLE"), hasWord(list, "BLACKHOLE"), hasWord(list, "PROHIBIT"),
		hasWord(list, "BROADCAST"), hasWord(list, "THROW"), hasWord(list, "ANYCAST"):
		return may
	}
	return no
}
