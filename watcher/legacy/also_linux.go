package legacy

import (
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Also watches lock files beside those that the watch began with, and no longer those that an earlier call named: a flanneld
// in a container can have a lock file of its own, found through /proc/PID/root. One that is watched already under another
// name, or that cannot be watched, is left out. It must not be called while Next runs.
func (w *LockWatch) Also(paths []string) {
	kept := slices.Clone(w.files[:w.own])
	for _, f := range w.files[w.own:] {
		if slices.Contains(paths, f.path) {
			kept = append(kept, f)
		} else {
			f.leave(w)
		}
	}
	w.files = kept
	for _, path := range paths {
		if slices.ContainsFunc(w.files, func(f *lockFile) bool { return f.path == path || sameFile(f.dir, filepath.Dir(path)) }) {
			continue
		}
		if slices.ContainsFunc(w.files, func(f *lockFile) bool { return sameFile(f.path, path) }) {
			continue
		}
		f := newLockFile(path)
		f.watchDir(w)
		f.mark(w)
		if !f.watched() && !f.awaited() {
			f.leave(w)
			continue
		}
		w.files = append(w.files, f)
	}
}

func sameFile(a, b string) bool {
	var x, y unix.Stat_t
	return unix.Stat(a, &x) == nil && unix.Stat(b, &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}

// leave ends the watch of a file. What belongs to a file system that is gone is gone already.
func (f *lockFile) leave(w *LockWatch) {
	for _, wd := range []int{f.dirWatch, f.fileWatch} {
		if wd >= 0 {
			_, _ = unix.InotifyRmWatch(w.ino, uint32(wd))
		}
	}
	if f.fanMarked {
		_ = unix.FanotifyMark(w.fan, unix.FAN_MARK_REMOVE|unix.FAN_MARK_DONT_FOLLOW, unix.FAN_OPEN|unix.FAN_CLOSE, unix.AT_FDCWD, f.path)
	}
}
