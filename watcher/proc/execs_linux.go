package proc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// maxStarted bounds the memory for processes: with maxExecCmdline at most some 8 MB.
const (
	maxStarted     = 4096
	maxExecCmdline = 2 << 10
	eventBuffer    = 1 << 20
)

// Execs listens to the starts of processes on the whole machine, so that a program can be named after it has ended.
type Execs struct {
	fs   *FS
	file *os.File
	done chan struct{}

	mu   sync.Mutex
	ring *ring
	err  error
}

// OpenExecs begins to listen. The kernel answers only in the initial network namespace, so this comes before any other is
// entered, and stays silent towards other PID and user namespaces, so these are looked at first.
func OpenExecs(fs *FS) (*Execs, error) {
	if !fs.view().initial {
		return nil, errors.New("listen to process starts: flanwatch does not live in the initial PID namespace")
	}
	if user, err := fs.link("self/ns/user"); err != nil || user != initialUserNamespace {
		return nil, errors.New("listen to process starts: flanwatch does not live in the initial user namespace")
	}
	file, err := openConnector()
	if err != nil {
		return nil, fmt.Errorf("listen to process starts: %w", err)
	}
	e := &Execs{fs: fs, file: file, done: make(chan struct{}), ring: newRing(maxStarted)}
	go e.run()
	return e, nil
}

func openConnector() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_CONNECTOR)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "proc connector")
	if err := subscribe(fd); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func subscribe(fd int) error {
	if err := attachFilter(fd); err != nil {
		return fmt.Errorf("filter: %w", err)
	}
	// Without the privilege for a larger buffer the default one does; losses are noticed.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventBuffer)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: connectorIndex}); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	if err := tell(fd, multicastListen); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	return nil
}

// Orders to the proc connector.
const (
	multicastListen = 1
	multicastIgnore = 2
)

// tell lets the kernel know whether somebody listens: it makes events only then.
func tell(fd int, what uint32) error {
	native := binary.NativeEndian
	b := make([]byte, eventOffset+4)
	native.PutUint32(b, uint32(len(b)))
	native.PutUint16(b[4:], unix.NLMSG_DONE)
	native.PutUint32(b[netlinkHeader:], connectorIndex)
	native.PutUint32(b[netlinkHeader+4:], connectorValue)
	native.PutUint16(b[netlinkHeader+16:], 4)
	native.PutUint32(b[eventOffset:], what)
	return unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// attachFilter lets only forks, execs and exits into the buffer. BPF loads words in network order.
func attachFilter(fd int) error {
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: eventOffset, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: swapped(eventFork), SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: swapped(eventExec), SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: swapped(eventExit), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: 0xffffffff},
	}
	raw, err := bpf.Assemble(program)
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

func swapped(k eventKind) uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], uint32(k))
	return binary.BigEndian.Uint32(b[:])
}

// Close stops listening. Before Linux 6.6 the kernel does not notice by itself that a listener has gone.
func (e *Execs) Close() error {
	var ignored error
	conn, err := e.file.SyscallConn()
	if err == nil {
		err = conn.Control(func(fd uintptr) { ignored = tell(int(fd), multicastIgnore) })
	}
	err = errors.Join(err, ignored, e.file.Close())
	<-e.done
	return err
}

// Err tells why listening has ended by itself, nil while it goes on.
func (e *Execs) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Lookup gives the process that had a number at a moment of the boot clock, if its start was seen and is remembered.
func (e *Execs) Lookup(pid int, at time.Duration) (Started, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ring.lookup(pid, at)
}

func (e *Execs) run() {
	defer close(e.done)
	buf := make([]byte, 4096)
	for {
		n, err := e.receive(buf)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			e.with(func(r *ring) { r.lost() })
		case errors.Is(err, os.ErrClosed):
			return
		case err != nil:
			e.mu.Lock()
			e.err = fmt.Errorf("listen to process starts: %w", err)
			e.mu.Unlock()
			return
		case n > 0:
			e.take(buf[:n])
		}
	}
}

// receive waits for one datagram of the kernel; those of other senders count as empty.
func (e *Execs) receive(buf []byte) (n int, err error) {
	conn, err := e.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var from unix.Sockaddr
	waitErr := conn.Read(func(fd uintptr) bool {
		n, from, err = unix.Recvfrom(int(fd), buf, 0)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if waitErr != nil {
		return 0, waitErr
	}
	if sender, ok := from.(*unix.SockaddrNetlink); err == nil && (!ok || sender.Pid != 0) {
		return 0, nil
	}
	return n, err
}

// take reads what an exec has started before it takes the lock: that is the slow part, and the one in a hurry.
func (e *Execs) take(b []byte) {
	ev, ok := parseEvent(b)
	if !ok {
		return
	}
	at := ev.at + bootAhead()
	switch ev.kind {
	case eventFork:
		e.with(func(r *ring) { r.fork(ev.pid, ev.parent, at) })
	case eventExit:
		e.with(func(r *ring) { r.exit(ev.pid, at) })
	case eventExec:
		comm, cmdline := e.fs.program(ev.pid)
		e.with(func(r *ring) { r.exec(ev.pid, comm, cmdline) })
	}
}

func (e *Execs) with(f func(*ring)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f(e.ring)
}

// program reads name and command line of a process as it is now.
func (fs *FS) program(pid int) (comm string, cmdline []string) {
	var buf [maxExecCmdline]byte
	dir := strconv.Itoa(pid)
	if b, err := fs.read(dir+"/comm", buf[:32]); err == nil && len(b) > 0 {
		comm = string(b[:len(b)-1])
	}
	if b, err := fs.read(dir+"/cmdline", buf[:]); err == nil {
		cmdline = parseStrings(b)
	}
	return comm, cmdline
}

// bootAhead is how far the boot clock, which counts on in suspend, is ahead of the monotonic clock of the events.
func bootAhead() time.Duration {
	var boot, mono unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono) != nil {
		return 0
	}
	return time.Duration(boot.Nano() - mono.Nano())
}
