package legacy

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
)

// names is the kernel's list of the tables of one family in one namespace: the guard that keeps a reader from creating a
// table by asking for it.
type names struct {
	fd  int
	buf [1024]byte
	n   int
}

// openNames opens the list of the calling thread's namespace. The file stays one of that namespace, whatever becomes of
// the thread. The error is unix.ENOENT where ip_tables or ip6_tables is not loaded.
func openNames(f flannel.Family) (*names, error) {
	path := "/proc/thread-self/net/ip_tables_names"
	if f == flannel.IPv6 {
		path = "/proc/thread-self/net/ip6_tables_names"
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return &names{fd: fd}, nil
}

func (n *names) close() error { return unix.Close(n.fd) }

func (n *names) refresh() error {
	got, err := unix.Pread(n.fd, n.buf[:], 0)
	if err != nil {
		n.n = 0
		return fmt.Errorf("read list of tables: %w", err)
	}
	n.n = got
	return nil
}

func (n *names) has(name string) bool {
	for rest := n.buf[:n.n]; len(rest) > 0; {
		line, after, _ := bytes.Cut(rest, []byte{'\n'})
		if string(line) == name {
			return true
		}
		rest = after
	}
	return false
}
