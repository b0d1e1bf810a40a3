package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"flanwatch/flannel"

	"golang.org/x/sys/unix"
)

// Values of linux/netfilter/nf_tables.h that x/sys does not have.
const (
	attrNatFlags  = 7 // NFTA_NAT_FLAGS
	setInverted   = 1 // NFT_LOOKUP_F_INV
	rejectUnreach = 0 // NFT_REJECT_ICMP_UNREACH
	rejectReset   = 1
)

func (d *decoder) transportField(offset, size uint32) field {
	switch {
	case offset == 0 && size == 2:
		return fieldSourcePort
	case offset == 0 && size == 4: // iptables and nft load both at once where both are compared
		return fieldBothPorts
	case offset == 2 && size == 2:
		return fieldDestinationPort
	case offset == 13 && size == 1 && d.protocolName() == "tcp":
		return fieldFlags
	}
	return fieldUnknown
}

// protocolName is the protocol that the rule has compared so far, or "".
func (d *decoder) protocolName() string {
	for _, m := range d.matches {
		if m.Kind == flannel.MatchProtocol && !m.Not {
			return m.Text
		}
	}
	return ""
}

func (d *decoder) ct(t *attrs) bool {
	dreg, ok1 := t.number(unix.NFTA_CT_DREG)
	key, ok2 := t.number(unix.NFTA_CT_KEY)
	if !ok1 || !ok2 || !t.have(unix.NFTA_CT_DREG, unix.NFTA_CT_KEY) {
		return false
	}
	l := load{size: 4, exprs: 1}
	switch key {
	case unix.NFT_CT_STATE:
		l.field, l.text = fieldState, "ct state"
	case unix.NFT_CT_STATUS:
		l.field, l.text = fieldStatus, "ct status"
	case unix.NFT_CT_MARK:
		l.field, l.text = fieldConnmark, "ct mark"
	default:
		return false
	}
	return d.put(dreg, l)
}

// extensionComparison turns the comparison of what iptables has an extension for into that extension.
func (d *decoder) extensionComparison(l *load, not bool, data []byte) (flannel.Match, bool) {
	text, ok := d.extensionText(l, not, data)
	if !ok {
		return flannel.Match{}, false
	}
	m := flannel.NewExtension(text)
	return m, m.Kind == flannel.MatchExtension
}

func (d *decoder) extensionText(l *load, inverted bool, data []byte) (string, bool) {
	if len(data) != l.size && l.field != fieldReturn {
		return "", false
	}
	switch l.field {
	case fieldFamily:
		name := map[byte]string{unix.NFPROTO_IPV4: "ipv4", unix.NFPROTO_IPV6: "ipv6"}[data[0]]
		return "family " + not(inverted) + "--is " + name, l.mask == nil && name != ""
	case fieldSourcePort, fieldDestinationPort:
		return d.ports(l, inverted, fmt.Sprint(binary.BigEndian.Uint16(data))), l.mask == nil
	case fieldBothPorts:
		name := d.protocolName()
		text := fmt.Sprintf("%s --sport %d --dport %d", name, binary.BigEndian.Uint16(data), binary.BigEndian.Uint16(data[2:]))
		return text, l.mask == nil && !inverted && (name == "tcp" || name == "udp")
	case fieldFlags:
		mask := byte(0xff)
		if l.mask != nil {
			mask = l.mask[0]
		}
		return fmt.Sprintf("tcp %s--tcp-flags %s %s", not(inverted), tcpFlags(mask), tcpFlags(data[0])), mask&^0x3f == 0
	case fieldState, fieldStatus:
		return bitsText(l, inverted, data)
	case fieldConnmark:
		mask := uint32(allOnes)
		if l.mask != nil {
			mask = binary.NativeEndian.Uint32(l.mask)
		}
		both := binary.NativeEndian.AppendUint32(slices.Clone(data), mask)
		return "connmark " + not(inverted) + "--mark " + masked(both), true
	case fieldReturn:
		return l.reversePath(inverted, data)
	case fieldType:
		t := binary.NativeEndian.Uint32(data)
		if l.mask != nil || t >= uint32(len(addressTypes)) {
			return "", false
		}
		return "addrtype " + not(inverted) + l.options + " " + addressTypes[t] + l.limit, true
	}
	return "", false
}

