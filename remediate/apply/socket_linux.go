package apply

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
)

// socket asks nf_tables for raw rules and sends batches. It is opened once for a plan.
type socket struct {
	fd  int
	seq uint32
	buf []byte
}

// dial opens a socket in the calling thread's network namespace.
func dial() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	wait := unix.NsecToTimeval((5 * time.Second).Nanoseconds())
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("netlink socket: %w", err), unix.Close(fd))
	}
	return &socket{fd: fd, buf: make([]byte, 64<<10)}, nil
}

func (s *socket) close() { unix.Close(s.fd) }

// SyscallConn makes the socket one that wire.Commit sends through.
func (s *socket) SyscallConn() (syscall.RawConn, error) { return s, nil }

// Control runs f on the file descriptor.
func (s *socket) Control(f func(fd uintptr)) error {
	f(uintptr(s.fd))
	return nil
}

// Read is not used: wire.Commit does its own waiting.
func (s *socket) Read(func(fd uintptr) bool) error { return errors.ErrUnsupported }

// Write is not used either.
func (s *socket) Write(func(fd uintptr) bool) error { return errors.ErrUnsupported }

// attr is one attribute of a request.
type attr struct {
	kind uint16
	text string
}

// ask sends a request and gives the attributes of each message of the answer.
func (s *socket) ask(command, flags uint16, f flannel.Family, attrs ...attr) ([][]byte, error) {
	s.seq++
	req := make([]byte, unix.SizeofNlMsghdr, 128)
	family := byte(unix.NFPROTO_IPV4)
	if f == flannel.IPv6 {
		family = unix.NFPROTO_IPV6
	}
	req = append(req, family, unix.NFNETLINK_V0, 0, 0)
	for _, a := range attrs {
		req = binary.NativeEndian.AppendUint16(req, uint16(unix.SizeofNlAttr+len(a.text)+1))
		req = binary.NativeEndian.AppendUint16(req, a.kind)
		req = append(append(req, a.text...), 0)
		for len(req)%4 != 0 {
			req = append(req, 0)
		}
	}
	binary.NativeEndian.PutUint32(req, uint32(len(req)))
	binary.NativeEndian.PutUint16(req[4:], unix.NFNL_SUBSYS_NFTABLES<<8|command)
	binary.NativeEndian.PutUint16(req[6:], unix.NLM_F_REQUEST|flags)
	binary.NativeEndian.PutUint32(req[8:], s.seq)
	if _, err := unix.Write(s.fd, req); err != nil {
		return nil, fmt.Errorf("netlink send: %w", err)
	}
	var out [][]byte
	for {
		n, err := unix.Read(s.fd, s.buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("netlink receive: %w", err)
		}
		more, err := s.take(s.buf[:n], flags&unix.NLM_F_DUMP != 0, &out)
		if err != nil || !more {
			return out, err
		}
	}
}

// take reads the messages of one datagram and tells whether more are to come.
func (s *socket) take(b []byte, dump bool, out *[][]byte) (bool, error) {
	for len(b) >= unix.SizeofNlMsghdr {
		n := int(binary.NativeEndian.Uint32(b))
		if n < unix.SizeofNlMsghdr || n > len(b) {
			return false, errors.New("netlink receive: malformed message")
		}
		kind, seq, body := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[8:]), b[unix.SizeofNlMsghdr:n]
		b = b[min((n+3)&^3, len(b)):]
		switch {
		case seq != s.seq: // an answer to something earlier
		case kind == unix.NLMSG_DONE:
			return false, nil
		case kind == unix.NLMSG_ERROR:
			if len(body) < 4 {
				return false, errors.New("netlink receive: malformed message")
			}
			if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
				return false, unix.Errno(-code)
			}
			return false, nil
		case len(body) >= 4:
			*out = append(*out, append([]byte(nil), body[4:]...))
			if !dump {
				return false, nil
			}
		}
	}
	return true, nil
}

// each walks over attributes; the two highest bits of a kind are flags.
func each(b []byte, f func(kind uint16, data []byte)) {
	for len(b) >= unix.SizeofNlAttr {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofNlAttr || n > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&0x3fff, b[unix.SizeofNlAttr:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}
