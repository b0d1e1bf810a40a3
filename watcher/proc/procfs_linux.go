package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Bounds of what is read from one file. A command line may be megabytes long; its beginning tells enough.
const (
	maxSmall   = 4 << 10
	maxCmdline = 64 << 10
	maxEnviron = 256 << 10
	maxMounts  = 4 << 20
)

// FS is a proc file system, kept open.
type FS struct {
	dir  *os.File
	name string
}

// OpenFS opens a proc file system, "/proc" as a rule.
func OpenFS(name string) (*FS, error) {
	dir, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open proc file system: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil || st.Type != unix.PROC_SUPER_MAGIC {
		dir.Close()
		return nil, fmt.Errorf("open proc file system: %s is none", name)
	}
	return &FS{dir: dir, name: name}, nil
}

// Close releases it.
func (fs *FS) Close() error { return fs.dir.Close() }

// read fills buf with the beginning of a file.
func (fs *FS) read(name string, buf []byte) ([]byte, error) {
	fd, err := unix.Openat(int(fs.dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n := 0
	for n < len(buf) {
		m, err := unix.Read(fd, buf[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if m == 0 {
			break
		}
		n += m
	}
	return buf[:n], nil
}

// comm reads the kernel's name of a process in one go, which is what a look at all processes consists of. It is nil where
// the process has ended or is hidden.
func (fs *FS) comm(dir string, buf []byte) []byte {
	fd, err := unix.Openat(int(fs.dir.Fd()), dir+"/comm", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf)
	if err != nil || n == 0 {
		return nil
	}
	return buf[:n-1] // a line end closes it
}

// take reads up to max bytes of a file of a process into memory of their own, in steps, since most are short.
func (fs *FS) take(pid int, file string, max int) ([]byte, error) {
	f, err := fs.open(pid, file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, int64(max)))
}

func (fs *FS) open(pid int, file string) (*os.File, error) {
	name := strconv.Itoa(pid) + "/" + file
	fd, err := unix.Openat(int(fs.dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), fs.name+"/"+name), nil
}

func (fs *FS) link(name string) (string, error) {
	var buf [128]byte
	n, err := unix.Readlinkat(int(fs.dir.Fd()), name, buf[:])
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func (fs *FS) stat(pid int) (stat, error) {
	var buf [1024]byte
	b, err := fs.read(strconv.Itoa(pid)+"/stat", buf[:])
	if err != nil {
		return stat{}, err
	}
	return parseStat(b)
}

// pids lists the processes in view.
func (fs *FS) pids() ([]string, error) {
	if _, err := fs.dir.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	names, err := fs.dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	n := 0
	for _, name := range names {
		if name[0] >= '1' && name[0] <= '9' {
			names[n] = name
			n++
		}
	}
	return names[:n], nil
}

// gone tells whether an error means that the process has ended.
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }

// denied tells whether an error means that a privilege is lacking.
func denied(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }
