package wire

import (
	"strings"
	"testing"

	"flanwatch/flannel"

	"golang.org/x/sys/unix"
)

// bytes32 is how a register holds the number: four bytes in host order, here those of a small one.
func bytes32(b byte) []byte { return []byte{b, 0, 0, 0} }

func (e *encoder) cmpOf(reg, op uint32, data ...byte) {
	e.expr("cmp", func() {
		e.number(unix.NFTA_CMP_SREG, reg)
		e.number(unix.NFTA_CMP_OP, op)
		e.nest(unix.NFTA_CMP_DATA, func() { e.raw(unix.NFTA_DATA_VALUE, data...) })
	})
}

func (e *encoder) payloadTo(reg, offset, length uint32) {
	e.expr("payload", func() {
		e.number(unix.NFTA_PAYLOAD_DREG, reg)
		e.number(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER)
		e.number(unix.NFTA_PAYLOAD_OFFSET, offset)
		e.number(unix.NFTA_PAYLOAD_LEN, length)
	})
}

func (e *encoder) maskAndXor(mask, xor []byte, more ...uint32) {
	e.expr("bitwise", func() {
		e.number(unix.NFTA_BITWISE_SREG, register)
		e.number(unix.NFTA_BITWISE_DREG, register)
		e.number(unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		e.nest(unix.NFTA_BITWISE_MASK, func() { e.raw(unix.NFTA_DATA_VALUE, mask...) })
		e.nest(unix.NFTA_BITWISE_XOR, func() { e.raw(unix.NFTA_DATA_VALUE, xor...) })
		for _, op := range more {
			e.number(attrBitwiseOp, op)
		}
	})
}

const (
	eq     = unix.NFT_CMP_EQ
	reg32a = unix.NFT_REG32_00 // the first word of register 1
	reg32b = reg32a + 1
)

func TestDecodeTracksRegisters(t *testing.T) {
	address := []byte{10, 0, 0, 1}
	for name, c := range map[string]struct {
		write func(e *encoder)
		want  string
	}{
		"a register has two names": {func(e *encoder) {
			e.payloadTo(register, 12, 4)
			e.cmpOf(reg32a, eq, address...)
		}, "-s 10.0.0.1/32"},
		"any register will do": {func(e *encoder) {
			e.payloadTo(reg32b, 12, 4)
			e.payloadTo(unix.NFT_REG_4, 16, 4)
			e.cmpOf(unix.NFT_REG_4, eq, 10, 0, 0, 2)
			e.cmpOf(reg32b, eq, address...)
		}, "-s 10.0.0.1/32 -d 10.0.0.2/32"},
		"one load serves two comparisons": {func(e *encoder) {
			e.meta(unix.NFT_META_L4PROTO)
			e.cmp(true, []byte{6})
			e.cmp(true, []byte{17})
		}, "! -p tcp ! -p udp"},
		"a load without a comparison is kept": {func(e *encoder) {
			e.payloadTo(register, 12, 4)
		}, "[network header offset 12 length 4]"},
		"a load that is overwritten is kept": {func(e *encoder) {
			e.payloadTo(register, 12, 4)
			e.payloadTo(register, 16, 4)
			e.cmp(false, address)
		}, "-d 10.0.0.1/32 [network header offset 12 length 4]"},
		"a comparison of nothing is opaque": {func(e *encoder) {
			e.cmp(false, address)
		}, "[cmp …]"},
		"a load that is overwritten in part is gone": {func(e *encoder) {
			e.meta(unix.NFT_META_IIFNAME)
			e.payloadTo(reg32b, 12, 4)
			e.cmp(false, []byte("eth0\x00"))
		}, "[cmp …] " +
			"[meta iifname] [network header offset 12 length 4]"},
		"an unknown expression may have written the register": {func(e *encoder) {
			e.payloadTo(register, 12, 4)
			e.expr("numgen", func() {})
			e.cmp(false, address)
		}, "[numgen] [cmp …] [network header offset 12 length 4]"},
		"a comparison of a part is opaque": {func(e *encoder) {
			e.payloadTo(register, 12, 4)
			e.cmp(false, []byte{10, 0})
		}, "[network header offset 12 length 4 == 0a00]"},
		"less is no equality": {func(e *encoder) {
			e.payloadTo(register, 12, 4)
			e.cmpOf(register, unix.NFT_CMP_LT, address...)
		}, "[network header offset 12 length 4 < 0a000001]"},
		"an operator of the future is opaque": {func(e *encoder) {
			e.meta(unix.NFT_META_MARK)
			e.cmpOf(register, 9, bytes32(1)...)
		}, "[meta mark operator 9 01000000]"},
		"a place between the addresses is opaque": {func(e *encoder) {
			e.payloadTo(register, 13, 2)
			e.cmp(false, []byte{0, 0})
		}, "[network header offset 13 length 2 == 0000]"},
		"a mask over a short load is a prefix": {func(e *encoder) {
			e.payloadTo(register, 12, 3)
			e.bitwise([]byte{0xff, 0xff, 0xf0})
			e.cmp(false, []byte{10, 1, 16})
		}, "-s 10.1.16.0/20"},
		"a mask with a gap is opaque": {func(e *encoder) {
			e.payloadTo(register, 12, 4)
			e.bitwise([]byte{0xff, 0, 0xff, 0})
			e.cmp(false, []byte{10, 0, 1, 0})
		}, "[network header offset 12 length 4 & ff00ff00 == 0a000100]"},
		"bits outside the mask never match": {func(e *encoder) {
			e.payloadTo(register, 12, 4)
			e.bitwise([]byte{0xff, 0, 0, 0})
			e.cmp(false, address)
		}, "[network header offset 12 length 4 & ff000000 == 0a000001]"},
		"a mask of nothing is opaque": {func(e *encoder) {
			e.payloadTo(register, 12, 4)
			e.bitwise(make([]byte, 4))
			e.cmp(false, make([]byte, 4))
		}, "[network header offset 12 length 4 & 00000000 == 00000000]"},
		"two masks are opaque": {func(e *encoder) {
			e.meta(unix.NFT_META_MARK)
			e.bitwise(bytes32(3))
			e.bitwise(bytes32(1))
			e.cmp(false, bytes32(1))
		}, "[meta mark & 03000000 & 01000000 ^ 00000000 == 01000000]"},
		"exclusive or is opaque": {func(e *encoder) {
			e.meta(unix.NFT_META_MARK)
			e.maskAndXor(bytes32(1), bytes32(2), opMaskXor)
			e.cmp(false, bytes32(2))
		}, "[meta mark & 01000000 ^ 02000000 == 02000000]"},
		"a shift is opaque": {func(e *encoder) {
			e.meta(unix.NFT_META_MARK)
			e.maskAndXor(bytes32(1), bytes32(0), 1)
			e.cmp(false, bytes32(1))
		}, "[bitwise …] [cmp …] [meta mark]"},
		"mark bits outside the mask never match": {func(e *encoder) {
			e.meta(unix.NFT_META_MARK)
			e.bitwise(bytes32(1))
			e.cmp(false, bytes32(2))
		}, "[meta mark & 01000000 == 02000000]"},
		"a register that does not exist is opaque": {func(e *encoder) {
			e.payloadTo(99, 12, 4)
			e.payloadTo(unix.NFT_REG_VERDICT, 12, 4)
			e.payloadTo(register, 12, 0)
			e.payloadTo(unix.NFT_REG_4, 12, 20)
			e.payloadTo(register, 12, 1<<31)
			e.counter(flannel.Counter{})
		}, "[payload …] [payload …] [payload …] [payload …] [payload …]"},
	} {
		t.Run(name, func(t *testing.T) {
			var e encoder
			c.write(&e)
			wantDecoded(t, e.buf, c.want)
		})
	}
}

// wantDecoded compares texts up to bytes that are given as "…", and counts the expressions. Opaque parts are compared by
// their own text.
func wantDecoded(t *testing.T, exprs []byte, want string) {
	t.Helper()
	r, consumed := decode(flannel.IPv4, exprs)
	var parts []string
	for _, m := range r.Matches {
		if m.Kind == flannel.MatchOpaque {
			parts = append(parts, m.Text)
			continue
		}
		parts = append(parts, flannel.NewRule(flannel.Target{Kind: flannel.TargetNone}, m).String())
	}
	if r.Target.Kind == flannel.TargetOpaque {
		parts = append(parts, r.Target.Text)
	} else if target := flannel.NewRule(r.Target).String(); target != "" {
		parts = append(parts, target)
	}
	got := strings.Join(parts, " ")
	if !like(got, want) {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	s, err := ScanRule(exprs)
	if err != nil && !r.Opaque() {
		t.Errorf("scan: %v, but %s looks understood", err, r)
	}
	if err == nil && s.Exprs != consumed {
		t.Errorf("%d of %d expressions are in %s", consumed, s.Exprs, got)
	}
}

// like compares texts in which "…" within brackets stands for any bytes.
func like(got, want string) bool {
	for want != "" {
		switch {
		case strings.HasPrefix(want, "…]"):
			_, after, _ := strings.Cut(got, "]")
			got, want = after, want[len("…]"):]
		case got == "" || got[0] != want[0]:
			return false
		default:
			got, want = got[1:], want[1:]
		}
	}
	return got == ""
}

func TestDecodeLeavesNothingOut(t *testing.T) {
	masquerade := func(family flannel.Family, set map[int]byte) []byte {
		info := make([]byte, masqueradeLen[family])
		info[0] = 1
		for i, b := range set {
			info[i] = b
		}
		return info
	}
	for name, c := range map[string]struct {
		write func(e *encoder)
		want  string
	}{
		"a counter may stand before the conditions": {func(e *encoder) {
			e.counter(flannel.Counter{})
			e.meta(unix.NFT_META_L4PROTO)
			e.cmp(false, []byte{6})
			e.verdict(verdictAccept, "")
		}, "-p tcp -j ACCEPT"},
		"a second counter is opaque": {func(e *encoder) {
			e.counter(flannel.Counter{})
			e.counter(flannel.Counter{})
			e.verdict(verdictDrop, "")
		}, "[counter …] -j DROP"},
		"a counter that cannot be read is opaque": {func(e *encoder) {
			e.expr("counter", func() { e.number(unix.NFTA_COUNTER_BYTES, 1) })
			e.verdict(verdictDrop, "")
		}, "[counter 0800010000000001] -j DROP"},
		"what stands behind a verdict is never reached": {func(e *encoder) {
			e.verdict(verdictAccept, "")
			e.meta(unix.NFT_META_L4PROTO)
			e.cmp(false, []byte{6})
		}, "[meta …] [cmp …] -j ACCEPT"},
		"continue is no target": {func(e *encoder) { e.verdict(verdictContinue, "") }, ""},
		"a jump to nowhere is opaque": {
			func(e *encoder) { e.verdict(verdictJump, "") },
			"-j [immediate …]",
		},
		"a goto": {func(e *encoder) { e.verdict(verdictGoto, "c") }, "-g c"},
		"a verdict with a chain it has no use for is opaque": {
			func(e *encoder) { e.verdict(verdictAccept, "c") },
			"-j [immediate …]",
		},
		"a queue is opaque": {func(e *encoder) { e.verdict(3, "") }, "-j [immediate …]"},
		"break is opaque":   {func(e *encoder) { e.verdict(unix.NFT_BREAK, "") }, "-j [immediate …]"},
		"an immediate value is opaque": {func(e *encoder) {
			e.expr("immediate", func() {
				e.number(unix.NFTA_IMMEDIATE_DREG, register)
				e.nest(unix.NFTA_IMMEDIATE_DATA, func() { e.raw(unix.NFTA_DATA_VALUE, 1) })
			})
			e.expr("nat", func() {})
		}, "[immediate …] -j [nat]"},
		"masquerading to ports is opaque": {func(e *encoder) {
			e.expr("masq", func() { e.number(unix.NFTA_MASQ_REG_PROTO_MIN, register) })
		}, "-j [masq …]"},
		"persistent masquerading is opaque": {func(e *encoder) { e.native = true; e.masquerade(8) }, "-j [masq …]"},
		"native masquerading": {
			func(e *encoder) { e.native = true; e.masquerade(20) },
			"-j MASQUERADE --random --random-fully",
		},
		"masquerading to an address is opaque": {func(e *encoder) {
			e.extension("target", "MASQUERADE", 0, masquerade(flannel.IPv4, map[int]byte{8: 10}))
		}, "-j MASQUERADE rev 0 […]"},
		"masquerading to two ranges is opaque": {func(e *encoder) {
			e.extension("target", "MASQUERADE", 0, masquerade(flannel.IPv4, map[int]byte{0: 2}))
		}, "-j MASQUERADE rev 0 […]"},
		"masquerading of the other family is opaque": {func(e *encoder) {
			e.extension("target", "MASQUERADE", 0, masquerade(flannel.IPv6, map[int]byte{0: 0}))
		}, "-j MASQUERADE rev 0 […]"},
		"masquerading of a later revision is opaque": {func(e *encoder) {
			e.extension("target", "MASQUERADE", 1, masquerade(flannel.IPv4, nil))
		}, "-j MASQUERADE rev 1 […]"},
		"a comment of a later revision is opaque": {func(e *encoder) {
			e.extension("match", "comment", 1, make([]byte, commentLen))
		}, "-m comment rev 1 […]"},
		"a short comment is opaque": {
			func(e *encoder) { e.extension("match", "comment", 0, []byte("a")) },
			"-m comment rev 0 [61]",
		},
		"an xt mark that never matches is opaque": {func(e *encoder) {
			e.extension("match", "mark", 1, []byte{2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
		}, "-m mark rev 1 [02000000010000000000000000000000]"},
		"a short xt mark is opaque": {
			func(e *encoder) { e.extension("match", "mark", 1, make([]byte, 8)) },
			"-m mark rev 1 [0000000000000000]",
		},
		"a match of xtables is never the target": {
			func(e *encoder) { e.extension("match", "statistic", 0, []byte{1}) },
			"-m statistic rev 0 [01]",
		},
		"a target of xtables need not be the last": {func(e *encoder) {
			e.extension("target", "MARK", 2, []byte{1})
			e.counter(flannel.Counter{})
		}, "[counter …] -j MARK rev 2 [01]"},
		"an extension without a name is opaque": {func(e *encoder) { e.expr("match", func() {}) }, "[match]"},
		"attributes of the future are opaque": {func(e *encoder) {
			e.expr("meta", func() {
				e.number(unix.NFTA_META_DREG, register)
				e.number(unix.NFTA_META_KEY, unix.NFT_META_MARK)
				e.number(7, 1)
			})
			e.verdict(verdictReturn, "")
		}, "[meta …] -j RETURN"},
		"attributes given twice are opaque": {func(e *encoder) {
			e.expr("meta", func() {
				e.number(unix.NFTA_META_KEY, unix.NFT_META_MARK)
				e.number(unix.NFTA_META_KEY, unix.NFT_META_L4PROTO)
				e.number(unix.NFTA_META_DREG, register)
			})
			e.verdict(verdictReturn, "")
		}, "[do meta …] -j RETURN"},
		"other keys of meta are opaque": {func(e *encoder) {
			e.meta(unix.NFT_META_CPU)
			e.verdict(verdictReturn, "")
		}, "[meta …] -j RETURN"},
		"an interface name that is padded": {func(e *encoder) {
			e.meta(unix.NFT_META_OIFNAME)
			e.cmp(true, append([]byte("cni0"), make([]byte, 12)...))
		}, "! -o cni0"},
		"an interface whose name ends in plus is opaque": {func(e *encoder) {
			e.meta(unix.NFT_META_IIFNAME)
			e.cmp(false, []byte("eth+\x00"))
		}, "[meta iifname == 6574682b00]"},
		"an interface name with an end in the middle is opaque": {func(e *encoder) {
			e.meta(unix.NFT_META_IIFNAME)
			e.cmp(false, []byte("a\x00b\x00"))
		}, "[meta iifname == 61006200]"},
		"no interface name is opaque": {func(e *encoder) {
			e.meta(unix.NFT_META_IIFNAME)
			e.cmp(false, []byte{0})
		}, "[meta iifname == 00]"},
		"protocol 0 is opaque": {func(e *encoder) {
			e.meta(unix.NFT_META_L4PROTO)
			e.cmp(false, []byte{0})
		}, "[meta l4proto == 00]"},
		"malformed bytes are opaque": {func(e *encoder) {
			e.verdict(verdictReturn, "")
			e.buf = append(e.buf, 1, 2, 3)
		}, "[malformed 010203] -j RETURN"},
	} {
		t.Run(name, func(t *testing.T) {
			e := encoder{family: flannel.IPv4}
			c.write(&e)
			wantDecoded(t, e.buf, c.want)
		})
	}
}
