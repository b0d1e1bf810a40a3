package wire

import (
	"encoding/binary"
	"errors"
)

// Netlink attributes: a header of four bytes in host byte order (length with the header, type), the payload, padding to a
// multiple of four. nf_tables nests them and keeps numbers in network byte order.
const (
	headerLen = 4
	nested    = 1 << 15
	typeMask  = 1<<14 - 1 // without the flags "nested" and "network byte order"
)

var errAttr = errors.New("malformed netlink attribute")

type attr struct {
	kind uint16
	data []byte
}

// cut takes the first attribute off b, which is not empty.
func cut(b []byte) (a attr, rest []byte, err error) {
	if len(b) < headerLen {
		return attr{}, nil, errAttr
	}
	n := int(binary.NativeEndian.Uint16(b))
	if n < headerLen || n > len(b) {
		return attr{}, nil, errAttr
	}
	a = attr{binary.NativeEndian.Uint16(b[2:]) & typeMask, b[headerLen:n]}
	return a, b[min(align(n), len(b)):], nil
}

func align(n int) int { return (n + 3) &^ 3 }

// attrs holds the payloads of attributes by type, nil for those that are not there.
type attrs [12][]byte

// split sorts attributes by type. It fails where an attribute is malformed, is there twice or is of a type that no
// expression known here has: what is read from such a list would not be all that the list says.
func split(b []byte) (t attrs, ok bool) {
	for len(b) > 0 {
		a, rest, err := cut(b)
		if err != nil || int(a.kind) >= len(t) || t[a.kind] != nil {
			return attrs{}, false
		}
		t[a.kind], b = a.data, rest
	}
	return t, true
}

// have tells whether exactly the attributes of these types are there.
func (t *attrs) have(kinds ...uint16) bool {
	n := 0
	for _, data := range t {
		if data != nil {
			n++
		}
	}
	for _, k := range kinds {
		if t[k] == nil {
			return false
		}
	}
	return n == len(kinds)
}

// number reads an attribute of four bytes in network byte order.
func (t *attrs) number(kind uint16) (uint32, bool) {
	if len(t[kind]) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(t[kind]), true
}

// writer builds a list of attributes.
type writer struct{ buf []byte }

func (w *writer) raw(kind uint16, data ...byte) {
	w.buf = binary.NativeEndian.AppendUint16(w.buf, uint16(headerLen+len(data)))
	w.buf = binary.NativeEndian.AppendUint16(w.buf, kind)
	w.buf = append(w.buf, data...)
	w.pad()
}

func (w *writer) text(kind uint16, s string) { w.raw(kind, append([]byte(s), 0)...) }

func (w *writer) number(kind uint16, v uint32) { w.raw(kind, binary.BigEndian.AppendUint32(nil, v)...) }

func (w *writer) long(kind uint16, v uint64) { w.raw(kind, binary.BigEndian.AppendUint64(nil, v)...) }

func (w *writer) nest(kind uint16, inner func()) {
	start := len(w.buf)
	w.raw(kind | nested)
	inner()
	binary.NativeEndian.PutUint16(w.buf[start:], uint16(len(w.buf)-start))
}

func (w *writer) pad() {
	for len(w.buf)%4 != 0 {
		w.buf = append(w.buf, 0)
	}
}
