package legacy

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// LockFile is where iptables-legacy keeps its lock, unless XTABLES_LOCKFILE says otherwise.
const LockFile = "/run/xtables.lock"

// Tick is how often tables should be looked at where no lock file can be watched.
const Tick = time.Second / 20

// LockEvent says that a program opened or closed the lock file, which it holds from its start to its end. What it changed,
// it changed before it closed it. Programs that only list rules take the lock too.
type LockEvent struct {
	Time    flannel.Time // of receipt
	Path    string       // the lock file; "" for a tick, and where events were lost
	Opened  bool
	Closed  bool         // look at the tables now
	Who     incident.Who // zero if unknown
	Cmdline []string     // nil if unknown
	Parent  incident.Who // zero if unknown; often still there when a short-lived program is gone
	Netns   uint64       // inode number of the program's network namespace, 0 if unknown
}

// LockWatch hears when programs take and release the lock of iptables-legacy: from fanotify, which names the process, else
// from inotify, which does not, else from a clock. It creates nothing; a lock file that does not exist yet is awaited.
type LockWatch struct {
	mu      sync.Mutex // held while Next runs
	files   []*lockFile
	fan     int // fanotify, -1 if unusable
	fanWhy  error
	ino     int // inotify, -1 if unusable
	inoWhy  error
	wake    int // eventfd: Close was called
	buf     []byte
	queue   []LockEvent
	callers map[int]caller // who opened and has not closed
	closed  bool
}

// WatchLock watches lock files, LockFile if none is given. A file of another mount namespace is named through
// /proc/PID/root. Where nothing can be watched Next ticks instead; only running out of files is an error.
func WatchLock(paths []string) (*LockWatch, error) {
	if len(paths) == 0 {
		paths = []string{LockFile}
	}
	w := &LockWatch{buf: make([]byte, 16<<10), callers: make(map[int]caller)}
	var err error
	if w.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("watch lock: eventfd: %w", err)
	}
	w.fan, w.fanWhy = unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC)
	w.ino, w.inoWhy = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	for _, p := range paths {
		f := newLockFile(p)
		f.watchDir(w)
		f.mark(w)
		w.files = append(w.files, f)
	}
	return w, nil
}

// Next waits for the next event, at most for the given time, for ever if it is negative. False means that the time is over.
// The clock is asked at the moment of receipt. After Close the error is os.ErrClosed.
func (w *LockWatch) Next(clock func() flannel.Time, wait time.Duration) (LockEvent, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var deadline time.Time
	if wait >= 0 {
		deadline = time.Now().Add(wait)
	}
	for {
		if w.closed {
			return LockEvent{}, false, os.ErrClosed
		}
		if len(w.queue) > 0 {
			e := w.queue[0]
			w.queue = w.queue[1:]
			return e, true, nil
		}
		left := time.Duration(-1)
		if wait >= 0 {
			left = max(0, time.Until(deadline))
		}
		ticking := !w.watching() && (left < 0 || left >= Tick)
		if ticking {
			left = Tick
		}
		ready, err := w.poll(left)
		if err != nil {
			return LockEvent{}, false, fmt.Errorf("watch lock: %w", err)
		}
		switch {
		case ready:
			w.receive(clock())
		case ticking:
			return LockEvent{Time: clock(), Closed: true}, true, nil
		default:
			return LockEvent{}, false, nil
		}
	}
}

// Close ends a running Next and frees everything.
func (w *LockWatch) Close() error {
	one := [8]byte{7: 1}
	if _, err := unix.Write(w.wake, one[:]); err != nil {
		return fmt.Errorf("close lock watch: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	var errs []error
	for _, fd := range []int{w.fan, w.ino, w.wake} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}

// Method says in words how changes are heard of, one clause for each lock file.
func (w *LockWatch) Method() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var parts []string
	for _, f := range w.files {
		parts = append(parts, f.method(w))
	}
	return strings.Join(parts, "; ")
}

// watching tells whether every lock file is watched or awaited.
func (w *LockWatch) watching() bool {
	for _, f := range w.files {
		if !f.watched() && !f.awaited() {
			return false
		}
	}
	return true
}

// poll waits until a file can be read.
func (w *LockWatch) poll(wait time.Duration) (bool, error) {
	ms := -1
	if wait >= 0 {
		ms = int((wait + time.Millisecond - 1) / time.Millisecond)
	}
	// A negative descriptor is skipped by the kernel.
	fds := []unix.PollFd{{Fd: int32(w.fan), Events: unix.POLLIN}, {Fd: int32(w.ino), Events: unix.POLLIN}, {Fd: int32(w.wake), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, ms)
	switch {
	case errors.Is(err, unix.EINTR):
		return w.poll(wait)
	case err != nil:
		return false, fmt.Errorf("poll: %w", err)
	}
	if fds[2].Revents != 0 {
		w.closed = true
		return true, nil
	}
	return n > 0, nil
}

// receive takes what there is from both sources.
func (w *LockWatch) receive(now flannel.Time) {
	if w.fan >= 0 {
		if n, err := unix.Read(w.fan, w.buf); err == nil {
			w.fanotify(w.buf[:n], now)
		}
	}
	if w.ino >= 0 {
		if n, err := unix.Read(w.ino, w.buf); err == nil {
			w.inotify(w.buf[:n], now)
		}
	}
}

func (w *LockWatch) push(e LockEvent) { w.queue = append(w.queue, e) }
