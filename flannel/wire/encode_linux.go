package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"flanwatch/flannel"

	"golang.org/x/sys/unix"
)

// Encode gives the payload of NFTA_RULE_EXPRESSIONS for a rule of the chain, with a counter at zero where the backend's
// rules count.
//
// For iptables-nft it is the form that -C of every version finds: newer ones write the mark as a native expression,
// which older ones do not read. For nftables it is the form that nft writes. The error says what of the rule cannot be
// written; opaque rules never can.
func Encode(id flannel.ChainID, r flannel.Rule) ([]byte, error) {
	return EncodeCounted(id, r, flannel.Counter{})
}

// EncodeCounted is Encode with the count that the rule shall start from.
func EncodeCounted(id flannel.ChainID, r flannel.Rule, c flannel.Counter) ([]byte, error) {
	e := encoder{family: id.Family, native: id.Backend == flannel.Nftables}
	if !e.native && id.Backend != flannel.IptablesNft {
		return nil, fmt.Errorf("encode rule of %s: %v keeps no nf_tables rules", id, id.Backend)
	}
	if err := e.rule(r, c); err != nil {
		return nil, fmt.Errorf("encode rule of %s: %w", id, err)
	}
	if len(e.buf) > longest {
		return nil, fmt.Errorf("encode rule of %s: too long for a netlink attribute", id)
	}
	return e.buf, nil
}

// longest is what fits into one attribute.
const longest = 1<<16 - 1 - headerLen

// register is where every load goes: one comparison is done before the next load.
const register = unix.NFT_REG_1

type encoder struct {
	writer
	family flannel.Family
	native bool
}

func (e *encoder) rule(r flannel.Rule, c flannel.Counter) error {
	var seen [flannel.MatchComment + 1]bool
	for _, m := range r.Matches {
		if m.Kind > flannel.MatchComment {
			return fmt.Errorf("match %q of unknown kind %d", m.Text, m.Kind)
		}
		if seen[m.Kind] && m.Kind != flannel.MatchOpaque && m.Kind <= flannel.MatchProtocol {
			return errors.New("iptables has room for one address, interface and protocol each")
		}
		seen[m.Kind] = true
		if err := e.match(m); err != nil {
			return err
		}
	}
	if !e.native {
		e.counter(c)
	}
	return e.target(r.Target)
}

func (e *encoder) match(m flannel.Match) error {
	switch m.Kind {
	case flannel.MatchSource:
		return e.address(m, layouts[e.family].source)
	case flannel.MatchDestination:
		return e.address(m, layouts[e.family].destination)
	case flannel.MatchIn:
		return e.iface(m, unix.NFT_META_IIFNAME)
	case flannel.MatchOut:
		return e.iface(m, unix.NFT_META_OIFNAME)
	case flannel.MatchProtocol:
		return e.protocol(m)
	case flannel.MatchMark:
		return e.mark(m)
	case flannel.MatchComment:
		return e.comment(m)
	}
	return fmt.Errorf("match %q is not understood", m.Text)
}

// address compares the bytes that the prefix covers: a short load where it ends on a byte, a mask otherwise.
func (e *encoder) address(m flannel.Match, offset uint32) error {
	p := m.Prefix
	if !p.IsValid() || p.Addr().Is4() != (e.family == flannel.IPv4) || p != p.Masked() || p.Addr().Zone() != "" {
		return fmt.Errorf("prefix %v is no masked %v prefix", p, e.family)
	}
	if p.Bits() == 0 {
		return errors.New("a prefix of length 0 is no condition")
	}
	addr := p.Addr().AsSlice()
	if p.Bits()%8 == 0 {
		addr = addr[:p.Bits()/8]
	}
	e.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, uint32(len(addr)))
	if p.Bits()%8 != 0 {
		e.bitwise(prefixMask(p))
	}
	e.cmp(m.Not, addr)
	return nil
}

func prefixMask(p netip.Prefix) []byte {
	mask := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

func (e *encoder) iface(m flannel.Match, key uint32) error {
	name, wild := strings.CutSuffix(m.Text, "+")
	if name == "" || len(m.Text) >= unix.IFNAMSIZ || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%q is no interface name", m.Text)
	}
	data := []byte(name)
	switch {
	case wild: // the comparison ends with the part that is given
	case e.native:
		data = append(data, make([]byte, unix.IFNAMSIZ-len(data))...)
	default:
		data = append(data, 0)
	}
	e.meta(key)
	e.cmp(m.Not, data)
	return nil
}

func (e *encoder) protocol(m flannel.Match) error {
	number, ok := protocolNumber(m.Text)
	if !ok {
		return fmt.Errorf("%q is no protocol", m.Text)
	}
	e.meta(unix.NFT_META_L4PROTO)
	e.cmp(m.Not, []byte{number})
	return nil
}

func (e *encoder) mark(m flannel.Match) error {
	if m.Value&^m.Mask != 0 {
		return fmt.Errorf("mark 0x%x/0x%x matches nothing", m.Value, m.Mask)
	}
	value := binary.NativeEndian.AppendUint32(nil, m.Value)
	mask := binary.NativeEndian.AppendUint32(nil, m.Mask)
	if !e.native {
		invert := make([]byte, 8) // one byte and padding
		if m.Not {
			invert[0] = 1
		}
		e.extension("match", "mark", 1, append(append(value, mask...), invert...))
		return nil
	}
	e.meta(unix.NFT_META_MARK)
	if m.Mask != allOnes {
		e.bitwise(mask)
	}
	e.cmp(m.Not, value)
	return nil
}

