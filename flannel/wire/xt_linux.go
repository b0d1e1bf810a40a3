package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"flanwatch/flannel"
)

// xt tells in the words of iptables-save what the data of an xtables match or target mean, name in front. Both forms of
// iptables keep the same structures (linux/netfilter/xt_*.h), and nothing is said of one that is not understood in full.
type xt struct {
	family   flannel.Family
	name     string
	revision byte
	data     []byte
}

// ExtensionMatch decodes a match of xtables. It is opaque where it is not understood in full; different ones read
// differently.
func ExtensionMatch(f flannel.Family, name string, revision byte, data []byte) flannel.Match {
	x := xt{f, name, revision, data}
	if decode := xtMatches[xtKey{name, revision}]; decode != nil {
		if text, ok := decode(x); ok {
			if m := flannel.NewExtension(text); m.Kind == flannel.MatchExtension {
				return m
			}
		}
	}
	return flannel.Match{Kind: flannel.MatchOpaque, Text: "-m " + x.raw()}
}

// ExtensionTarget decodes a target of xtables that is not MASQUERADE without more.
func ExtensionTarget(f flannel.Family, name string, revision byte, data []byte) flannel.Target {
	x := xt{f, name, revision, data}
	if decode := xtTargets[xtKey{name, revision}]; decode != nil {
		if text, ok := decode(x); ok {
			return flannel.NewTarget(text)
		}
	}
	if t := flannel.NewTarget(x.raw()); t.Kind == flannel.TargetPass && name != "CT" {
		return t
	}
	return flannel.Target{Text: "-j " + x.raw()}
}

func (x xt) raw() string {
	return fmt.Sprintf("%s --revision %d --data 0x%x", x.name, x.revision, bytes.TrimRight(x.data, "\x00"))
}

type xtKey struct {
	name     string
	revision byte
}

// xtMatches and xtTargets hold the exact revisions that are understood.
var xtMatches = map[xtKey]func(xt) (string, bool){
	{"tcp", 0}:       xt.tcp,
	{"udp", 0}:       xt.udp,
	{"multiport", 1}: xt.multiport,
	{"conntrack", 2}: xt.conntrack,
	{"conntrack", 3}: xt.conntrack,
	{"addrtype", 1}:  xt.addrtype,
	{"statistic", 0}: xt.statistic,
	{"physdev", 0}:   xt.physdev,
	{"connmark", 1}:  xt.connmark,
	{"rpfilter", 0}:  xt.rpfilter,
	{"set", 1}:       xt.set,
	{"set", 2}:       xt.set,
	{"set", 3}:       xt.set,
	{"set", 4}:       xt.set,
}

var xtTargets = map[xtKey]func(xt) (string, bool){
	{"MARK", 2}:       xt.setMark,
	{"CONNMARK", 1}:   xt.setConnmark,
	{"CONNMARK", 2}:   xt.setConnmark,
	{"CT", 0}:         xt.tracking,
	{"CT", 1}:         xt.tracking,
	{"CT", 2}:         xt.tracking,
	{"NOTRACK", 0}:    func(xt) (string, bool) { return "NOTRACK", true },
	{"TTL", 0}:        xt.hops,
	{"HL", 0}:         xt.hops,
	{"LOG", 0}:        xt.log,
	{"NFLOG", 0}:      xt.nflog,
	{"REJECT", 0}:     xt.reject,
	{"MASQUERADE", 0}: xt.nat,
	{"SNAT", 0}:       xt.nat,
	{"SNAT", 1}:       xt.nat,
	{"SNAT", 2}:       xt.nat,
	{"DNAT", 0}:       xt.nat,
	{"DNAT", 1}:       xt.nat,
	{"DNAT", 2}:       xt.nat,
	{"REDIRECT", 0}:   xt.nat,
}

func (x xt) udp() (string, bool) {
	if len(x.data) < 9 || x.data[8]&^3 != 0 {
		return "", false
	}
	return "udp" + describePorts(x.data, x.data[8]), true
}

func (x xt) tcp() (string, bool) {
	if len(x.data) < 12 {
		return "", false
	}
	s, ok := describeTCP(x.data)
	return "tcp" + s, ok
}

// multiport reads struct xt_multiport_v1: which ports, their number, the ports, which begin a range, inversion.
func (x xt) multiport() (string, bool) {
	const most = 15
	if len(x.data) < 48 || x.data[0] > 2 || x.data[1] == 0 || x.data[1] > most {
		return "", false
	}
	var list strings.Builder
	for i := range int(x.data[1]) {
		ranged := x.data[32+i] != 0
		fmt.Fprintf(&list, "%d%s", binary.NativeEndian.Uint16(x.data[2+2*i:]), map[bool]string{true: ":", false: ","}[ranged])
	}
	option := []string{"--sports", "--dports", "--ports"}[x.data[0]]
	return fmt.Sprintf("multiport %s%s %s", not(x.data[47] != 0), option, strings.TrimSuffix(list.String(), ",")), true
}

