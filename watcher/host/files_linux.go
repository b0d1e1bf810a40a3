package host

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Faults of a file that is there and is not read.
var (
	ErrNotRegular = errors.New("not an ordinary file")
	ErrTooLarge   = errors.New("larger than expected")
)

// Files reads files of the host inside one root directory. Links, absolute ones too, are followed as if that directory
// were "/": neither they nor ".." lead out of it.
type Files struct {
	root *os.File
	name string
	open func(root int, name string) (int, error)
}

// OpenRoot opens a root directory: "/" on the node itself, a mount of the node's root in a container, or /proc/PID/root
// for the files of a process.
func OpenRoot(name string) (*Files, error) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open root %s: %w", name, err)
	}
	f := &Files{root: os.NewFile(uintptr(fd), name), name: name, open: openat2}
	if !haveOpenat2(fd) {
		f.open = walk
	}
	return f, nil
}

// Close releases the root directory.
func (f *Files) Close() error { return f.root.Close() }

// Name is the root as it was opened.
func (f *Files) Name() string { return f.name }

// ReadFile reads an ordinary file of at most max bytes and tells when it was last written. It does not touch devices,
// pipes and sockets, not even by opening them.
func (f *Files) ReadFile(name string, max int64) ([]byte, time.Time, error) {
	data, written, err := f.read(name, max)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read %s: %w", name, err)
	}
	return data, written, nil
}

func (f *Files) read(name string, max int64) ([]byte, time.Time, error) {
	file, info, err := f.regular(name)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer file.Close()
	if info.Size() > max {
		return nil, time.Time{}, fmt.Errorf("%d bytes: %w", info.Size(), ErrTooLarge)
	}
	// The file may grow, or be one of those whose size is not known beforehand.
	data, err := io.ReadAll(io.LimitReader(file, max+1))
	if err != nil {
		return nil, time.Time{}, err
	}
	if int64(len(data)) > max {
		return nil, time.Time{}, fmt.Errorf("more than %d bytes: %w", max, ErrTooLarge)
	}
	return data, info.ModTime(), nil
}

// regular opens a file in two steps: the first only finds it, so that its kind is known before anything is opened for
// reading; opening a device can have effects, and opening a pipe can wait for ever.
func (f *Files) regular(name string) (*os.File, os.FileInfo, error) {
	fd, err := f.open(int(f.root.Fd()), name)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, nil, ErrNotRegular
	}
	// The descriptor is opened again, not the name, which might mean another file by now.
	file, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, errors.Unwrap(err)
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

// ReadDir lists the names in a directory, sorted, at most max of them.
func (f *Files) ReadDir(name string, max int) ([]string, error) {
	names, err := f.list(name, max)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", name, err)
	}
	return names, nil
}

func (f *Files) list(name string, max int) ([]string, error) {
	fd, err := f.open(int(f.root.Fd()), name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	dirfd, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(dirfd), name)
	defer dir.Close()
	names, err := dir.Readdirnames(max)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}

// Glob finds the names that match a pattern whose elements may hold "*". It looks at no more than max entries of a
// directory, and leaves out what it cannot list.
func (f *Files) Glob(pattern string, max int) []string {
	found := []string{"/"}
	for element := range strings.SplitSeq(strings.Trim(pattern, "/"), "/") {
		var next []string
		for _, dir := range found {
			next = append(next, f.matches(dir, element, max)...)
		}
		found = next
	}
	return found
}

func (f *Files) matches(dir, element string, max int) []string {
	if !strings.Contains(element, "*") {
		name := path.Join(dir, element)
		if f.exists(name) {
			return []string{name}
		}
		return nil
	}
	names, err := f.list(dir, max)
	if err != nil {
		return nil
	}
	var out []string
	for _, name := range names {
		if ok, _ := path.Match(element, name); ok {
			out = append(out, path.Join(dir, name))
		}
	}
	return out
}

func (f *Files) exists(name string) bool {
	fd, err := f.open(int(f.root.Fd()), name)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// stat tells of what a name leads to without opening it.
func (f *Files) stat(name string) (st unix.Stat_t, err error) {
	fd, err := f.open(int(f.root.Fd()), name)
	if err != nil {
		return st, err
	}
	defer unix.Close(fd)
	return st, unix.Fstat(fd, &st)
}