func (e *encoder) comment(m flannel.Match) error {
	if e.native {
		return errors.New("comments of native rules are no expressions")
	}
	if m.Not || len(m.Text) >= commentLen || strings.ContainsRune(m.Text, 0) {
		return fmt.Errorf("comment %q cannot be written", m.Text)
	}
	info := make([]byte, commentLen)
	copy(info, m.Text)
	e.extension("match", "comment", 0, info)
	return nil
}

func (e *encoder) target(t flannel.Target) error {
	switch t.Kind {
	case flannel.TargetNone:
	case flannel.TargetAccept:
		e.verdict(verdictAccept, "")
	case flannel.TargetDrop:
		e.verdict(verdictDrop, "")
	case flannel.TargetReturn:
		e.verdict(verdictReturn, "")
	case flannel.TargetJump, flannel.TargetGoto:
		if t.Chain == "" || len(t.Chain) >= unix.NFT_CHAIN_MAXNAMELEN || strings.ContainsRune(t.Chain, 0) {
			return fmt.Errorf("%q is no chain", t.Chain)
		}
		code := verdictJump
		if t.Kind == flannel.TargetGoto {
			code = verdictGoto
		}
		e.verdict(code, t.Chain)
	case flannel.TargetMasquerade:
		if t.Text != "" {
			return fmt.Errorf("masquerade with %q is not Flannel's", t.Text)
		}
		e.masquerade(natFlags(t))
	default:
		return fmt.Errorf("target %q is not understood", t.Text)
	}
	return nil
}

func natFlags(t flannel.Target) (flags uint32) {
	if t.Random {
		flags |= unix.NF_NAT_RANGE_PROTO_RANDOM
	}
	if t.RandomFully {
		flags |= unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY
	}
	return flags
}

func (e *encoder) masquerade(flags uint32) {
	if e.native {
		e.expr("masq", func() {
			if flags != 0 {
				e.number(unix.NFTA_MASQ_FLAGS, flags)
			}
		})
		return
	}
	info := make([]byte, masqueradeLen[e.family])
	if e.family == flannel.IPv4 {
		binary.NativeEndian.PutUint32(info, 1) // one range
		binary.NativeEndian.PutUint32(info[4:], flags)
	} else {
		binary.NativeEndian.PutUint32(info, flags)
	}
	e.extension("target", "MASQUERADE", 0, info)
}

func (e *encoder) expr(name string, data func()) {
	e.nest(unix.NFTA_LIST_ELEM, func() {
		e.text(unix.NFTA_EXPR_NAME, name)
		e.nest(unix.NFTA_EXPR_DATA, data)
	})
}

func (e *encoder) payload(base, offset, length uint32) {
	e.expr("payload", func() {
		e.number(unix.NFTA_PAYLOAD_DREG, register)
		e.number(unix.NFTA_PAYLOAD_BASE, base)
		e.number(unix.NFTA_PAYLOAD_OFFSET, offset)
		e.number(unix.NFTA_PAYLOAD_LEN, length)
	})
}

func (e *encoder) meta(key uint32) {
	e.expr("meta", func() {
		e.number(unix.NFTA_META_KEY, key)
		e.number(unix.NFTA_META_DREG, register)
	})
}

func (e *encoder) bitwise(mask []byte) {
	e.expr("bitwise", func() {
		e.number(unix.NFTA_BITWISE_SREG, register)
		e.number(unix.NFTA_BITWISE_DREG, register)
		e.number(unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		e.nest(unix.NFTA_BITWISE_MASK, func() { e.raw(unix.NFTA_DATA_VALUE, mask...) })
		e.nest(unix.NFTA_BITWISE_XOR, func() { e.raw(unix.NFTA_DATA_VALUE, make([]byte, len(mask))...) })
	})
}

func (e *encoder) cmp(not bool, data []byte) {
	op := uint32(unix.NFT_CMP_EQ)
	if not {
		op = unix.NFT_CMP_NEQ
	}
	e.expr("cmp", func() {
		e.number(unix.NFTA_CMP_SREG, register)
		e.number(unix.NFTA_CMP_OP, op)
		e.nest(unix.NFTA_CMP_DATA, func() { e.raw(unix.NFTA_DATA_VALUE, data...) })
	})
}

func (e *encoder) counter(c flannel.Counter) {
	e.expr("counter", func() {
		e.long(unix.NFTA_COUNTER_BYTES, c.Bytes)
		e.long(unix.NFTA_COUNTER_PACKETS, c.Packets)
	})
}

// extension writes an xtables match or target; both have the same attributes.
func (e *encoder) extension(kind, name string, rev uint32, info []byte) {
	e.expr(kind, func() {
		e.text(unix.NFTA_MATCH_NAME, name)
		e.number(unix.NFTA_MATCH_REV, rev)
		e.raw(unix.NFTA_MATCH_INFO, info...)
	})
}

func (e *encoder) verdict(code int32, chain string) {
	e.expr("immediate", func() {
		e.number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		e.nest(unix.NFTA_IMMEDIATE_DATA, func() {
			e.nest(unix.NFTA_DATA_VERDICT, func() {
				e.number(unix.NFTA_VERDICT_CODE, uint32(code))
				if chain != "" {
					e.text(unix.NFTA_VERDICT_CHAIN, chain)
				}
			})
		})
	})
}
