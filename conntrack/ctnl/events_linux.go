package ctnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack"
	"flanwatch/conntrack/nfnl"
)

// ErrWoken is what Next returns after Wake.
var ErrWoken = errors.New("woken")

// ErrLost is what Next returns once after new connections were missed, for want of room in the queue.
var ErrLost = errors.New("new connections were missed")

// ErrEventsOff: net.netfilter.nf_conntrack_events is 0, so the kernel announces nothing. It is left so.
var ErrEventsOff = errors.New("the kernel is set not to announce new connections")

// NewFlows hears of new connections that are not as they should be. While it is open, every new connection on the node costs
// its sender some 3 µs more, so it is opened only while somebody wants to know. Only Wake may be called while Next runs.
type NewFlows struct {
	fd      int
	wake    int // eventfd
	buf     []byte
	rest    []byte // of the datagram at hand
	pollFDs [2]unix.PollFd
}

// Listen begins to hear in the calling thread's network namespace.
func Listen(w Wanted) (*NewFlows, error) {
	n, err := listen(w)
	if err != nil {
		return nil, fmt.Errorf("listen for new connections: %w", err)
	}
	return n, nil
}

func listen(w Wanted) (*NewFlows, error) {
	if err := nfnl.Present(os.DirFS("/"), nfnl.Conntrack); err != nil {
		return nil, err
	}
	if b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_events"); err == nil && strings.TrimSpace(string(b)) == "0" {
		return nil, ErrEventsOff
	}
	n := &NewFlows{fd: -1, wake: -1, buf: make([]byte, 16<<10)}
	if err := n.open(w); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *NewFlows) open(w Wanted) (err error) {
	if n.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	n.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("netlink socket: %w", err)
	}
	n.pollFDs = [2]unix.PollFd{{Fd: int32(n.fd), Events: unix.POLLIN}, {Fd: int32(n.wake), Events: unix.POLLIN}}
	if err := attachFilter(n.fd, filterProgram(w)); err != nil {
		return err
	}
	if err := unix.Bind(n.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink socket: %w", err)
	}
	err = unix.SetsockoptInt(n.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_CONNTRACK_NEW)
	if err != nil {
		return fmt.Errorf("join group: %w", nfnl.Explain(err))
	}
	return nil
}

// Next waits for the next new connection and decodes it into f. It waits until the deadline, for ever if that is zero, and
// then returns os.ErrDeadlineExceeded; after a Wake it returns ErrWoken, and ErrLost after a loss. It may be called again
// after any of these.
func (n *NewFlows) Next(deadline time.Time, f *conntrack.Flow) error {
	for {
		if n.take(f) {
			return nil
		}
		size, err := unix.Read(n.fd, n.buf)
		switch {
		case err == nil:
			n.rest = n.buf[:size]
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOBUFS):
			return ErrLost
		case !errors.Is(err, unix.EAGAIN):
			return fmt.Errorf("hear of new connections: netlink receive: %w", err)
		default:
			if err := n.wait(deadline); err != nil {
				return err
			}
		}
	}
}

// take decodes the next entry of the datagram at hand.
func (n *NewFlows) take(f *conntrack.Flow) bool {
	for len(n.rest) >= headerLen+genLen {
		size := int(binary.NativeEndian.Uint32(n.rest))
		if size < headerLen+genLen || size > len(n.rest) {
			break
		}
		kind := binary.NativeEndian.Uint16(n.rest[4:])
		body := n.rest[headerLen+genLen : size]
		n.rest = n.rest[min((size+3)&^3, len(n.rest)):]
		if kind == unix.NFNL_SUBSYS_CTNETLINK<<8|msgNew && conntrack.Decode(body, f) == nil {
			return true
		}
	}
	n.rest = nil
	return false
}

// wait sleeps until there is something to read.
func (n *NewFlows) wait(deadline time.Time) error {
	var left *unix.Timespec
	if !deadline.IsZero() {
		d := unix.NsecToTimespec(max(time.Until(deadline), 0).Nanoseconds())
		left = &d
	}
	ready, err := unix.Ppoll(n.pollFDs[:], left, nil)
	switch {
	case errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		return fmt.Errorf("hear of new connections: poll: %w", err)
	case ready == 0:
		return os.ErrDeadlineExceeded
	case n.pollFDs[1].Revents != 0:
		var count [8]byte
		_, _ = unix.Read(n.wake, count[:])
		return ErrWoken
	}
	return nil
}

// Wake makes a Next that waits, or the next one, return.
func (n *NewFlows) Wake() error {
	_, err := unix.Write(n.wake, binary.NativeEndian.AppendUint64(nil, 1))
	return err
}

// Close ends the subscription. The kernel counts listeners, so new connections cost nothing more from then on.
func (n *NewFlows) Close() error {
	var errs []error
	for _, fd := range []int{n.fd, n.wake} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}
