package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// outerMark tells the inner process the namespaces of its outer one.
const outerMark = "FLANWATCH_LAB_OUTER"

// grace is how long a process has for its end before it is killed.
const grace = 3 * time.Second

// PrivilegeError says that no lab can be built here: the process is not root, and the kernel gives it no user namespace
// in which it would be.
type PrivilegeError struct{ Err error }

func (e *PrivilegeError) Error() string {
	return "build lab: neither root nor user namespaces are to be had: " + e.Err.Error()
}

// Unwrap gives what the kernel said.
func (e *PrivilegeError) Unwrap() error { return e.Err }

// Enclose runs this program again, with the same arguments and on the same terminal, in namespaces of its own: network,
// host name, mounts with an empty /run, and for an ordinary user a user namespace, in which the inner process is root.
//
// In the inner process it returns inside = true, and the caller goes on. In the outer one it returns when the inner one
// has ended, with its exit code, or 128 and the number of the signal that ended it. Signals are passed on. When the outer
// process dies, of whatever, the inner one and all it made go too.
//
// The error is a *PrivilegeError if the kernel does not allow it; it can come from either process.
func Enclose() (inside bool, code int, err error) {
	here, err := namespaceNames()
	if err != nil {
		return false, 0, err
	}
	if outer := os.Getenv(outerMark); outer != "" && outer != here {
		return true, 0, enter()
	}
	code, err = runInside(here)
	return false, code, err
}

// namespaceNames gives the numbers of this process's namespaces, so that the inner process can tell that it has others.
func namespaceNames() (string, error) {
	var names []string
	for _, kind := range []string{"net", "mnt"} {
		name, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return "", err
		}
		names = append(names, name)
	}
	return strings.Join(names, " "), nil
}

func runInside(here string) (int, error) {
	// The inner process gets its signal when this thread ends, not when the process does.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	tool, terminal := findGoTool(self), saveTerminal(os.Stdout)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)

	inner := exec.Command(self)
	inner.Args = os.Args
	inner.Env = append(os.Environ(), outerMark+"="+here)
	inner.Stdin, inner.Stdout, inner.Stderr = os.Stdin, os.Stdout, os.Stderr
	inner.SysProcAttr = newNamespaces()
	if err := inner.Start(); err != nil {
		return 0, &PrivilegeError{fmt.Errorf("make namespaces: %w", err)}
	}
	err = attend(inner, signals, tool)
	signal.Stop(signals) // a signal ends what follows, should the terminal not take it
	tool.clean()
	state := inner.ProcessState
	if state == nil {
		return 0, err
	}
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		terminal.restore()
		return 128 + int(status.Signal()), nil
	}
	return state.ExitCode(), nil
}

func newNamespaces() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS, Pdeathsig: unix.SIGTERM}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	return attr
}

// attend waits for the inner process, passes signals on, and ends it when the go tool that started us is gone.
func attend(inner *exec.Cmd, signals <-chan os.Signal, tool *goTool) error {
	done := make(chan error, 1)
	go func() { done <- inner.Wait() }()
	poll := time.NewTicker(200 * time.Millisecond)
	defer poll.Stop()
	var ended time.Time
	for {
		select {
		case err := <-done:
			return err
		case s := <-signals:
			inner.Process.Signal(s) //nolint:errcheck // it has just ended
		case <-poll.C:
			switch {
			case !tool.gone():
			case ended.IsZero():
				ended = time.Now()
				inner.Process.Signal(unix.SIGTERM) //nolint:errcheck
			case time.Since(ended) > grace:
				inner.Process.Kill() //nolint:errcheck
			}
		}
	}
}

// enter makes the inner process's mounts private and sees to its end.
func enter() error {
	// Restoring the terminal must work even when the shell has taken it back, which it does when the outer process dies.
	signal.Ignore(unix.SIGTTOU)
	go dieWith(os.Getppid())
	err := errors.Join(privateRun(), unix.Sethostname([]byte(NodeName)))
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return &PrivilegeError{err} // user namespaces without rights in them, as AppArmor gives
	}
	return err
}

// dieWith ends this process some time after its parent, in case it does not heed the signal that comes with that.
func dieWith(parent int) {
	for os.Getppid() == parent {
		time.Sleep(200 * time.Millisecond)
	}
	time.Sleep(grace)
	unix.Kill(os.Getpid(), unix.SIGKILL) //nolint:errcheck // cannot fail
}

// privateRun detaches the mounts of the calling thread or process and puts an empty tmpfs on /run.
func privateRun() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount tmpfs on /run: %w", err)
	}
	return nil
}

// terminal is a terminal and the state it was in; state is nil if the file is none.
type terminal struct {
	file  *os.File
	state *unix.Termios
}

func saveTerminal(file *os.File) terminal {
	state, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	if err != nil {
		return terminal{}
	}
	return terminal{file, state}
}

// restore undoes what a killed inner process has left: input mode, the other screen, hidden cursor, mouse and paste reports.
func (t terminal) restore() {
	if t.state == nil {
		return
	}
	unix.IoctlSetTermios(int(t.file.Fd()), unix.TCSETS, t.state) //nolint:errcheck // nothing can be done about it
	fmt.Fprint(t.file, "\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[0m")
}
