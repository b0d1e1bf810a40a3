package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// bufferLen holds any datagram that the kernel makes: dumps come in pieces of at most 32 KiB.
const bufferLen = 64 << 10

// patience bounds the wait for an answer. Dumps take no lock that a commit holds, so they come at once.
const patience = 5 * time.Second

// socket asks the kernel and takes its answers, one request at a time, without allocation.
type socket struct {
	fd   int
	seq  uint32
	buf  []byte
	rest []byte // of the datagram at hand
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
	return &socket{fd: fd, buf: make([]byte, bufferLen)}, nil
}

// send stamps a request with a new number and sends it. What is left of earlier answers will be skipped.
func (s *socket) send(req []byte) error {
	s.seq++
	s.rest = nil
	binary.NativeEndian.PutUint32(req[8:], s.seq)
	if _, err := unix.Write(s.fd, req); err != nil {
		return fmt.Errorf("netlink send: %w", err)
	}
	return nil
}

// receive gives the next message of the answer to the last request. An error that the kernel answers with is returned as
// unix.Errno; what goes wrong on the way is wrapped.
func (s *socket) receive() (message, error) {
	for {
		if len(s.rest) == 0 {
			if err := s.fill(); err != nil {
				return message{}, err
			}
		}
		m, rest, err := split(s.rest)
		s.rest = rest
		if err != nil {
			return m, fmt.Errorf("netlink receive: %w", err)
		}
		if m.seq != s.seq {
			continue
		}
		if m.kind == unix.NLMSG_ERROR || m.kind == unix.NLMSG_DONE {
			return m, m.errno()
		}
		return m, nil
	}
}

func (s *socket) fill() error {
	for {
		n, err := unix.Read(s.fd, s.buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("netlink receive: %w", err)
		}
		s.rest = s.buf[:n]
		return nil
	}
}

// ask sends a request that is answered by one message.
func (s *socket) ask(req []byte) (message, error) {
	if err := s.send(req); err != nil {
		return message{}, err
	}
	return s.receive()
}

func (s *socket) close() error { return unix.Close(s.fd) }
