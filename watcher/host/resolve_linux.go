package host

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is the kernel's own limit for one path.
const maxLinks = 40

// openat2 finds a name inside a root by the kernel's own resolution (Linux 5.6), without opening what it names.
func openat2(root int, name string) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	for range 16 {
		fd, err := unix.Openat2(root, name, &how)
		// EAGAIN: something was renamed while ".." was resolved, and the kernel could not be sure.
		if err != unix.EAGAIN && err != unix.EINTR {
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

// haveOpenat2 is false for a kernel before 5.6, and inside a container whose seccomp profile is older than the call.
func haveOpenat2(root int) bool {
	fd, err := openat2(root, ".")
	if err == nil {
		unix.Close(fd)
	}
	return err != unix.ENOSYS && err != unix.EPERM
}

// walk does by hand what openat2 does: one step for each element, never following a link by itself. It remembers the
// directories on the way down, so that ".." goes back to one of them whatever was moved meanwhile.
func walk(root int, name string) (int, error) {
	w := walker{root: root}
	defer w.close()
	rest := strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		element := rest[0]
		rest = rest[1:]
		switch {
		case element == "":
			continue
		case (element == "." || element == "..") && !w.inDir():
			return -1, unix.ENOTDIR
		case element == "..":
			w.up()
			continue
		case element == ".":
			continue
		}
		target, err := w.step(element)
		if err != nil {
			return -1, err
		}
		if target == "" {
			continue
		}
		if links++; links > maxLinks {
			return -1, unix.ELOOP
		}
		if strings.HasPrefix(target, "/") {
			w.close()
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return unix.FcntlInt(uintptr(w.top()), unix.F_DUPFD_CLOEXEC, 0)
}

type walker struct {
	root int
	path []int
}

func (w *walker) top() int {
	if len(w.path) == 0 {
		return w.root
	}
	return w.path[len(w.path)-1]
}

// inDir tells whether the last step led to a directory; an element "." or ".." makes sense only there.
func (w *walker) inDir() bool {
	var st unix.Stat_t
	return unix.Fstat(w.top(), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

func (w *walker) up() {
	if n := len(w.path); n > 0 {
		unix.Close(w.path[n-1])
		w.path = w.path[:n-1]
	}
}

func (w *walker) close() {
	for len(w.path) > 0 {
		w.up()
	}
}

// step goes down one element, or gives the target of the link that it is.
func (w *walker) step(element string) (target string, err error) {
	fd, err := unix.Openat(w.top(), element, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		w.path = append(w.path, fd)
		return "", nil
	}
	defer unix.Close(fd)
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", err
	}
	if n == 0 {
		return "", errors.New("empty link")
	}
	return string(buf[:n]), nil
}
