package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"

	"flanwatch/flannel"

	"golang.org/x/sys/unix"
)

// Scan is what can be told of a rule at a glance, without decoding it.
type Scan struct {
	Counter flannel.Counter // of the first counter expression
	Counted bool            // false where the rule has no counter
	Body    uint64          // hash of everything but what the kernel counts; the same on every machine of one byte order
	Exprs   int             // number of expressions
}

// ScanRule walks the payload of NFTA_RULE_EXPRESSIONS once, without an allocation. The error says that the list is
// malformed.
func ScanRule(exprs []byte) (Scan, error) {
	s := Scan{Body: hashSeed}
	for b := exprs; len(b) > 0; s.Exprs++ {
		e, rest, err := cutExpr(b)
		if err != nil {
			return Scan{}, err
		}
		switch string(e.name) {
		case "counter":
			c, err := readCounter(e.data)
			if err != nil {
				return Scan{}, err
			}
			if !s.Counted {
				s.Counter, s.Counted = c, true
			}
			s.Body = hash(s.Body, e.name)
		case "last":
			s.Body = hash(s.Body, e.name)
		case "quota":
			s.Body = hash(s.Body, e.name)
			if s.Body, err = hashQuota(s.Body, e.data); err != nil {
				return Scan{}, err
			}
		default:
			s.Body = hash(s.Body, e.whole)
		}
		b = rest
	}
	return s, nil
}

// expression is one element of a rule.
type expression struct {
	name  []byte // without its final NUL
	data  []byte // payload of NFTA_EXPR_DATA, nil for an expression without data
	whole []byte // all of the element's payload
}

var errExpr = fmt.Errorf("malformed expression: %w", errAttr)

// cutExpr takes the first expression off a list that is not empty.
func cutExpr(b []byte) (e expression, rest []byte, err error) {
	elem, rest, err := cut(b)
	if err != nil {
		return expression{}, nil, err
	}
	if elem.kind != unix.NFTA_LIST_ELEM {
		return expression{}, nil, errExpr
	}
	e.whole = elem.data
	for in := elem.data; len(in) > 0; {
		var a attr
		if a, in, err = cut(in); err != nil {
			return expression{}, nil, err
		}
		switch {
		case a.kind == unix.NFTA_EXPR_NAME && e.name == nil:
			e.name = bytes.TrimSuffix(a.data, []byte{0})
		case a.kind == unix.NFTA_EXPR_DATA && e.data == nil:
			e.data = a.data
		default:
			return expression{}, nil, errExpr
		}
	}
	if len(e.name) == 0 {
		return expression{}, nil, errExpr
	}
	return e, rest, nil
}

func readCounter(data []byte) (c flannel.Counter, err error) {
	for len(data) > 0 {
		var a attr
		if a, data, err = cut(data); err != nil {
			return flannel.Counter{}, err
		}
		if a.kind != unix.NFTA_COUNTER_BYTES && a.kind != unix.NFTA_COUNTER_PACKETS {
			continue // padding
		}
		if len(a.data) != 8 {
			return flannel.Counter{}, errExpr
		}
		if v := binary.BigEndian.Uint64(a.data); a.kind == unix.NFTA_COUNTER_BYTES {
			c.Bytes = v
		} else {
			c.Packets = v
		}
	}
	return c, nil
}

// hashQuota leaves out how much of the quota is used up.
func hashQuota(h uint64, data []byte) (uint64, error) {
	for len(data) > 0 {
		a, rest, err := cut(data)
		if err != nil {
			return 0, err
		}
		if a.kind != unix.NFTA_QUOTA_CONSUMED {
			h = hash(h^uint64(a.kind), a.data)
		}
		data = rest
	}
	return h, nil
}

// Odd constants with well mixed bits: the fractions of the golden ratio and of the square root of two.
const (
	hashSeed = 0x9e3779b97f4a7c15
	hashMul  = 0x6a09e667f3bcc909
)

// hash mixes b, length included, into h eight bytes at a time: a rule is some 500 bytes long and every rule is hashed at
// every read.
func hash(h uint64, b []byte) uint64 {
	h = mix(h ^ uint64(len(b)))
	for ; len(b) >= 8; b = b[8:] {
		h = mix(h ^ binary.NativeEndian.Uint64(b))
	}
	var tail uint64
	for i, c := range b {
		tail |= uint64(c) << (8 * i)
	}
	return mix(h ^ tail)
}

func mix(x uint64) uint64 {
	hi, lo := bits.Mul64(x^hashSeed, hashMul)
	return hi ^ lo
}
