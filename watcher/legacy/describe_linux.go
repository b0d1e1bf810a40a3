package legacy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"flanwatch/flannel"
)

// describe words a match or target that package flannel cannot say, with its name in front: as iptables-save does where the
// shape is one of the common ones, else by the bytes, so that different rules read differently.
func describe(f flannel.Family, x ext) string {
	name, data := string(x.name()), x.data()
	if words, ok := describeKnown(f, name, x.revision(), data); ok {
		return name + words
	}
	return fmt.Sprintf("%s --revision %d --data 0x%x", name, x.revision(), bytes.TrimRight(data, "\x00"))
}

func describeKnown(f flannel.Family, name string, revision byte, data []byte) (string, bool) {
	switch {
	case name == "tcp" && revision == 0 && len(data) >= 12:
		return describeTCP(data)
	case name == "udp" && revision == 0 && len(data) >= 9 && data[8]&^3 == 0:
		return describePorts(data, data[8]), true
	case name == "conntrack" && (revision == 2 || revision == 3) && len(data) >= 154:
		return describeConntrack(data)
	case name == "addrtype" && revision == 1 && len(data) >= 8:
		return describeAddrtype(data)
	case name == "MARK" && revision == 2 && len(data) >= 8:
		return fmt.Sprintf(" --set-xmark 0x%x/0x%x", binary.NativeEndian.Uint32(data), binary.NativeEndian.Uint32(data[4:])), true
	case name == "REJECT" && revision == 0 && len(data) >= 4:
		return describeReject(f, binary.NativeEndian.Uint32(data))
	case name == "DNAT", name == "SNAT", name == "MASQUERADE":
		r, ok := natRangeOf(f, name, revision, data)
		return r.describe(name), ok && r.flags&^natKnown == 0
	}
	return "", false
}

// describePorts reads source and destination ports, with one flag each to invert them.
func describePorts(data []byte, inverted byte) string {
	var b strings.Builder
	for i, option := range []string{"--sport", "--dport"} {
		from, to := binary.NativeEndian.Uint16(data[4*i:]), binary.NativeEndian.Uint16(data[4*i+2:])
		invert := inverted&(1<<i) != 0
		switch {
		case from == 0 && to == 0xffff && !invert:
		case from == to:
			fmt.Fprintf(&b, " %s%s %d", not(invert), option, from)
		default:
			fmt.Fprintf(&b, " %s%s %d:%d", not(invert), option, from, to)
		}
	}
	return b.String()
}

// describeTCP reads struct xt_tcp: ports, option, flags looked at, flags wanted, inversions.
func describeTCP(data []byte) (string, bool) {
	option, mask, want, inverted := data[8], data[9], data[10], data[11]
	if option != 0 || inverted&^7 != 0 {
		return "", false
	}
	s := describePorts(data, inverted)
	if mask != 0 || inverted&4 != 0 {
		s += fmt.Sprintf(" %s--tcp-flags %s %s", not(inverted&4 != 0), tcpFlags(mask), tcpFlags(want))
	}
	return s, true
}

func tcpFlags(bits byte) string {
	return words(uint32(bits), "NONE", []flag{{1, "FIN"}, {2, "SYN"}, {4, "RST"}, {8, "PSH"}, {16, "ACK"}, {32, "URG"}})
}

type flag struct {
	bit  uint32
	word string
}

func words(bits uint32, none string, flags []flag) string {
	var out []string
	for _, f := range flags {
		if bits&f.bit != 0 {
			out = append(out, f.word)
		}
	}
	if len(out) == 0 {
		return none
	}
	return strings.Join(out, ",")
}

// describeConntrack reads struct xt_conntrack_mtinfo2 or 3 as far as it matches nothing but the state.
func describeConntrack(data []byte) (string, bool) {
	const matchState = 1
	match, invert := binary.NativeEndian.Uint16(data[146:]), binary.NativeEndian.Uint16(data[148:])
	if match != matchState || invert&^matchState != 0 {
		return "", false
	}
	states := []flag{
		{1, "INVALID"}, {8, "NEW"}, {4, "RELATED"}, {2, "ESTABLISHED"}, {1 << 8, "UNTRACKED"}, {1 << 6, "SNAT"}, {1 << 7, "DNAT"},
	}
	state := words(uint32(binary.NativeEndian.Uint16(data[150:])), "NONE", states)
	return fmt.Sprintf(" %s--ctstate %s", not(invert != 0), state), true
}

