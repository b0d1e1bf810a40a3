package wire

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Socket is a netlink socket of the family NETLINK_NETFILTER, such as *netlink.Conn.
type Socket interface {
	SyscallConn() (syscall.RawConn, error)
}

// Commit sends a batch and collects the kernel's answers, which are there when sending returns. The error names every
// change that failed; then none was carried out. errors.Is tells ErrStale, and ErrNoAnswer where the outcome is unknown.
func Commit(s Socket, b *Batch) error {
	if b.Len() == 0 {
		return nil
	}
	conn, err := s.SyscallConn()
	if err != nil {
		return fmt.Errorf("commit batch: %w", err)
	}
	var answer error
	if err := conn.Control(func(fd uintptr) { answer = exchange(int(fd), b) }); err != nil {
		return fmt.Errorf("commit batch: %w", err)
	}
	return answer
}

func exchange(fd int, b *Batch) error {
	data := b.Bytes()
	if err := makeRoom(fd, len(data)); err != nil {
		return fmt.Errorf("commit batch: enlarge send buffer: %w", err)
	}
	if err := unix.Sendto(fd, data, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("commit batch: send: %w", err)
	}
	a := answers{batch: b}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return a.err()
		case errors.Is(err, unix.ENOBUFS): // answers were lost, others may wait
			a.errs = append(a.errs, fmt.Errorf("commit batch: receive: %w: %w", ErrNoAnswer, err))
		case err != nil:
			return fmt.Errorf("commit batch: receive: %w: %w", ErrNoAnswer, err)
		default:
			a.take(buf[:n])
		}
	}
}

// makeRoom lets a long batch through: the kernel takes it as one datagram or not at all.
func makeRoom(fd, size int) error {
	have, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil || have >= 2*size {
		return err
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 2*size) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 2*size) // without the privilege, up to the system's limit
}