// addressTypes are the types of routes (RTN_*, linux/rtnetlink.h) by number.
var addressTypes = []string{
	"UNSPEC", "UNICAST", "LOCAL", "BROADCAST", "ANYCAST", "MULTICAST", "BLACKHOLE", "UNREACHABLE", "PROHIBIT", "THROW",
	"NAT", "XRESOLVE",
}

// bitsText reads "some of these bits", which nft writes as a mask and a comparison with 0, and "exactly this bit".
func bitsText(l *load, inverted bool, data []byte) (string, bool) {
	option, names := "conntrack %s--ctstate %s", nativeStates
	if l.field == fieldStatus {
		option, names = "conntrack %s--ctstatus %s", nativeStatus
	}
	known := uint32(0)
	for _, f := range names {
		known |= f.bit
	}
	value := binary.NativeEndian.Uint32(data)
	if l.mask == nil {
		// One state is one bit; several bits of the status can be set at once.
		one := value != 0 && value&(value-1) == 0 && l.field == fieldState
		return fmt.Sprintf(option, not(inverted), words(value, "", names)), one && value&^known == 0
	}
	mask := binary.NativeEndian.Uint32(l.mask)
	return fmt.Sprintf(option, not(!inverted), words(mask, "", names)), value == 0 && mask != 0 && mask&^known == 0
}

// nativeStates and nativeStatus are the bits of the keys state and status of ct.
var (
	nativeStates = []flag{{1, "INVALID"}, {8, "NEW"}, {4, "RELATED"}, {2, "ESTABLISHED"}, {64, "UNTRACKED"}}
	nativeStatus = []flag{
		{1, "EXPECTED"}, {2, "SEEN_REPLY"}, {4, "ASSURED"}, {8, "CONFIRMED"}, {16, "SNAT"}, {32, "DNAT"},
	}
)

// ports gives the match for ports of the protocol at hand; without one, of any protocol that has ports.
func (d *decoder) ports(l *load, inverted bool, list string) string {
	side := "sport"
	if l.field == fieldDestinationPort {
		side = "dport"
	}
	switch name := d.protocolName(); name {
	case "tcp", "udp":
		return name + " " + not(inverted) + "--" + side + " " + list
	}
	return "multiport " + not(inverted) + "--" + side + "s " + list
}

// portRange reads the expression for a range.
func (d *decoder) portRange(t *attrs) bool {
	const sregAttr, opAttr, fromAttr, toAttr = 1, 2, 3, 4 // NFTA_RANGE_*
	sreg, ok1 := t.number(sregAttr)
	op, ok2 := t.number(opAttr)
	from, ok3 := value(t[fromAttr])
	to, ok4 := value(t[toAttr])
	if !ok1 || !ok2 || !ok3 || !ok4 || op > 1 || !t.have(sregAttr, opAttr, fromAttr, toAttr) {
		return false
	}
	l := d.get(sreg)
	if l == nil || !l.isPort() || len(from) != 2 || len(to) != 2 {
		return false
	}
	m := flannel.NewExtension(d.ports(l, op == 1, portList(from, to)))
	exprs := l.exprs + 1
	l.exprs = 0
	return d.match(exprs, m)
}

func (l *load) isPort() bool {
	return (l.field == fieldSourcePort || l.field == fieldDestinationPort) && l.mask == nil
}

func portList(from, to []byte) string {
	return fmt.Sprintf("%d:%d", binary.BigEndian.Uint16(from), binary.BigEndian.Uint16(to))
}

// lowEnd takes the first of the two comparisons that make a range.
func (d *decoder) lowEnd(l *load, op uint32, data []byte) bool {
	if op != unix.NFT_CMP_GTE || !l.isPort() || l.low != nil || len(data) != 2 {
		return false
	}
	l.low = data
	return true
}

