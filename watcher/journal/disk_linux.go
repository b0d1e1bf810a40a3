package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

var errNoJournal = errors.New("the file is there and is no journal")

// lockName is the file in a journal's folder that its writer holds locked.
const lockName = "lock"

// disk is the file being written. After an error the next segment begins a new one.
type disk struct {
	opt   Options
	lock  *os.File
	file  *os.File
	size  int64
	dirty time.Time // when the first line was written that may not be on the disk, zero if all are
}

func (d *disk) name() string {
	if d.file == nil {
		return ""
	}
	return d.file.Name()
}

// write writes a segment, whole or not at all.
func (d *disk) write(s segment) (err error) {
	if s.fresh {
		if err := d.begin(); err != nil {
			return err
		}
	}
	if len(s.data) == 0 {
		return nil
	}
	if d.file == nil {
		return errors.New("write journal: no file is open")
	}
	n, err := d.file.Write(s.data)
	if err != nil {
		return errors.Join(fmt.Errorf("write journal: %w", bare(err)), d.undo(n))
	}
	d.size += int64(n)
	if d.dirty.IsZero() {
		d.dirty = time.Now()
	}
	if s.urgent {
		return d.flush()
	}
	return nil
}

// undo takes half a segment out again and leaves the file, which is removed if nothing else is in it.
func (d *disk) undo(n int) error {
	var err error
	if n > 0 {
		err = bare(d.file.Truncate(d.size))
	}
	if d.size == 0 {
		err = errors.Join(err, bare(os.Remove(d.file.Name())))
	}
	return errors.Join(err, d.leave())
}

// flushLate makes safe what has waited long enough.
func (d *disk) flushLate() error {
	if d.dirty.IsZero() || time.Since(d.dirty) < syncWithin {
		return nil
	}
	return d.flush()
}

func (d *disk) flush() error {
	d.dirty = time.Time{}
	if err := d.file.Sync(); err != nil {
		return errors.Join(fmt.Errorf("write journal: %w", bare(err)), d.leave())
	}
	return nil
}

// leave closes the file.
func (d *disk) leave() error {
	if d.file == nil {
		return nil
	}
	var err error
	if !d.dirty.IsZero() {
		err = d.file.Sync()
	}
	err = errors.Join(err, d.file.Close())
	d.file, d.size, d.dirty = nil, 0, time.Time{}
	return bare(err)
}

// begin opens the next file, once nobody else writes.
func (d *disk) begin() error {
	if err := d.leave(); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	if !d.opt.rotates() {
		return d.resume()
	}
	if err := os.MkdirAll(d.opt.Path, 0o700); err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	if d.lock == nil {
		lock, err := locked(filepath.Join(d.opt.Path, lockName))
		if err != nil {
			return err
		}
		d.lock = lock
	}
	files, err := Files(d.opt.Path)
	if err != nil {
		return err
	}
	last := ""
	if len(files) > 0 {
		last = filepath.Base(files[len(files)-1])
	}
	path := filepath.Join(d.opt.Path, fileName(time.Now(), last))
	if d.file, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600); err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	if err := syncFolder(d.opt.Path); err != nil {
		return errors.Join(err, d.undo(0))
	}
	d.expire(files)
	return nil
}

// locked opens a file and locks it for this process.
func locked(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		err = ErrBusy
	case err != nil:
		err = fmt.Errorf("lock journal: %w", err)
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	return f, nil
}

// resume goes on in a single file, behind its last whole line.
func (d *disk) resume() error {
	f, err := locked(d.opt.Path)
	if err != nil {
		return err
	}
	size, err := wholeLines(f)
	if err == nil {
		err = f.Truncate(size)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open journal %s: %w", d.opt.Path, err), f.Close())
	}
	d.file, d.size = f, size
	return nil
}

// wholeLines gives the length of a journal without a torn last line.
func wholeLines(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, errNoJournal
	}
	head := make([]byte, len(headerPrefix))
	if _, err := f.ReadAt(head, 0); err != nil || string(head) != headerPrefix {
		return 0, errNoJournal
	}
	tail := make([]byte, min(info.Size(), maxLine))
	if _, err := f.ReadAt(tail, info.Size()-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	return info.Size() - int64(len(tail)) + int64(bytes.LastIndexByte(tail, '\n')) + 1, nil
}

// expire removes files that are too old, and the oldest while all together are too large. The last of the list was written
// most lately. What cannot be removed is tried again with the next file.
func (d *disk) expire(files []string) {
	var total int64
	for i := len(files) - 1; i >= 0; i-- {
		info, err := os.Lstat(files[i])
		if err != nil {
			continue // somebody else has removed it
		}
		total += info.Size()
		if total+d.opt.FileSize > d.opt.MaxTotal || time.Since(info.ModTime()) > d.opt.MaxAge {
			_ = os.Remove(files[i])
		}
	}
}

// close ends writing.
func (d *disk) close() {
	_ = d.leave() // there is nobody left to be told
	if d.lock != nil {
		_ = d.lock.Close()
	}
}

func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	return errors.Join(bare(f.Sync()), f.Close())
}

// bare is the cause of an error on a file whose name is long and shown elsewhere.
func bare(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// rotates tells whether the journal is a folder of files.
func (o Options) rotates() bool { return !strings.HasSuffix(o.Path, Suffix) }
