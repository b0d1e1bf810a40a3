package ctnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack"
)

// bufferLen holds any datagram that the kernel makes: dumps come in pieces of at most 32 KiB.
const bufferLen = 64 << 10

// patience bounds the wait for one datagram. A dump of a large table comes in many.
const patience = 5 * time.Second

const (
	headerLen = unix.SizeofNlMsghdr
	genLen    = 4 // nfgenmsg
)

// Messages of the conntrack subsystem (enum cntl_msg_types).
const (
	msgNew      = 0
	msgGet      = 1
	msgDelete   = 2
	msgStatsCPU = 4
	msgStats    = 5
)

// ErrInterrupted is a dump during which the table was resized: entries can be missing or twice in it.
var ErrInterrupted = errors.New("table changed while it was read")

// socket asks the kernel and takes its answers, one request at a time, without allocation.
type socket struct {
	fd  int
	seq uint32
	req []byte
	buf []byte
}

// dial opens a socket in the calling thread's network namespace.
func dial() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	wait := unix.NsecToTimeval(patience.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("netlink socket: %w", err), unix.Close(fd))
	}
	return &socket{fd: fd, req: make([]byte, 0, 256), buf: make([]byte, bufferLen)}, nil
}

// begin starts a request; attributes are appended to s.req.
func (s *socket) begin(command, flags uint16, family byte) {
	b := s.req[:0]
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, unix.NFNL_SUBSYS_CTNETLINK<<8|command)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint32(b, 0)
	s.req = append(b, family, 0, 0, 0)
}

// attr32 appends a number in network byte order.
func (s *socket) attr32(kind uint16, v uint32) {
	s.req = binary.NativeEndian.AppendUint16(s.req, 8)
	s.req = binary.NativeEndian.AppendUint16(s.req, kind)
	s.req = binary.BigEndian.AppendUint32(s.req, v)
}

// ask sends the request and hands the attributes of every message of the answer to each, which must not keep them. An error
// that the kernel answers with is a unix.Errno; what goes wrong on the way is wrapped. single ends the answer with its first
// message: CT_GET_STATS is marked as the part of a dump, yet none follows.
func (s *socket) ask(single bool, each func(family byte, attrs []byte) error) error {
	s.seq++
	binary.NativeEndian.PutUint32(s.req, uint32(len(s.req)))
	binary.NativeEndian.PutUint32(s.req[8:], s.seq)
	if _, err := unix.Write(s.fd, s.req); err != nil {
		return fmt.Errorf("netlink send: %w", err)
	}
	answer := answer{seq: s.seq, single: single, each: each}
	for !answer.done {
		n, err := unix.Read(s.fd, s.buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("netlink receive: %w", err)
		}
		answer.datagram(s.buf[:n])
	}
	return answer.err()
}

func (s *socket) close() error { return unix.Close(s.fd) }

// answer is what has come in of the answer to one request. It is read to its end even where each fails, so that the socket
// is ready for the next request.
type answer struct {
	seq    uint32
	single bool
	each   func(byte, []byte) error

	done        bool
	interrupted bool
	failure     error
}

func (a *answer) datagram(b []byte) {
	for len(b) > 0 && !a.done {
		if len(b) < headerLen {
			a.fail(conntrack.ErrMalformed)
			return
		}
		n := int(binary.NativeEndian.Uint32(b))
		if n < headerLen || n > len(b) {
			a.fail(conntrack.ErrMalformed)
			return
		}
		if binary.NativeEndian.Uint32(b[8:]) == a.seq {
			a.message(binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:]), b[headerLen:n])
		}
		b = b[min((n+3)&^3, len(b)):]
	}
}

// fail ends an answer whose rest makes no sense.
func (a *answer) fail(err error) {
	a.failure, a.done = fmt.Errorf("netlink receive: %w", err), true
}

func (a *answer) message(kind, flags uint16, body []byte) {
	a.interrupted = a.interrupted || flags&unix.NLM_F_DUMP_INTR != 0
	switch {
	case kind == unix.NLMSG_DONE, kind == unix.NLMSG_ERROR:
		a.done = true
		if len(body) < 4 {
			a.fail(conntrack.ErrMalformed)
		} else if e := int32(binary.NativeEndian.Uint32(body)); e < 0 {
			a.failure = unix.Errno(-e)
		}
	case kind < unix.NLMSG_MIN_TYPE:
	case len(body) < genLen:
		a.fail(conntrack.ErrMalformed)
	default:
		if a.failure == nil {
			a.failure = a.each(body[0], body[genLen:])
		}
		a.done = a.single || flags&unix.NLM_F_MULTI == 0
	}
}

func (a *answer) err() error {
	if a.failure == nil && a.interrupted {
		return ErrInterrupted
	}
	return a.failure
}
