package conntrack

import (
	"errors"
	"net/netip"
)

// ErrMalformed is a message that is not what the kernel writes.
var ErrMalformed = errors.New("malformed conntrack message")

// Decode reads the attributes of one entry (what follows nfgenmsg) into f. It allocates nothing and keeps nothing of b.
// Attributes that it does not know are skipped; after an error f holds what could be read, and is not to be trusted.
func Decode(b []byte, f *Flow) error {
	*f = Flow{}
	a := attributes{rest: b}
	for a.next() {
		switch a.kind {
		case attrTupleOrig:
			a.bad = !f.tuple(a.data, &f.Orig, &f.ZoneOrig) || a.bad
		case attrTupleReply:
			a.bad = !f.tuple(a.data, &f.Reply, &f.ZoneReply) || a.bad
		case attrStatus:
			f.Status = Status(a.uint32())
		case attrProtoinfo:
			a.bad = !f.protoinfo(a.data) || a.bad
		case attrTimeout:
			f.Timeout = a.uint32()
		case attrMark:
			f.Mark = a.uint32()
		case attrCountOrig, attrCountReply:
			a.bad = !f.count(a.data) || a.bad
		case attrID:
			f.ID = a.uint32()
		case attrZone:
			f.Zone = a.uint16()
		}
	}
	if a.bad || !f.Orig.valid() || !f.Reply.valid() {
		return ErrMalformed
	}
	return nil
}

// DecodeStatus finds the status alone, so that an entry that is not wanted need not be decoded. It tells whether there is one.
func DecodeStatus(b []byte) (Status, bool) {
	for a := (attributes{rest: b}); a.next(); {
		if a.kind == attrStatus {
			s := Status(a.uint32())
			return s, !a.bad
		}
	}
	return 0, false
}

// valid tells whether both addresses are there and of one family.
func (t *Tuple) valid() bool { return t.Src.BitLen() > 0 && t.Src.BitLen() == t.Dst.BitLen() }

// tuple reads one direction. A zone inside a tuple holds for that direction alone.
func (f *Flow) tuple(b []byte, t *Tuple, zoned *bool) bool {
	a := attributes{rest: b}
	for a.next() {
		switch a.kind {
		case tupleIP:
			a.bad = !t.addresses(a.data) || a.bad
		case tupleProto:
			a.bad = !t.protocol(a.data) || a.bad
		case tupleZone:
			f.Zone, *zoned = a.uint16(), true
		}
	}
	return !a.bad
}

func (t *Tuple) addresses(b []byte) bool {
	a := attributes{rest: b}
	for a.next() {
		switch a.kind {
		case ipV4Src:
			t.Src = a.addr(4)
		case ipV4Dst:
			t.Dst = a.addr(4)
		case ipV6Src:
			t.Src = a.addr(16)
		case ipV6Dst:
			t.Dst = a.addr(16)
		}
	}
	return !a.bad
}

// addr reads an address. IPv6 addresses that map IPv4 ones stay IPv6: they are different on the wire.
func (a *attributes) addr(n int) netip.Addr {
	if !a.long(n) {
		return netip.Addr{}
	}
	if n == 4 {
		return netip.AddrFrom4([4]byte(a.data))
	}
	return netip.AddrFrom16([16]byte(a.data))
}

func (t *Tuple) protocol(b []byte) bool {
	a := attributes{rest: b}
	for a.next() {
		switch a.kind {
		case protoNum:
			t.Proto = a.uint8()
		case protoSPort:
			t.SPort = a.uint16()
		case protoDPort:
			t.DPort = a.uint16()
		case protoICMPID, protoICMP6:
			t.ID = a.uint16()
		case protoICMPID + 1, protoICMP6 + 1:
			t.Type = a.uint8()
		case protoICMPID + 2, protoICMP6 + 2:
			t.Code = a.uint8()
		}
	}
	return !a.bad
}

func (f *Flow) protoinfo(b []byte) bool {
	a := attributes{rest: b}
	for a.next() {
		if a.kind != protoinfoTCP {
			continue
		}
		tcp := attributes{rest: a.data}
		for tcp.next() {
			if tcp.kind == tcpState {
				f.State = tcp.uint8()
			}
		}
		a.bad = a.bad || tcp.bad
	}
	return !a.bad
}

func (f *Flow) count(b []byte) bool {
	a := attributes{rest: b}
	for a.next() {
		switch a.kind {
		case countPackets:
			f.Packets += a.uint64()
		case countBytes:
			f.Bytes += a.uint64()
		default:
			continue
		}
		f.Counted = true
	}
	return !a.bad
}