// describeAddrtype reads struct xt_addrtype_info_v1: types of source and destination, then flags.
func describeAddrtype(data []byte) (string, bool) {
	flags := binary.NativeEndian.Uint32(data[4:])
	types := []flag{
		{1, "UNSPEC"},
		{2, "UNICAST"},
		{4, "LOCAL"},
		{8, "BROADCAST"},
		{16, "ANYCAST"},
		{32, "MULTICAST"},
		{64, "BLACKHOLE"},
		{128, "UNREACHABLE"},
		{256, "PROHIBIT"},
		{512, "THROW"},
		{1024, "NAT"},
		{2048, "XRESOLVE"},
	}
	var s string
	for i, option := range []string{"--src-type", "--dst-type"} {
		if t := binary.NativeEndian.Uint16(data[2*i:]); t != 0 {
			s += fmt.Sprintf(" %s%s %s", not(flags&(1<<i) != 0), option, words(uint32(t), "NONE", types))
		}
	}
	if flags&4 != 0 {
		s += " --limit-iface-in"
	}
	if flags&8 != 0 {
		s += " --limit-iface-out"
	}
	return s, flags < 16
}

func describeReject(f flannel.Family, with uint32) (string, bool) {
	names := map[uint32]string{
		0: "icmp-net-unreachable", 1: "icmp-host-unreachable", 2: "icmp-proto-unreachable", 3: "icmp-port-unreachable",
		5: "icmp-net-prohibited", 6: "icmp-host-prohibited", 7: "tcp-reset", 8: "icmp-admin-prohibited",
	}
	if f == flannel.IPv6 {
		names = map[uint32]string{
			0: "icmp6-no-route", 1: "icmp6-adm-prohibited", 3: "icmp6-addr-unreachable", 4: "icmp6-port-unreachable",
			6: "tcp-reset", 7: "icmp6-policy-fail", 8: "icmp6-reject-route",
		}
	}
	return " --reject-with " + names[with], names[with] != ""
}

// Flags of a NAT range (linux/netfilter/nf_nat.h).
const (
	natAddress     = 1 << 0
	natPorts       = 1 << 1
	natRandom      = 1 << 2
	natPersistent  = 1 << 3
	natRandomFully = 1 << 4
	natKnown       = natAddress | natPorts | natRandom | natPersistent | natRandomFully
)

type natRange struct {
	flags            uint32
	from, to         netip.Addr
	fromPort, toPort uint16
}

// natRangeOf reads what a NAT target translates to: struct nf_nat_ipv4_multi_range_compat in the IPv4 targets of revision 0,
// struct nf_nat_range or the longer nf_nat_range2 in all others.
func natRangeOf(f flannel.Family, name string, revision byte, data []byte) (natRange, bool) {
	if f == flannel.IPv4 && revision == 0 {
		if len(data) < 20 || binary.NativeEndian.Uint32(data) != 1 {
			return natRange{}, false
		}
		return natRange{
			flags:    binary.NativeEndian.Uint32(data[4:]),
			from:     netip.AddrFrom4([4]byte(data[8:])),
			to:       netip.AddrFrom4([4]byte(data[12:])),
			fromPort: binary.BigEndian.Uint16(data[16:]),
			toPort:   binary.BigEndian.Uint16(data[18:]),
		}, true
	}
	if len(data) < 40 || revision > 2 || name == "MASQUERADE" && revision > 0 {
		return natRange{}, false
	}
	from, _ := netip.AddrFromSlice(data[4 : 4+f.Bits()/8])
	to, _ := netip.AddrFromSlice(data[20 : 20+f.Bits()/8])
	return natRange{
		flags:    binary.NativeEndian.Uint32(data),
		from:     from,
		to:       to,
		fromPort: binary.BigEndian.Uint16(data[36:]),
		toPort:   binary.BigEndian.Uint16(data[38:]),
	}, true
}

func (r natRange) describe(name string) string {
	var address, ports string
	if r.flags&natAddress != 0 {
		address = r.from.String()
		if r.from.Is6() && r.flags&natPorts != 0 {
			address = "[" + address + "]"
		}
		if r.to != r.from {
			address += "-" + r.to.String()
		}
	}
	if r.flags&natPorts != 0 {
		ports = fmt.Sprint(r.fromPort)
		if r.toPort != r.fromPort {
			ports += fmt.Sprintf("-%d", r.toPort)
		}
		if name != "MASQUERADE" {
			ports = ":" + ports
		}
	}
	option := map[string]string{"DNAT": " --to-destination ", "SNAT": " --to-source ", "MASQUERADE": " --to-ports "}[name]
	s := ""
	if address+ports != "" {
		s = option + address + ports
	}
	for _, f := range []flag{{natRandom, " --random"}, {natRandomFully, " --random-fully"}, {natPersistent, " --persistent"}} {
		if r.flags&f.bit != 0 {
			s += f.word
		}
	}
	return s
}
