package conntrack

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// numbers lists the numbers of a flow in the order in which they are written, those first that most flows have.
func (f *Flow) numbers() [18]uint64 {
	o, r := &f.Orig, &f.Reply
	return [...]uint64{
		uint64(o.Proto), uint64(o.SPort), uint64(o.DPort), uint64(r.SPort), uint64(r.DPort), uint64(f.Status), uint64(f.State),
		uint64(f.ID), uint64(f.Timeout), uint64(f.Zone), uint64(f.Mark), on(f.ZoneOrig, 1) | on(f.ZoneReply, 2) | on(f.Counted, 4),
		f.Packets, f.Bytes, uint64(o.ID), uint64(r.ID), uint64(o.Type)<<8 | uint64(o.Code), uint64(r.Type)<<8 | uint64(r.Code),
	}
}

func on(yes bool, bit uint64) uint64 {
	if yes {
		return bit
	}
	return 0
}

// MarshalText writes a flow as recordings keep it: the four addresses of its two directions, then its numbers without the
// zeros at the end. A recording holds a thousand of them for each look.
func (f Flow) MarshalText() ([]byte, error) {
	var b []byte
	for _, a := range []netip.Addr{f.Orig.Src, f.Orig.Dst, f.Reply.Src, f.Reply.Dst} {
		b = append(a.AppendTo(b), ' ')
	}
	list := f.numbers()
	n := len(list)
	for n > 0 && list[n-1] == 0 {
		n--
	}
	for _, v := range list[:n] {
		b = append(strconv.AppendUint(b, v, 10), ' ')
	}
	return b[:len(b)-1], nil
}

// UnmarshalText reads what MarshalText writes.
func (f *Flow) UnmarshalText(text []byte) error {
	words := strings.Fields(string(text))
	var list [18]uint64
	if len(words) < 4 || len(words)-4 > len(list) {
		return fmt.Errorf("read flow %q: %w", text, ErrMalformed)
	}
	*f = Flow{}
	for i, a := range []*netip.Addr{&f.Orig.Src, &f.Orig.Dst, &f.Reply.Src, &f.Reply.Dst} {
		addr, err := netip.ParseAddr(words[i])
		if err != nil || addr.Zone() != "" {
			return fmt.Errorf("read flow %q: %w", text, ErrMalformed)
		}
		*a = addr
	}
	for i, w := range words[4:] {
		n, err := strconv.ParseUint(w, 10, 64)
		if err != nil {
			return fmt.Errorf("read flow: %w", err)
		}
		list[i] = n
	}
	f.set(list)
	return nil
}

// set takes the numbers in the order of numbers.
func (f *Flow) set(n [18]uint64) {
	f.Orig.Proto, f.Reply.Proto = uint8(n[0]), uint8(n[0])
	f.Orig.SPort, f.Orig.DPort, f.Reply.SPort, f.Reply.DPort = uint16(n[1]), uint16(n[2]), uint16(n[3]), uint16(n[4])
	f.Status, f.State, f.ID, f.Timeout = Status(n[5]), uint8(n[6]), uint32(n[7]), uint32(n[8])
	f.Zone, f.Mark = uint16(n[9]), uint32(n[10])
	f.ZoneOrig, f.ZoneReply, f.Counted = n[11]&1 != 0, n[11]&2 != 0, n[11]&4 != 0
	f.Packets, f.Bytes, f.Orig.ID, f.Reply.ID = n[12], n[13], uint16(n[14]), uint16(n[15])
	f.Orig.Type, f.Orig.Code, f.Reply.Type, f.Reply.Code = uint8(n[16]>>8), uint8(n[16]), uint8(n[17]>>8), uint8(n[17])
}
