package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace with a mount namespace of its own, in which /run is an empty tmpfs, so that lock files
// and configuration there are private too. It lives on one locked thread and goes away with it.
type Namespace struct {
	work chan func()
	done sync.WaitGroup
	tid  int
	file *os.File // keeps the network namespace and gives it a path
}

// NewNamespace makes a namespace with nothing but a loopback device that is down. It needs CAP_SYS_ADMIN.
func NewNamespace() (*Namespace, error) {
	n := &Namespace{work: make(chan func())}
	ready := make(chan error)
	n.done.Add(1)
	go n.run(ready)
	if err := <-ready; err != nil {
		n.done.Wait()
		return nil, fmt.Errorf("make namespace: %w", err)
	}
	return n, nil
}

// run owns the thread. It never unlocks it, so the runtime ends the thread together with the goroutine: a thread that has
// been in other namespaces must not be used again.
func (n *Namespace) run(ready chan<- error) {
	defer n.done.Done()
	runtime.LockOSThread()
	work := n.work // before Close can take it away
	err := n.enter()
	ready <- err
	if err != nil {
		return
	}
	for f := range work {
		f()
	}
}

func (n *Namespace) enter() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := privateRun(); err != nil {
		return err
	}
	n.tid = unix.Gettid()
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	n.file = f
	return nil
}

// Do runs f on the namespace's thread and waits for it. Sockets opened and processes started by f belong to the namespace
// for good.
func (n *Namespace) Do(f func() error) error {
	result := make(chan error, 1)
	n.work <- func() { result <- f() }
	return <-result
}

// Run runs a program in the namespace and gives what it printed on both outputs. The error carries the output too.
func (n *Namespace) Run(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	out, err := n.Output(cmd)
	if err != nil {
		return out, fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
	}
	return out, nil
}

// Output runs a prepared command in the namespace and gives what it printed on both outputs.
func (n *Namespace) Output(cmd *exec.Cmd) (out string, err error) {
	err = n.Do(func() error {
		b, err := cmd.CombinedOutput()
		out = string(b)
		return err
	})
	return out, err
}

// Start starts a command in the namespace without waiting for it.
func (n *Namespace) Start(cmd *exec.Cmd) error { return n.Do(cmd.Start) }

// Path names the network namespace for --netns; it is good as long as the Namespace is open.
func (n *Namespace) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

// FD is an open file of the network namespace, for moving links into it.
func (n *Namespace) FD() int { return int(n.file.Fd()) }

// Root is the namespace's view of the file system: below it lies its private /run.
func (n *Namespace) Root() string { return fmt.Sprintf("/proc/%d/task/%d/root", os.Getpid(), n.tid) }

// Close ends the thread. The kernel frees the namespace when its last process and socket are gone.
func (n *Namespace) Close() error {
	if n.work == nil {
		return errors.New("close namespace: already closed")
	}
	close(n.work)
	n.work = nil
	n.done.Wait()
	return n.file.Close()
}
