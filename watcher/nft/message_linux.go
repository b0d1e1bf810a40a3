package nft

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// The fixed parts of a message: nlmsghdr in host byte order, then nfgenmsg.
const (
	headerLen = unix.SizeofNlMsghdr
	genLen    = 4
)

var errMalformed = errors.New("malformed message")

// message is one netlink message; body is a part of the receive buffer.
type message struct {
	kind   uint16 // nlmsg_type
	flags  uint16
	seq    uint32
	family byte   // nfgenmsg: NFPROTO_*
	gen    uint16 // nfgenmsg: low half of the generation in which the kernel wrote the message
	body   []byte // attributes, or the error of NLMSG_ERROR and NLMSG_DONE
}

// kindOf is the message type of an nf_tables command, NFT_MSG_*.
func kindOf(command uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | command }

// split takes the first message off a datagram.
func split(b []byte) (m message, rest []byte, err error) {
	if len(b) < headerLen {
		return m, nil, errMalformed
	}
	n := int(binary.NativeEndian.Uint32(b))
	if n < headerLen || n > len(b) {
		return m, nil, errMalformed
	}
	m = message{
		kind:  binary.NativeEndian.Uint16(b[4:]),
		flags: binary.NativeEndian.Uint16(b[6:]),
		seq:   binary.NativeEndian.Uint32(b[8:]),
		body:  b[headerLen:n],
	}
	rest = b[min(align(n), len(b)):]
	if m.kind < unix.NLMSG_MIN_TYPE {
		return m, rest, nil
	}
	if len(m.body) < genLen {
		return m, nil, errMalformed
	}
	m.family, m.gen = m.body[0], binary.BigEndian.Uint16(m.body[2:])
	m.body = m.body[genLen:]
	return m, rest, nil
}

// errno is the kernel's answer in NLMSG_ERROR, and in NLMSG_DONE at the end of a dump: nil or a unix.Errno.
func (m message) errno() error {
	if len(m.body) < 4 {
		return errMalformed
	}
	if n := int32(binary.NativeEndian.Uint32(m.body)); n < 0 {
		return unix.Errno(-n)
	}
	return nil
}

// attributes walks over a list of attributes: for a.next() { a.kind, a.data }. It stops at the end and at the first that is
// malformed.
type attributes struct {
	rest []byte
	kind uint16
	data []byte
}

func (a *attributes) next() bool {
	if len(a.rest) < unix.SizeofNlAttr {
		return false
	}
	n := int(binary.NativeEndian.Uint16(a.rest))
	if n < unix.SizeofNlAttr || n > len(a.rest) {
		return false
	}
	a.kind = binary.NativeEndian.Uint16(a.rest[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	a.data = a.rest[unix.SizeofNlAttr:n]
	a.rest = a.rest[min(align(n), len(a.rest)):]
	return true
}

// uint32 and uint64 read a number in network byte order, as nf_tables writes them; 0 where the length is wrong.
func (a *attributes) uint32() uint32 {
	if len(a.data) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(a.data)
}

func (a *attributes) uint64() uint64 {
	if len(a.data) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(a.data)
}

// text is a string without its terminator.
func (a *attributes) text() []byte {
	if n := len(a.data); n > 0 && a.data[n-1] == 0 {
		return a.data[:n-1]
	}
	return a.data
}

// request builds a message that asks for something. It is built once and sent often: send stamps its number.
func request(command, flags uint16, family byte, attrs ...stringAttr) []byte {
	b := make([]byte, headerLen, 128)
	binary.NativeEndian.PutUint16(b[4:], kindOf(command))
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|flags)
	b = append(b, family, 0, 0, 0)
	for _, a := range attrs {
		b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(a.text)+1))
		b = binary.NativeEndian.AppendUint16(b, a.kind)
		b = append(b, a.text...)
		b = append(b, make([]byte, align(len(a.text)+1)-len(a.text))...)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	return b
}

type stringAttr struct {
	kind uint16
	text string
}

func align(n int) int { return (n + 3) &^ 3 }
