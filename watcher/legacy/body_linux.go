package legacy

import (
	"encoding/binary"
	"math/bits"
)

// hash is a running 64-bit hash, the same on every run and every machine of one byte order.
type hash uint64

func (h hash) word(v uint64) hash {
	hi, lo := bits.Mul64(uint64(h)^v^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return hash(hi ^ lo)
}

// bytes adds b and its length.
func (h hash) bytes(b []byte) hash {
	n := len(b)
	for ; len(b) >= 8; b = b[8:] {
		h = h.word(binary.NativeEndian.Uint64(b))
	}
	var rest uint64
	for i, c := range b {
		rest |= uint64(c) << (8 * i)
	}
	return h.word(rest).word(uint64(n))
}

// body hashes an entry without its counter and without what depends on the rest of the table: which hooks lead to it, and
// the offset it jumps to, in place of which stands the name of the chain that is jumped to. Of the names only the part before
// the zero byte counts: the kernel leaves the rest of the reader's buffer untouched.
func (e entry) body(l *layout, to aim) uint64 {
	h := hash(l.family).bytes(e.raw[:l.inverted+1])
	whole := e.matches(l, func(m ext) bool {
		h = h.bytes(m.name()).word(uint64(m.revision())).bytes(m.data())
		return true
	})
	if !whole {
		h = h.bytes(e.raw[l.size:e.target])
	}
	t := e.ext(e.target)
	h = h.bytes(t.name()).word(uint64(t.revision()))
	switch {
	case to.next:
		h = h.word(1)
	case len(to.chain) > 0:
		h = h.bytes(to.chain)
	default:
		h = h.bytes(t.data())
	}
	return uint64(h)
}
