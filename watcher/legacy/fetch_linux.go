package legacy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
)

// The kernel copies a table entry by entry from the front, and stops where it may not write. As iptables sorts chains by
// name, Flannel's stand close to the front, so most of a large table need not be copied while nothing but counters changes:
// the kernel still adds up all counters, which takes a small part of the time.
//
// A partial read serves only to update the counters of rules that are byte for byte what they were, in a table of the same
// size as at the last whole read. As the names of chains that are jumped to can lie in the part not copied, the whole is
// read from time to time.
const wholeEvery = 30 * time.Second

// partial is what a table remembers of its last whole read.
type partial struct {
	at     flannel.Time
	info   info
	needed int         // bytes of entries up to the one that ends Flannel's chain; 0 if a part does not do
	bodies [2][]uint64 // of the entries of both chains with the ones that end them, as they lie in the table
}

// fetchAll copies the table. The kernel refuses with EAGAIN when its size is no longer the one just learnt.
func (t *table) fetchAll(s *socket) ([]byte, error) {
	for range 16 {
		if err := s.info(&t.cname, &t.info); err != nil {
			return nil, fmt.Errorf("get size of table: %w", err)
		}
		need := entriesHeader + int(t.info.size)
		if err := t.buf.reserve(need); err != nil {
			return nil, err
		}
		err := t.fetch(s, need)
		if err == nil {
			return t.buf.mem[entriesHeader:need], nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, fmt.Errorf("get entries: %w", err)
		}
	}
	return nil, errMoving
}

func (t *table) fetch(s *socket, length int) error {
	copy(t.buf.mem, t.cname[:])
	binary.NativeEndian.PutUint32(t.buf.mem[nameLen:], t.info.size)
	return s.get(optEntries, unsafe.Pointer(&t.buf.mem[0]), uint32(length))
}

// readPart updates the counters from the front of the table; false if that could not be done, and nothing is lost then.
func (t *table) readPart(s *socket, now flannel.Time) bool {
	p := &t.part
	if p.needed == 0 || now.Sub(p.at) >= wholeEvery || s.info(&t.cname, &t.info) != nil || t.info != p.info {
		return false
	}
	if t.buf.limit(entriesHeader+p.needed) != nil {
		return false
	}
	entries := t.buf.mem[entriesHeader : entriesHeader+p.needed]
	// The last entry that is needed makes no sense until the kernel has written it, and with it all before.
	clear(entries[p.needed-t.layout.headSize():])
	if err := t.fetch(s, entriesHeader+int(t.info.size)); err != nil && !errors.Is(err, unix.EFAULT) {
		return false
	}
	base, ok := t.layout.baseChain(entries, t.info.hookEntry[t.hook], t.info.underflow[t.hook])
	if !ok {
		return false
	}
	user, found, _ := t.layout.userChain(entries, t.user)
	if !found || !t.unchanged(entries, base, p.bodies[0]) || !t.unchanged(entries, user, p.bodies[1]) {
		return false
	}
	t.count(t.baseChain(), entries, base)
	t.count(t.userChain(), entries, user)
	return true
}

// remember notes what a partial read will be held against.
func (t *table) remember(entries []byte, now flannel.Time, base, user span, found bool) {
	t.part.at, t.part.info, t.part.needed = now, t.info, 0
	if !found || !t.partly {
		return
	}
	e, ok := t.layout.entry(entries, user.last)
	if !ok {
		return
	}
	needed := user.last + len(e.raw) + t.layout.headSize()
	if base.last > user.last || pages(entriesHeader+needed) > len(entries)/2 {
		return
	}
	t.part.needed = needed
	for i, s := range []span{base, user} {
		t.part.bodies[i] = t.part.bodies[i][:0]
		for off := s.first; off <= s.last; {
			e, _ := t.layout.entry(entries, off)
			t.part.bodies[i] = append(t.part.bodies[i], e.body(t.layout, aim{}))
			off += len(e.raw)
		}
	}
}

// unchanged tells whether the entries of a chain, with the one that ends it, are byte for byte what they were.
func (t *table) unchanged(entries []byte, s span, bodies []uint64) bool {
	n := 0
	for off := s.first; off <= s.last; n++ {
		e, _ := t.layout.entry(entries, off)
		if n == len(bodies) || bodies[n] != e.body(t.layout, aim{}) {
			return false
		}
		off += len(e.raw)
	}
	return n == len(bodies)
}

// canReadPartly tells whether the kernel copies entries together with their counters. Before 4.11 it copied all entries
// first, and the counters only after them.
func canReadPartly() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 4 || major == 4 && minor >= 11
}
