package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack/nfnl"
	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// queueLen is the room for announcements that is asked for. With the filter the default (208 KiB) does as well; this is for
// commits that are large and about Flannel.
const queueLen = 4 << 20

// ErrWoken is what Next returns after Wake.
var ErrWoken = errors.New("woken")

// Events hears of every commit in one network namespace, in the order in which they happened. Only Wake may be called while
// Next runs.
type Events struct {
	fd      int // of the socket that hears
	wake    int // eventfd
	buf     []byte
	rest    []byte // of the datagram at hand
	reader  *Reader
	ledger  ledger
	pollFDs [2]unix.PollFd
}

// Subscribe begins to listen in the calling thread's network namespace. It reads all chains once, to know what the
// announcements are changes of.
func Subscribe() (*Events, error) {
	e, err := subscribe()
	if err != nil {
		return nil, fmt.Errorf("subscribe to nf_tables: %w", err)
	}
	return e, nil
}

func subscribe() (*Events, error) {
	r, err := open()
	if err != nil {
		return nil, err
	}
	e := &Events{fd: -1, wake: -1, reader: r, buf: make([]byte, bufferLen)}
	if err := e.listen(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	if err := e.balance(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Events) listen() error {
	var err error
	if e.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	e.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("netlink socket: %w", err)
	}
	e.pollFDs = [2]unix.PollFd{{Fd: int32(e.fd), Events: unix.POLLIN}, {Fd: int32(e.wake), Events: unix.POLLIN}}
	// Going beyond the system's limit needs CAP_NET_ADMIN in the initial user namespace; without it the default has to do.
	_ = unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queueLen)
	if err := attachFilter(e.fd); err != nil {
		return err
	}
	if err := unix.Bind(e.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink socket: %w", err)
	}
	if err := unix.SetsockoptInt(e.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES); err != nil {
		return fmt.Errorf("join group: %w", nfnl.Explain(err))
	}
	return nil
}

// Next waits for the end of the next commit, and returns it as soon as it is announced, which the kernel does before the
// committer's own call returns. It waits until the deadline, for ever if that is zero, and then returns
// os.ErrDeadlineExceeded; after a Wake it returns ErrWoken. The Commit is the caller's to keep. Next may be called again
// after any error, and should be: listening anew would miss what happens meanwhile.
//
// Where announcements were lost, the commits concerned are marked so, and one without changes and without a name comes when
// the state is known again.
func (e *Events) Next(deadline time.Time) (*incident.Commit, error) {
	for {
		if c := e.drain(); c != nil {
			return c, nil
		}
		err := e.fill()
		switch {
		case err == nil, errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOBUFS):
			e.ledger.certain = false
		case !errors.Is(err, unix.EAGAIN):
			return nil, fmt.Errorf("read nf_tables events: netlink receive: %w", err)
		case !e.ledger.certain:
			return e.catchUp()
		default:
			if err := e.wait(deadline); err != nil {
				return nil, err
			}
		}
	}
}

// drain takes messages from the datagram at hand until one ends a commit.
func (e *Events) drain() *incident.Commit {
	for len(e.rest) > 0 {
		m, rest, err := split(e.rest)
		e.rest = rest
		if err != nil {
			e.ledger.certain = false
			return nil
		}
		if c := e.ledger.add(m); c != nil {
			return c
		}
	}
	return nil
}

func (e *Events) fill() error {
	n, err := unix.Read(e.fd, e.buf)
	if err != nil {
		return err
	}
	e.rest = e.buf[:n]
	return nil
}

// catchUp reads the state anew after a loss. It is called when the queue is empty: from the first loss until then the kernel
// drops all announcements, and a reading made earlier would miss what they were about.
func (e *Events) catchUp() (*incident.Commit, error) {
	if err := e.balance(); err != nil {
		return nil, fmt.Errorf("recover lost events: %w", err)
	}
	return &incident.Commit{Backend: flannel.IptablesNft, Generation: e.ledger.gen, Lost: true}, nil
}

func (e *Events) balance() error {
	if _, _, err := e.reader.Read(); err != nil {
		return err
	}
	e.ledger.balance(e.reader)
	return nil
}

// wait sleeps until there is something to read.
func (e *Events) wait(deadline time.Time) error {
	var left *unix.Timespec
	if !deadline.IsZero() {
		d := unix.NsecToTimespec(max(time.Until(deadline), 0).Nanoseconds())
		left = &d
	}
	n, err := unix.Ppoll(e.pollFDs[:], left, nil)
	switch {
	case errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		return fmt.Errorf("wait for nf_tables events: %w", err)
	case n == 0:
		return os.ErrDeadlineExceeded
	case e.pollFDs[1].Revents != 0:
		var count [8]byte
		_, _ = unix.Read(e.wake, count[:]) // resets the eventfd; it cannot block
		return ErrWoken
	}
	return nil
}

// Wake makes the Next that runs, or else the next one that would wait, return ErrWoken.
func (e *Events) Wake() error {
	if _, err := unix.Write(e.wake, binary.NativeEndian.AppendUint64(nil, 1)); err != nil {
		return fmt.Errorf("wake nf_tables events: %w", err)
	}
	return nil
}

// Close closes the sockets. Each close waits until the commit at hand in the namespace is over, possibly for seconds.
func (e *Events) Close() error {
	errs := []error{e.reader.Close()}
	for _, fd := range []int{e.fd, e.wake} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}
