package conntrack

import "encoding/binary"

// Numbers of ctnetlink's attributes (enum ctattr_type and those nested in them), which are part of the kernel's interface.
const (
	attrTupleOrig  = 1
	attrTupleReply = 2
	attrStatus     = 3
	attrProtoinfo  = 4
	attrTimeout    = 7
	attrMark       = 8
	attrCountOrig  = 9
	attrCountReply = 10
	attrID         = 12
	attrZone       = 18

	tupleIP    = 1
	tupleProto = 2
	tupleZone  = 3

	ipV4Src = 1
	ipV4Dst = 2
	ipV6Src = 3
	ipV6Dst = 4

	protoNum    = 1
	protoSPort  = 2
	protoDPort  = 3
	protoICMPID = 4 // type and code follow; the same three for ICMPv6 begin at 7
	protoICMP6  = 7

	protoinfoTCP = 1
	tcpState     = 1

	countPackets = 1
	countBytes   = 2
)

const (
	attrHead = 4      // length and type, in host byte order
	typeMask = 0x3fff // without the flags "nested" and "network byte order"
	nested   = 0x8000
)

// attributes walks over a list of attributes: for a.next() { a.kind, a.data }. It stops at the end and at the first that is
// malformed, which it then remembers as bad.
type attributes struct {
	rest []byte
	data []byte
	kind uint16
	bad  bool
}

func (a *attributes) next() bool {
	if len(a.rest) < attrHead {
		a.bad = a.bad || len(a.rest) > 0
		return false
	}
	n := int(binary.NativeEndian.Uint16(a.rest))
	if n < attrHead || n > len(a.rest) {
		a.bad = true
		return false
	}
	a.kind = binary.NativeEndian.Uint16(a.rest[2:]) & typeMask
	a.data = a.rest[attrHead:n]
	a.rest = a.rest[min(align(n), len(a.rest)):]
	return true
}

// uint8, uint16, uint32 and uint64 read a number in network byte order; a wrong length gives 0 and is remembered.
func (a *attributes) uint8() uint8 {
	if !a.long(1) {
		return 0
	}
	return a.data[0]
}

func (a *attributes) uint16() uint16 {
	if !a.long(2) {
		return 0
	}
	return binary.BigEndian.Uint16(a.data)
}

func (a *attributes) uint32() uint32 {
	if !a.long(4) {
		return 0
	}
	return binary.BigEndian.Uint32(a.data)
}

func (a *attributes) uint64() uint64 {
	if !a.long(8) {
		return 0
	}
	return binary.BigEndian.Uint64(a.data)
}

func (a *attributes) long(n int) bool {
	if len(a.data) != n {
		a.bad = true
		return false
	}
	return true
}

func align(n int) int { return (n + 3) &^ 3 }