// conntrack reads struct xt_conntrack_mtinfo2 or 3 as far as it matches nothing but the state. An alias is how "-m state"
// is kept.
func (x xt) conntrack() (string, bool) {
	const matchState, alias = 1, 1 << 13
	if len(x.data) < 154 {
		return "", false
	}
	match, invert := binary.NativeEndian.Uint16(x.data[146:]), binary.NativeEndian.Uint16(x.data[148:])
	if match&^alias != matchState || invert&^(matchState|alias) != 0 {
		return "", false
	}
	mask := uint32(binary.NativeEndian.Uint16(x.data[150:]))
	if mask == 0 || mask&^0x1cf != 0 {
		return "", false
	}
	option := "conntrack %s--ctstate %s"
	if match&alias != 0 {
		option = "state %s--state %s"
	}
	return fmt.Sprintf(option, not(invert&matchState != 0), words(mask, "", connectionStates)), true
}

// connectionStates are the bits of XT_CONNTRACK_STATE_*, in the order of iptables-save.
var connectionStates = []flag{
	{1, "INVALID"}, {8, "NEW"}, {4, "RELATED"}, {2, "ESTABLISHED"}, {1 << 8, "UNTRACKED"}, {1 << 6, "SNAT"}, {1 << 7, "DNAT"},
}

func (x xt) addrtype() (string, bool) {
	if len(x.data) < 8 {
		return "", false
	}
	s, ok := describeAddrtype(x.data)
	return "addrtype" + s, ok
}

// statistic reads struct xt_statistic_info.
func (x xt) statistic() (string, bool) {
	if len(x.data) < 16 {
		return "", false
	}
	mode, flags := binary.NativeEndian.Uint16(x.data), binary.NativeEndian.Uint16(x.data[2:])
	first, second := binary.NativeEndian.Uint32(x.data[4:]), binary.NativeEndian.Uint32(x.data[8:])
	switch {
	case flags&^1 != 0:
	case mode == 0:
		return fmt.Sprintf("statistic --mode random %s--probability %.11f", not(flags != 0), float64(first)/(1<<31)), true
	case mode == 1:
		return fmt.Sprintf("statistic --mode nth %s--every %d --packet %d", not(flags != 0), first+1, second), true
	}
	return "", false
}

// physdev reads struct xt_physdev_info: names and masks of the ports that the packet came in and leaves by, inversions, and
// which of five conditions are set.
func (x xt) physdev() (string, bool) {
	const in, out, bridged, isIn, isOut = 1, 2, 4, 8, 16
	if len(x.data) < 66 {
		return "", false
	}
	inverted, set := x.data[64], x.data[65]
	s := "physdev"
	for _, o := range []struct {
		bit    byte
		option string
		at     int // of the name, -1 for none
	}{
		{in, "--physdev-in", 0},
		{isIn, "--physdev-is-in", -1},
		{out, "--physdev-out", 32},
		{isOut, "--physdev-is-out", -1},
		{bridged, "--physdev-is-bridged", -1},
	} {
		if set&o.bit == 0 {
			continue
		}
		s += " " + not(inverted&o.bit != 0) + o.option
		if o.at >= 0 {
			name := cString(x.data[o.at : o.at+16])
			if mask := x.data[o.at+16 : o.at+32]; name == "" || len(name) == 16 || mask[len(name)] == 0 {
				return "", false
			}
			s += " " + name
		}
	}
	return s, set != 0 && set&^31 == 0
}

// connmark reads struct xt_connmark_mtinfo1.
func (x xt) connmark() (string, bool) {
	if len(x.data) < 9 {
		return "", false
	}
	return "connmark " + not(x.data[8] != 0) + "--mark " + masked(x.data), true
}

func masked(data []byte) string {
	value, mask := binary.NativeEndian.Uint32(data), binary.NativeEndian.Uint32(data[4:])
	if mask == allOnes {
		return fmt.Sprintf("0x%x", value)
	}
	return fmt.Sprintf("0x%x/0x%x", value, mask)
}

func (x xt) setMark() (string, bool) {
	if len(x.data) < 8 {
		return "", false
	}
	return fmt.Sprintf("MARK --set-xmark 0x%x/0x%x", binary.NativeEndian.Uint32(x.data), binary.NativeEndian.Uint32(x.data[4:])), true
}

