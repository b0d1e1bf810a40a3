package legacy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// LockFile is where iptables-legacy keeps its lock, unless XTABLES_LOCKFILE says otherwise.
const LockFile = "/run/xtables.lock"

// Tick is how often Next returns where a lock file cannot be watched.
const Tick = time.Second / 20

// ErrWoken is what Next returns after Wake.
var ErrWoken = errors.New("woken")

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
// from inotify, which does not, else from a clock. It creates nothing; a lock file that does not exist yet is awaited. Only
// Wake may be called while Next runs.
type LockWatch struct {
	files   []*lockFile
	own     int // of these, watched from the beginning
	fan     int // fanotify, -1 if unusable
	fanWhy  error
	ino     int // inotify, -1 if unusable
	inoWhy  error
	wake    int // eventfd
	buf     []byte
	queue   []LockEvent
	callers map[int]caller // who opened and has not closed
}

// WatchLock watches lock files, LockFile if none is given. A file of another mount namespace is named through
// /proc/PID/root. Where one cannot be watched Next ticks as well, and Method says why; only a lack of file descriptors is an
// error.
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
	w.own = len(w.files)
	return w, nil
}

// Next waits for the next event, whose time it takes from the clock at the moment of receipt. It waits until the deadline,
// for ever if that is zero, and then returns os.ErrDeadlineExceeded; after a Wake it returns ErrWoken.
func (w *LockWatch) Next(clock func() flannel.Time, deadline time.Time) (LockEvent, error) {
	tick := time.Time{}
	if !w.watching() {
		tick = time.Now().Add(Tick)
	}
	for len(w.queue) == 0 {
		until, ticking := deadline, false
		if !tick.IsZero() && (deadline.IsZero() || tick.Before(deadline)) {
			until, ticking = tick, true
		}
		err := w.wait(until)
		switch {
		case ticking && errors.Is(err, os.ErrDeadlineExceeded):
			return LockEvent{Time: clock(), Closed: true}, nil
		case err != nil:
			return LockEvent{}, err
		}
		w.receive(clock())
	}
	e := w.queue[0]
	w.queue = w.queue[1:]
	return e, nil
}

// Wake makes the Next that runs, or else the next one that would wait, return ErrWoken.
func (w *LockWatch) Wake() error {
	if _, err := unix.Write(w.wake, binary.NativeEndian.AppendUint64(nil, 1)); err != nil {
		return fmt.Errorf("wake lock watch: %w", err)
	}
	return nil
}

// Close ends the watch.
func (w *LockWatch) Close() error {
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
	var parts []string
	for _, f := range w.files {
		parts = append(parts, f.method())
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

// wait sleeps until there is something to read.
func (w *LockWatch) wait(deadline time.Time) error {
	var left *unix.Timespec
	if !deadline.IsZero() {
		d := unix.NsecToTimespec(max(time.Until(deadline), 0).Nanoseconds())
		left = &d
	}
	fds := []unix.PollFd{ // a negative descriptor is skipped
		{Fd: int32(w.fan), Events: unix.POLLIN},
		{Fd: int32(w.ino), Events: unix.POLLIN},
		{Fd: int32(w.wake), Events: unix.POLLIN},
	}
	n, err := unix.Ppoll(fds, left, nil)
	switch {
	case errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		return fmt.Errorf("wait for lock: %w", err)
	case n == 0:
		return os.ErrDeadlineExceeded
	case fds[2].Revents != 0:
		var count [8]byte
		_, _ = unix.Read(w.wake, count[:]) // resets the eventfd; it cannot block
		return ErrWoken
	}
	return nil
}

// receive takes what there is from both sources.
func (w *LockWatch) receive(now flannel.Time) {
	if n, err := unix.Read(w.fan, w.buf); err == nil {
		w.fanotify(w.buf[:n], now)
	}
	if n, err := unix.Read(w.ino, w.buf); err == nil {
		w.inotify(w.buf[:n], now)
	}
}
