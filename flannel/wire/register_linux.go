package wire

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"flanwatch/flannel"

	"golang.org/x/sys/unix"
)

// field is what of a packet a register holds.
type field uint8

const (
	fieldUnknown field = iota
	fieldSource
	fieldDestination
	fieldIn
	fieldOut
	fieldProtocol
	fieldMark
	fieldFamily
	fieldSourcePort
	fieldDestinationPort
	fieldBothPorts
	fieldFlags // of TCP
	fieldState
	fieldStatus
	fieldConnmark
	fieldType   // of an address; options of load tells of which
	fieldReturn // the interface towards the source
	fieldInIndex
	fieldOutIndex
)

// load is the content of a register: what was loaded, and what was done to it.
type load struct {
	field field
	size  int    // bytes
	mask  []byte // of size bytes, nil for all ones
	text  string // in words, for where it is not understood
	exprs int    // expressions in it that no match accounts for yet

	constant []byte // what an expression put there as it is
	xor      []byte // with which the masked value was combined, nil for none
	low      []byte // what the value is not below, where that was compared already
	options  string // for fieldType: the option of addrtype that is compared, then others
	limit    string
}

// NFTA_BITWISE_OP and its value NFT_BITWISE_MASK_XOR; x/sys does not have them.
const (
	attrBitwiseOp = 6
	opMaskXor     = 0
)

// registers counts the 32-bit words that expressions address, the verdict's four included.
const registers = 20

// word gives the place of a register. There are two ways to name one: four of 16 bytes, and sixteen of 4 bytes in the same
// memory.
func word(register uint32) (int, bool) {
	switch {
	case register >= unix.NFT_REG_1 && register <= unix.NFT_REG_4:
		return int(register) * 4, true
	case register >= unix.NFT_REG32_00 && register <= unix.NFT_REG32_15:
		return int(register-unix.NFT_REG32_00) + 4, true
	}
	return 0, false
}

// put fills a register. What its words held before is gone.
func (d *decoder) put(register uint32, l load) bool {
	start, ok := word(register)
	end := start + (l.size+3)/4
	if !ok || l.size <= 0 || end > registers {
		return false
	}
	held := &l
	for i := start; i < end; i++ {
		d.regs[i] = held
	}
	d.loads = append(d.loads, held)
	return true
}

// get gives what a register holds, nil where that was not loaded in whole by expressions that are understood.
func (d *decoder) get(register uint32) *load {
	start, ok := word(register)
	if !ok || d.regs[start] == nil {
		return nil
	}
	l := d.regs[start]
	for i := range d.regs {
		inside := i >= start && i < start+(l.size+3)/4
		if (d.regs[i] == l) != inside {
			return nil
		}
	}
	return l
}

func (d *decoder) payload(t *attrs) bool {
	if !t.have(unix.NFTA_PAYLOAD_DREG, unix.NFTA_PAYLOAD_BASE, unix.NFTA_PAYLOAD_OFFSET, unix.NFTA_PAYLOAD_LEN) {
		return false
	}
	dreg, ok1 := t.number(unix.NFTA_PAYLOAD_DREG)
	base, ok2 := t.number(unix.NFTA_PAYLOAD_BASE)
	offset, ok3 := t.number(unix.NFTA_PAYLOAD_OFFSET)
	size, ok4 := t.number(unix.NFTA_PAYLOAD_LEN)
	if !ok1 || !ok2 || !ok3 || !ok4 || size > 4*registers {
		return false
	}
	l := load{size: int(size), exprs: 1, text: fmt.Sprintf("%s offset %d length %d", baseName(base), offset, size)}
	switch base {
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		l.field = d.headerField(offset, size)
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		l.field = d.transportField(offset, size)
	}
	return d.put(dreg, l)
}

// headerField tells what lies at a place of the network header. A load shorter than the address is a prefix of it.
func (d *decoder) headerField(offset, size uint32) field {
	at := layouts[d.family]
	switch {
	case offset == at.source && size <= at.address:
		return fieldSource
	case offset == at.destination && size <= at.address:
		return fieldDestination
	case d.family == flannel.IPv4 && offset == 9 && size == 1:
		return fieldProtocol
	}
	return fieldUnknown
}