func (d *decoder) portsBetween(l *load, op uint32, data []byte) (flannel.Match, bool) {
	low := l.low
	l.low = nil
	if op != unix.NFT_CMP_LTE || len(data) != 2 {
		l.text = fmt.Sprintf("%s >= %x and", l.text, low)
		return flannel.Match{}, false
	}
	return flannel.NewExtension(d.ports(l, false, portList(low, data))), true
}

// mergePorts puts conditions of one extension of iptables together, in the order of iptables-save.
func (d *decoder) mergePorts(m flannel.Match) bool {
	name := m.Extension()
	if m.Kind != flannel.MatchExtension || name != "tcp" && name != "udp" || len(d.matches) == 0 {
		return false
	}
	last := &d.matches[len(d.matches)-1]
	if last.Kind != flannel.MatchExtension || last.Extension() != name {
		return false
	}
	order := []string{"--sport", "--dport", "--tcp-flags"}
	var parts []flannel.Option
	for _, from := range []flannel.Match{*last, m} {
		for o := range from.Options() {
			if slices.ContainsFunc(parts, func(p flannel.Option) bool { return p.Name == o.Name }) {
				return false
			}
			parts = append(parts, o)
		}
	}
	slices.SortFunc(parts, func(a, b flannel.Option) int { return slices.Index(order, a.Name) - slices.Index(order, b.Name) })
	text := name
	for _, o := range parts {
		text += " " + not(o.Not) + o.Name + " " + o.Value
	}
	last.Text = text
	return true
}

// isShort tells a prefix of an address from the whole.
func (l *load) isShort(f flannel.Family) bool {
	return (l.field == fieldSource || l.field == fieldDestination) && l.size*8 != f.Bits()
}

// setMark reads what is written to the packet's mark: a value, or the mark after bits were cleared and flipped.
func (d *decoder) setMark(t *attrs) bool {
	sreg, ok1 := t.number(unix.NFTA_META_SREG)
	key, ok2 := t.number(unix.NFTA_META_KEY)
	if !ok1 || !ok2 || !d.last || key != unix.NFT_META_MARK || !t.have(unix.NFTA_META_SREG, unix.NFTA_META_KEY) {
		return false
	}
	l := d.get(sreg)
	if l == nil || l.size != 4 {
		return false
	}
	var target flannel.Target
	switch {
	case l.field == fieldMark && l.xor != nil:
		mask := ^binary.NativeEndian.Uint32(l.mask)
		target = markTarget(binary.NativeEndian.Uint32(l.xor), mask)
	case l.constant != nil:
		target = markTarget(binary.NativeEndian.Uint32(l.constant), allOnes)
	default:
		return false
	}
	exprs := l.exprs + 1
	l.exprs = 0
	return d.end(exprs, target)
}

func markTarget(value, mask uint32) flannel.Target {
	return flannel.NewTarget(fmt.Sprintf("MARK --set-xmark 0x%x/0x%x", value, mask))
}

