package watcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// namespace is the one network namespace that is watched. Sockets opened by do belong to it for good.
type namespace struct {
	path  string // "" for our own
	file  *os.File
	inode uint64
}

// openNamespace finds a network namespace by the name that `ip netns` gave it, or by path. An empty name is our own.
func openNamespace(name string) (*namespace, error) {
	path := name
	switch {
	case name == "":
		path = "/proc/thread-self/ns/net"
	case !strings.Contains(name, "/"):
		path = filepath.Join("/run/netns", name)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %q: %w", name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, errors.Join(fmt.Errorf("open network namespace %q: %w", name, err), f.Close())
	}
	n := &namespace{file: f, inode: st.Ino}
	if name != "" {
		n.path = path
	}
	return n, nil
}

// enter takes the calling goroutine into the namespace for good. A thread that has been elsewhere is never used again: it
// ends with its goroutine, which must not unlock it.
func (n *namespace) enter() error {
	runtime.LockOSThread()
	if n.path == "" {
		return nil
	}
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", n.path, err)
	}
	return nil
}

// do runs f in the namespace.
func (n *namespace) do(f func() error) error {
	if n.path == "" {
		return f()
	}
	result := make(chan error, 1)
	go func() {
		if err := n.enter(); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}

// gone tells why the namespace is no longer to be found under its name, "" while it is. Our open files keep it alive, so
// without this look a namespace that somebody deleted would be watched for ever.
func (n *namespace) gone() string {
	if n.path == "" {
		return ""
	}
	var st unix.Stat_t
	if err := unix.Stat(n.path, &st); err != nil {
		return fmt.Sprintf("network namespace %s is gone: %v", n.path, err)
	}
	if st.Ino != n.inode {
		return fmt.Sprintf("network namespace %s is another one now", n.path)
	}
	return ""
}

func (n *namespace) close() error { return n.file.Close() }
