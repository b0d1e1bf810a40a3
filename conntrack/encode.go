package conntrack

import "encoding/binary"

// AppendTuple writes the attributes by which the kernel finds an entry: its original tuple, and its zone if it is in one.
// A tuple without addresses names nothing, and for the kernel "nothing" in a deletion means every entry: it gives nil.
func AppendTuple(b []byte, f *Flow) []byte {
	t := &f.Orig
	if !t.valid() {
		return nil
	}
	outer := len(b)
	b = append(b, 0, 0, 0, 0)
	b = t.appendAddresses(b)
	b = t.appendProtocol(b)
	if f.ZoneOrig {
		b = append16(b, tupleZone, f.Zone)
	}
	b = closeNest(b, outer, attrTupleOrig)
	if f.Zone != 0 && !f.ZoneOrig && !f.ZoneReply {
		b = append16(b, attrZone, f.Zone)
	}
	return b
}

// AppendID names the very entry: the kernel deletes no other of the same tuple.
func AppendID(b []byte, id uint32) []byte {
	b = appendHead(b, attrHead+4, attrID)
	return binary.BigEndian.AppendUint32(b, id)
}

func (t *Tuple) appendAddresses(b []byte) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	src, dst := uint16(ipV4Src), uint16(ipV4Dst)
	if t.Src.Is6() {
		src, dst = ipV6Src, ipV6Dst
	}
	b = appendBytes(b, src, t.Src.AsSlice())
	b = appendBytes(b, dst, t.Dst.AsSlice())
	return closeNest(b, start, tupleIP)
}

func (t *Tuple) appendProtocol(b []byte) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = appendBytes(b, protoNum, []byte{t.Proto})
	switch t.Proto {
	case ICMP, ICMPv6:
		first := uint16(protoICMPID)
		if t.Proto == ICMPv6 {
			first = protoICMP6
		}
		b = append16(b, first, t.ID)
		b = appendBytes(b, first+1, []byte{t.Type})
		b = appendBytes(b, first+2, []byte{t.Code})
	default:
		b = append16(b, protoSPort, t.SPort)
		b = append16(b, protoDPort, t.DPort)
	}
	return closeNest(b, start, tupleProto)
}

func append16(b []byte, kind, v uint16) []byte {
	return appendBytes(b, kind, binary.BigEndian.AppendUint16(nil, v))
}

func appendBytes(b []byte, kind uint16, data []byte) []byte {
	b = appendHead(b, attrHead+len(data), kind)
	b = append(b, data...)
	return append(b, make([]byte, align(len(data))-len(data))...)
}

func appendHead(b []byte, length int, kind uint16) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(length))
	return binary.NativeEndian.AppendUint16(b, kind)
}

// closeNest fills in the head of a nested attribute that began at start.
func closeNest(b []byte, start int, kind uint16) []byte {
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	binary.NativeEndian.PutUint16(b[start+2:], kind|nested)
	return b
}
