package legacy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
)

// lockFile is one lock file, there or not. Its directory is watched too, so that a file that appears, or is replaced, is
// noticed.
type lockFile struct {
	path, dir, name string
	dirWatch        int // inotify's number, -1 if the directory is not watched
	dirWhy          error
	fileWatch       int // inotify's number, -1 if the file is not watched so
	fanMarked       bool
	device, inode   uint64 // of the marked file
	why             error  // why it is not watched by fanotify
	gone            error  // why it is not watched at all
}

func newLockFile(path string) *lockFile {
	return &lockFile{path: path, dir: filepath.Dir(path), name: filepath.Base(path), dirWatch: -1, fileWatch: -1}
}

func (f *lockFile) watched() bool { return f.fanMarked || f.fileWatch >= 0 }
func (f *lockFile) awaited() bool { return f.dirWatch >= 0 && errors.Is(f.gone, unix.ENOENT) }

func (f *lockFile) watchDir(w *LockWatch) {
	if w.ino < 0 {
		f.dirWhy = w.inoWhy
		return
	}
	wd, err := unix.InotifyAddWatch(w.ino, f.dir, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_DELETE|unix.IN_MOVED_FROM|unix.IN_ONLYDIR)
	if err != nil {
		f.dirWhy = err
		return
	}
	f.dirWatch = wd
}

// mark begins to watch the file that is there now. A mark on a file that was deleted goes away with it.
func (f *lockFile) mark(w *LockWatch) {
	f.fanMarked, f.fileWatch, f.gone, f.why = false, -1, nil, w.fanWhy
	var st unix.Stat_t
	if err := unix.Lstat(f.path, &st); err != nil {
		f.gone = err
		return
	}
	f.device, f.inode = st.Dev, st.Ino
	if w.fan >= 0 {
		f.why = unix.FanotifyMark(w.fan, unix.FAN_MARK_ADD|unix.FAN_MARK_DONT_FOLLOW, unix.FAN_OPEN|unix.FAN_CLOSE, unix.AT_FDCWD, f.path)
		f.fanMarked = f.why == nil
	}
	if f.fanMarked {
		return
	}
	if w.ino < 0 {
		f.gone = w.inoWhy
		return
	}
	wd, err := unix.InotifyAddWatch(w.ino, f.path, unix.IN_OPEN|unix.IN_CLOSE|unix.IN_DONT_FOLLOW)
	if err != nil {
		f.gone = err
		return
	}
	f.fileWatch = wd
}

func (f *lockFile) method() string {
	switch {
	case f.fanMarked:
		return "fanotify on " + f.path
	case f.fileWatch >= 0:
		return fmt.Sprintf("inotify on %s, which names no process (fanotify: %v)", f.path, f.why)
	case f.awaited():
		return fmt.Sprintf("waiting for %s to appear", f.path)
	}
	return fmt.Sprintf("looking at table sizes 20 times a second, as %s cannot be watched: %v", f.path, errors.Join(f.gone, f.dirWhy))
}

// fanotify reads a sequence of struct fanotify_event_metadata. Each brings a file descriptor, which is closed here; that
// causes no event.
func (w *LockWatch) fanotify(b []byte, now flannel.Time) {
	const header = 24
	for len(b) >= header {
		size := int(binary.NativeEndian.Uint32(b))
		if size < header || size > len(b) {
			return
		}
		mask := binary.NativeEndian.Uint64(b[8:])
		fd := int(int32(binary.NativeEndian.Uint32(b[16:])))
		pid := int(int32(binary.NativeEndian.Uint32(b[20:])))
		b = b[size:]
		e := LockEvent{Time: now, Opened: mask&unix.FAN_OPEN != 0, Closed: mask&unix.FAN_CLOSE != 0}
		if fd < 0 { // events were lost
			e.Closed = true
			w.queue = append(w.queue, e)
			continue
		}
		e.Path = w.pathOf(fd)
		_ = unix.Close(fd) // read-only, and the kernel's own: nothing can be lost
		w.identify(&e, pid)
		w.queue = append(w.queue, e)
	}
}

func (w *LockWatch) pathOf(fd int) string {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return ""
	}
	for _, f := range w.files {
		if f.device == st.Dev && f.inode == st.Ino {
			return f.path
		}
	}
	return ""
}

// inotify reads a sequence of struct inotify_event: of directories, and of files that fanotify could not mark.
func (w *LockWatch) inotify(b []byte, now flannel.Time) {
	const header = 16
	for len(b) >= header {
		wd := int(int32(binary.NativeEndian.Uint32(b)))
		mask := binary.NativeEndian.Uint32(b[4:])
		size := header + int(binary.NativeEndian.Uint32(b[12:]))
		if size > len(b) {
			return
		}
		name, _, _ := bytes.Cut(b[header:size], []byte{0})
		b = b[size:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			w.queue = append(w.queue, LockEvent{Time: now, Closed: true})
			continue
		}
		for _, f := range w.files {
			w.inotifyOne(f, wd, mask, string(name), now)
		}
	}
}

func (w *LockWatch) inotifyOne(f *lockFile, wd int, mask uint32, name string, now flannel.Time) {
	switch {
	case wd == f.dirWatch && mask&unix.IN_IGNORED != 0:
		f.dirWatch, f.dirWhy = -1, unix.ENOENT
	case wd == f.dirWatch && name == f.name:
		f.mark(w)
		// Whoever made the file may be done with it by now; a look at the tables is right in any case.
		w.queue = append(w.queue, LockEvent{Time: now, Path: f.path, Opened: true, Closed: true})
	case wd == f.fileWatch && mask&unix.IN_IGNORED != 0:
		f.fileWatch = -1
	case wd == f.fileWatch && name == "":
		w.queue = append(w.queue, LockEvent{Time: now, Path: f.path, Opened: mask&unix.IN_OPEN != 0, Closed: mask&unix.IN_CLOSE != 0})
	}
}