func baseName(base uint32) string {
	switch base {
	case unix.NFT_PAYLOAD_LL_HEADER:
		return "link header"
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		return "network header"
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		return "transport header"
	}
	return fmt.Sprintf("header %d", base)
}

// metaFields are the keys that are understood, with the size of what they load.
var metaFields = map[uint32]struct {
	field field
	size  int
	text  string
}{
	unix.NFT_META_IIFNAME: {fieldIn, unix.IFNAMSIZ, "iifname"},
	unix.NFT_META_OIFNAME: {fieldOut, unix.IFNAMSIZ, "oifname"},
	unix.NFT_META_L4PROTO: {fieldProtocol, 1, "l4proto"},
	unix.NFT_META_MARK:    {fieldMark, 4, "mark"},
	unix.NFT_META_NFPROTO: {fieldFamily, 1, "nfproto"},
	unix.NFT_META_IIF:     {fieldInIndex, 4, "iif"},
	unix.NFT_META_OIF:     {fieldOutIndex, 4, "oif"},
}

func (d *decoder) meta(t *attrs) bool {
	if t[unix.NFTA_META_SREG] != nil {
		return d.setMark(t)
	}
	dreg, ok1 := t.number(unix.NFTA_META_DREG)
	key, ok2 := t.number(unix.NFTA_META_KEY)
	if !ok1 || !ok2 || !t.have(unix.NFTA_META_DREG, unix.NFTA_META_KEY) {
		return false
	}
	m, known := metaFields[key]
	return known && d.put(dreg, load{field: m.field, size: m.size, exprs: 1, text: "meta " + m.text})
}

func (d *decoder) bitwise(t *attrs) bool {
	sreg, ok1 := t.number(unix.NFTA_BITWISE_SREG)
	dreg, ok2 := t.number(unix.NFTA_BITWISE_DREG)
	size, ok3 := t.number(unix.NFTA_BITWISE_LEN)
	mask, ok4 := value(t[unix.NFTA_BITWISE_MASK])
	xor, ok5 := value(t[unix.NFTA_BITWISE_XOR])
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !maskAndXor(t) {
		return false
	}
	from := d.get(sreg)
	if from == nil || int(size) != from.size || len(mask) != from.size || len(xor) != from.size {
		return false
	}
	l := load{field: from.field, size: from.size, mask: mask, exprs: from.exprs + 1}
	l.text = fmt.Sprintf("%s & %x", from.text, mask)
	if from.field == fieldMark && from.mask == nil {
		l.xor = xor
	}
	if from.mask != nil || !allZero(xor) {
		if l.xor == nil {
			l.field = fieldUnknown
		}
		l.text += fmt.Sprintf(" ^ %x", xor)
	}
	if !d.put(dreg, l) {
		return false
	}
	from.exprs = 0
	return true
}

// maskAndXor tells the plain form, which kernels before 5.6 do not name, from shifts and operations on two registers.
func maskAndXor(t *attrs) bool {
	plain := *t
	if plain[attrBitwiseOp] != nil {
		if op, ok := t.number(attrBitwiseOp); !ok || op != opMaskXor {
			return false
		}
		plain[attrBitwiseOp] = nil
	}
	return plain.have(unix.NFTA_BITWISE_SREG, unix.NFTA_BITWISE_DREG, unix.NFTA_BITWISE_LEN, unix.NFTA_BITWISE_MASK,
		unix.NFTA_BITWISE_XOR)
}

// value reads a data attribute that holds a value and no verdict.
func value(data []byte) ([]byte, bool) {
	t, ok := split(data)
	return t[unix.NFTA_DATA_VALUE], ok && t.have(unix.NFTA_DATA_VALUE)
}

func (d *decoder) cmp(t *attrs) bool {
	sreg, ok1 := t.number(unix.NFTA_CMP_SREG)
	op, ok2 := t.number(unix.NFTA_CMP_OP)
	data, ok3 := value(t[unix.NFTA_CMP_DATA])
	if !ok1 || !ok2 || !ok3 || !t.have(unix.NFTA_CMP_SREG, unix.NFTA_CMP_OP, unix.NFTA_CMP_DATA) {
		return false
	}
	l := d.get(sreg)
	if l == nil {
		return false
	}
	exprs := l.exprs + 1
	if d.lowEnd(l, op, data) {
		l.exprs = exprs
		return true
	}
	l.exprs = 0
	if m, ok := d.comparison(l, op, data); ok {
		return d.match(exprs, m)
	}
	d.opaque(exprs, fmt.Sprintf("[%s %s %x]", l.text, operator(op), data))
	return true
}

