package legacy

import (
	"bytes"
	"encoding/binary"

	"flanwatch/flannel"
)

// layout says where the parts of an entry lie: struct ipt_entry or struct ip6t_entry, on machines where 64-bit integers are
// aligned to 8 bytes.
type layout struct {
	family   flannel.Family
	addr     int // length of an address; source, destination and their masks stand at 0, 1, 2 and 3 times this
	proto    int // offset of the protocol; the interfaces stand before it
	flags    int
	inverted int // offset of the flags that invert a condition
	target   int // offset of target_offset, which next_offset follows
	counters int
	size     int // the entry without matches and target
	gotoFlag byte
}

var (
	layout4 = layout{flannel.IPv4, 4, 80, 82, 83, 88, 96, 112, 0x02}
	layout6 = layout{flannel.IPv6, 16, 128, 131, 132, 140, 152, 168, 0x04}
)

const (
	ifnameLen    = 16 // IFNAMSIZ
	extHeader    = 32 // size, name and revision before the data of a match or target
	extNameLen   = 29
	errorNameLen = 32 // the target that opens a chain holds the chain's name
	errorTarget  = "ERROR"
)

func (l *layout) interfaces() int { return 4 * l.addr }

// headSize is the length of the entry that opens a user-defined chain.
func (l *layout) headSize() int { return l.size + extHeader + errorNameLen }

// entry is one entry of a table whose offsets have been checked against its length.
type entry struct {
	raw    []byte // with matches and target
	target int    // where the target begins
}

// entry gives the entry at an offset; false if there is none that lies in the table and makes sense.
func (l *layout) entry(table []byte, off int) (entry, bool) {
	if off < 0 || off > len(table)-l.size {
		return entry{}, false
	}
	target := int(binary.NativeEndian.Uint16(table[off+l.target:]))
	next := int(binary.NativeEndian.Uint16(table[off+l.target+2:]))
	if next > len(table)-off || target < l.size || target > next-extHeader {
		return entry{}, false
	}
	e := entry{table[off : off+next], target}
	if n := e.ext(target).size(); n < extHeader || n > next-target {
		return entry{}, false
	}
	return e, true
}

func (e entry) counter(l *layout) flannel.Counter {
	return flannel.Counter{
		Packets: binary.NativeEndian.Uint64(e.raw[l.counters:]),
		Bytes:   binary.NativeEndian.Uint64(e.raw[l.counters+8:]),
	}
}

// ext gives the match or target at an offset, of which the header must lie in the entry.
func (e entry) ext(off int) ext { return ext(e.raw[off:]) }

// chainName tells whether the entry opens a chain, and which.
func (e entry) chainName() ([]byte, bool) {
	t := e.ext(e.target)
	if string(t.name()) != errorTarget || t.size() < extHeader+errorNameLen {
		return nil, false
	}
	return cString(t.data()[:errorNameLen]), true
}

// ext is a match or target: struct xt_entry_match or xt_entry_target and what follows.
type ext []byte

func (x ext) size() int      { return int(binary.NativeEndian.Uint16(x)) }
func (x ext) name() []byte   { return cString(x[2 : 2+extNameLen]) }
func (x ext) revision() byte { return x[2+extNameLen] }
func (x ext) data() []byte   { return x[extHeader:x.size()] }

// matches calls f for each match of the entry, in order, until it returns false. It returns false if the matches do not
// fill the room before the target, in which case some of them cannot be told.
func (e entry) matches(l *layout, f func(ext) bool) bool {
	off := l.size
	for off+extHeader <= e.target {
		m := e.ext(off)
		if m.size() < extHeader || m.size() > e.target-off {
			return false
		}
		if !f(m) {
			return true
		}
		off += m.size()
	}
	return off == e.target
}

func cString(b []byte) []byte {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return b[:i]
	}
	return b
}