// nat reads snat and dnat to addresses and ports that registers hold.
func (d *decoder) nat(t *attrs) bool {
	kind, ok := t.number(unix.NFTA_NAT_TYPE)
	family, ok2 := t.number(unix.NFTA_NAT_FAMILY)
	if !ok || !ok2 || kind > 1 || family != map[flannel.Family]uint32{flannel.IPv4: unix.NFPROTO_IPV4, flannel.IPv6: unix.NFPROTO_IPV6}[d.family] {
		return false
	}
	r := natRange{}
	exprs := 1
	take := func(attr int, size int) ([]byte, bool) {
		reg, ok := t.number(uint16(attr))
		if !ok {
			return nil, t[attr] == nil
		}
		l := d.get(reg)
		if l == nil || len(l.constant) != size {
			return nil, false
		}
		exprs += l.exprs
		l.exprs = 0
		return l.constant, true
	}
	size := d.family.Bits() / 8
	from, ok1 := take(unix.NFTA_NAT_REG_ADDR_MIN, size)
	to, ok2 := take(unix.NFTA_NAT_REG_ADDR_MAX, size)
	low, ok3 := take(unix.NFTA_NAT_REG_PROTO_MIN, 2)
	high, ok4 := take(unix.NFTA_NAT_REG_PROTO_MAX, 2)
	flags, flagged := t.number(attrNatFlags)
	if !ok1 || !ok2 || !ok3 || !ok4 || t[attrNatFlags] != nil && !flagged {
		return false
	}
	if from != nil {
		r.flags |= natAddress
		r.from, _ = netip.AddrFromSlice(from)
		r.to = r.from
		if to != nil {
			r.to, _ = netip.AddrFromSlice(to)
		}
	}
	if low != nil {
		r.flags |= natPorts
		r.fromPort = binary.BigEndian.Uint16(low)
		r.toPort = r.fromPort
		if high != nil {
			r.toPort = binary.BigEndian.Uint16(high)
		}
	}
	const known = natRandom | natPersistent | natRandomFully
	if flags&^(known|natAddress|natPorts) != 0 || r.flags == 0 {
		return false
	}
	r.flags |= flags & known
	name := []string{"SNAT", "DNAT"}[kind]
	target := flannel.NewTarget(name + r.describe(name))
	return target.Kind != flannel.TargetOpaque && d.end(exprs, target)
}

// log reads the last expression of a rule that does nothing else, as NFLOG is written.
func (d *decoder) log(t *attrs) bool {
	rest := *t
	prefix := rest[unix.NFTA_LOG_PREFIX]
	group := rest[unix.NFTA_LOG_GROUP]
	rest[unix.NFTA_LOG_PREFIX], rest[unix.NFTA_LOG_GROUP] = nil, nil
	level, _ := rest.number(unix.NFTA_LOG_LEVEL)
	const usual = 4
	if rest[unix.NFTA_LOG_LEVEL] != nil && level == usual {
		rest[unix.NFTA_LOG_LEVEL] = nil
	}
	text := "LOG" + prefixOption(" --log-prefix ", prefix)
	if group != nil {
		if len(group) != 2 {
			return false
		}
		text = "NFLOG" + prefixOption(" --nflog-prefix ", prefix)
		if n := binary.BigEndian.Uint16(group); n != 0 {
			text += fmt.Sprintf(" --nflog-group %d", n)
		}
		for _, kind := range []uint16{unix.NFTA_LOG_SNAPLEN, unix.NFTA_LOG_QTHRESHOLD} {
			if allZero(rest[kind]) {
				rest[kind] = nil
			}
		}
	}
	return rest.have() && d.end(1, flannel.NewTarget(text))
}

func (d *decoder) reject(t *attrs) bool {
	kind, ok := t.number(unix.NFTA_REJECT_TYPE)
	if !ok {
		return false
	}
	var code byte
	if c := t[unix.NFTA_REJECT_ICMP_CODE]; len(c) > 0 {
		code = c[0]
	}
	with := ""
	switch {
	case kind == rejectReset:
		with = "tcp-reset"
	case kind == rejectUnreach && d.family == flannel.IPv4:
		with = map[byte]string{
			0: "icmp-net-unreachable", 1: "icmp-host-unreachable", 2: "icmp-proto-unreachable", 3: "icmp-port-unreachable",
			9: "icmp-net-prohibited", 10: "icmp-host-prohibited", 13: "icmp-admin-prohibited",
		}[code]
	case kind == rejectUnreach:
		with = map[byte]string{
			0: "icmp6-no-route", 1: "icmp6-adm-prohibited", 3: "icmp6-addr-unreachable", 4: "icmp6-port-unreachable",
			5: "icmp6-policy-fail", 6: "icmp6-reject-route",
		}[code]
	}
	text := "REJECT"
	if with != "" {
		text += " --reject-with " + with
	}
	return d.end(1, flannel.NewTarget(text))
}