func operator(op uint32) string {
	if ops := []string{"==", "!=", "<", "<=", ">", ">="}; int(op) < len(ops) {
		return ops[op]
	}
	return fmt.Sprintf("operator %d", op)
}

// comparison turns the comparison of a register into a match.
func (d *decoder) comparison(l *load, op uint32, data []byte) (m flannel.Match, ok bool) {
	if l.low != nil {
		return d.portsBetween(l, op, data)
	}
	if op != unix.NFT_CMP_EQ && op != unix.NFT_CMP_NEQ {
		return m, false
	}
	m.Not = op == unix.NFT_CMP_NEQ
	switch l.field {
	case fieldSource, fieldDestination:
		m.Kind = flannel.MatchSource
		if l.field == fieldDestination {
			m.Kind = flannel.MatchDestination
		}
		m.Prefix, ok = d.prefix(l, data)
	case fieldIn, fieldOut:
		m.Kind = flannel.MatchIn
		if l.field == fieldOut {
			m.Kind = flannel.MatchOut
		}
		m.Text, ok = interfaceName(l, data)
	case fieldInIndex, fieldOutIndex:
		m.Kind = flannel.MatchIn
		if l.field == fieldOutIndex {
			m.Kind = flannel.MatchOut
		}
		const loopback = 1 // in every network namespace; of others the rule does not hold the name
		m.Text, ok = "lo", l.mask == nil && len(data) == 4 && binary.NativeEndian.Uint32(data) == loopback
	case fieldProtocol:
		m.Kind = flannel.MatchProtocol
		if ok = l.mask == nil && len(data) == 1 && data[0] != 0; ok {
			m.Text = flannel.ProtocolName(data[0])
		}
	case fieldFamily, fieldSourcePort, fieldDestinationPort, fieldBothPorts, fieldFlags, fieldState, fieldStatus, fieldConnmark, fieldType,
		fieldReturn:
		return d.extensionComparison(l, m.Not, data)
	case fieldMark:
		if l.xor != nil && !allZero(l.xor) {
			return m, false
		}
		m.Kind = flannel.MatchMark
		m.Mask = allOnes
		if l.mask != nil {
			m.Mask = binary.NativeEndian.Uint32(l.mask)
		}
		if ok = len(data) == 4; ok {
			m.Value = binary.NativeEndian.Uint32(data)
			ok = m.Value&^m.Mask == 0
		}
	}
	return m, ok
}

// prefix reads a comparison of an address, of which the first bytes were loaded.
func (d *decoder) prefix(l *load, data []byte) (netip.Prefix, bool) {
	if len(data) != l.size {
		return netip.Prefix{}, false
	}
	length := 8 * l.size
	if l.mask != nil {
		if length = leadingOnes(l.mask); length < 0 {
			return netip.Prefix{}, false
		}
	}
	full := make([]byte, layouts[d.family].address)
	copy(full, data)
	addr, _ := netip.AddrFromSlice(full)
	p := netip.PrefixFrom(addr, length)
	return p, length > 0 && p == p.Masked()
}

// leadingOnes is the length of a prefix mask, negative where the ones have a gap.
func leadingOnes(mask []byte) int {
	n := 0
	for _, b := range mask {
		n += bits.LeadingZeros8(^b)
		if b != 0xff {
			break
		}
	}
	total := 0
	for _, b := range mask {
		total += bits.OnesCount8(b)
	}
	if total != n {
		return -1
	}
	return n
}

// interfaceName reads a comparison of an interface name. Without a final NUL it is the beginning of one.
func interfaceName(l *load, data []byte) (string, bool) {
	if l.mask != nil || len(data) == 0 || len(data) > unix.IFNAMSIZ {
		return "", false
	}
	end := slices.Index(data, 0)
	if end < 0 {
		return string(data) + "+", len(data) < unix.IFNAMSIZ
	}
	name := string(data[:end])
	return name, name != "" && allZero(data[end:]) && name[end-1] != '+'
}