// setConnmark reads struct xt_connmark_tginfo1, or 2 as long as nothing is shifted.
func (x xt) setConnmark() (string, bool) {
	at := 12
	if x.revision == 2 {
		at = 14
	}
	if len(x.data) < 16 || x.revision == 2 && x.data[13] != 0 {
		return "", false
	}
	mark, ctmask, nfmask := binary.NativeEndian.Uint32(x.data), binary.NativeEndian.Uint32(x.data[4:]), binary.NativeEndian.Uint32(x.data[8:])
	switch x.data[at] {
	case 0:
		return fmt.Sprintf("CONNMARK --set-xmark 0x%x/0x%x", mark, ctmask), true
	case 1:
		return fmt.Sprintf("CONNMARK --save-mark --nfmask 0x%x --ctmask 0x%x", nfmask, ctmask), true
	case 2:
		return fmt.Sprintf("CONNMARK --restore-mark --nfmask 0x%x --ctmask 0x%x", nfmask, ctmask), true
	}
	return "", false
}

// tracking reads struct xt_ct_target_info: flags, zone, events, helper.
func (x xt) tracking() (string, bool) {
	if len(x.data) < 28 {
		return "", false
	}
	switch flags, zone := binary.NativeEndian.Uint16(x.data), binary.NativeEndian.Uint16(x.data[2:]); {
	case flags == 1|2:
		return "NOTRACK", true
	case flags&1 != 0:
		return "CT --notrack", true
	case flags == 0 && allZero(x.data[4:28]):
		return "CT" + map[bool]string{true: fmt.Sprintf(" --zone %d", zone)}[zone != 0], true
	case flags == 0:
		return fmt.Sprintf("CT --zone %d --data 0x%x", zone, x.data[4:28]), true
	}
	return "", false
}

func (x xt) hops() (string, bool) {
	if len(x.data) < 2 || x.data[0] > 2 {
		return "", false
	}
	return fmt.Sprintf("%s --%s-%s %d", x.name, strings.ToLower(x.name), []string{"set", "inc", "dec"}[x.data[0]], x.data[1]), true
}

// log reads struct xt_log_info: level, flags, prefix.
func (x xt) log() (string, bool) {
	const usual = 4
	if len(x.data) < 32 || x.data[1]&^0x2f != 0 {
		return "", false
	}
	s := "LOG" + prefixOption(" --log-prefix ", x.data[2:32])
	if x.data[0] != usual {
		s += fmt.Sprintf(" --log-level %d", x.data[0])
	}
	for _, f := range []flag{
		{1, " --log-tcp-sequence"}, {2, " --log-tcp-options"}, {4, " --log-ip-options"}, {8, " --log-uid"}, {32, " --log-macdecode"},
	} {
		if uint32(x.data[1])&f.bit != 0 {
			s += f.word
		}
	}
	return s, true
}

func prefixOption(option string, data []byte) string {
	prefix := cString(data)
	if prefix == "" {
		return ""
	}
	return option + flannel.Quote(prefix)
}

// nflog reads struct xt_nflog_info: length, group, threshold, flags, prefix.
func (x xt) nflog() (string, bool) {
	if len(x.data) < 76 {
		return "", false
	}
	s := "NFLOG" + prefixOption(" --nflog-prefix ", x.data[12:76])
	if group := binary.NativeEndian.Uint16(x.data[4:]); group != 0 {
		s += fmt.Sprintf(" --nflog-group %d", group)
	}
	if size := binary.NativeEndian.Uint32(x.data); size != 0 {
		s += fmt.Sprintf(" --nflog-range %d", size)
	}
	if threshold := binary.NativeEndian.Uint16(x.data[6:]); threshold > 1 {
		s += fmt.Sprintf(" --nflog-threshold %d", threshold)
	}
	return s, true
}

func (x xt) reject() (string, bool) {
	if len(x.data) < 4 {
		return "", false
	}
	s, ok := describeReject(x.family, binary.NativeEndian.Uint32(x.data))
	return "REJECT" + s, ok
}

func (x xt) nat() (string, bool) {
	r, ok := natRangeOf(x.family, x.name, x.revision, x.data)
	if r.flags&natAddress == 0 && ok && !(r.from.IsUnspecified() && r.to.IsUnspecified()) {
		return "", false
	}
	return x.name + r.describe(x.name), ok && r.flags&^natKnown == 0
}

func not(inverted bool) string {
	if inverted {
		return "! "
	}
	return ""
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
		if name == "SNAT" || name == "DNAT" {
			ports = ":" + ports
		}
	}
	option := map[string]string{"DNAT": " --to-destination ", "SNAT": " --to-source ", "MASQUERADE": " --to-ports ", "REDIRECT": " --to-ports "}[name]
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
