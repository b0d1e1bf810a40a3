package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// On a node, rules are written by programs, and the kernel tells their names with every change. So the lab's writers are
// processes of those names: this executable, started again through a link that is called "iptables", "flanneld" and so
// on, because the kernel takes a process's name from the file it is started as.
const (
	programs = "/run/lab/bin" // the links, in the namespace's private /run
	partMark = "FLANWATCH_LAB_PROGRAM"
	idle     = "idle" // value of partMark for a program that does nothing

	versionMark = "FLANWATCH_LAB_VERSION" // of flanneld
	modeMark    = "FLANWATCH_LAB_MODE"    // of flanneld: iptables, nftables or canal
)

// parts are the programs that the lab can play. What else it is asked to start only waits for its end.
var parts = map[string]func(name string, args []string) error{
	"bash":                  shell,
	"flanneld":              flanneld,
	"ip6tables":             iptables,
	"ip6tables-nft-restore": iptablesRestore,
	"ip6tables-restore":     iptablesRestore,
	"iptables":              iptables,
	"iptables-nft-restore":  iptablesRestore,
	"iptables-restore":      iptablesRestore,
	"nft":                   nft,
}

// The kernel reports the thread that commits, not the process. The first goroutine runs on the first thread, whose number
// is the process's, as long as it is held there from the start.
func init() {
	if os.Getenv(partMark) != "" {
		runtime.LockOSThread()
	}
}

// Child plays the part of one of the lab's programs and does not return, if this process was started as one. The main
// function of every program that uses the lab calls it first, and so does TestMain.
func Child() {
	if os.Getenv(partMark) == "" {
		return
	}
	signal.Ignore(unix.SIGINT, unix.SIGTSTP, unix.SIGTTOU) // keys are for the program on the terminal
	name := filepath.Base(os.Args[0])
	part := parts[name]
	if part == nil || os.Getenv(partMark) == idle {
		part = func(string, []string) error { select {} }
	}
	code := 0
	if err := part(name, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	unix.Exit(code) // os.Exit waits a second in a build with the race detector, and a start has a dozen programs
}

// Program prepares a process that looks like the program whose command line is given, with its path or without. It ends
// with the lab at the latest. Start it with Start or Output; it is not for use outside the namespace.
func (n *Namespace) Program(argv ...string) (*exec.Cmd, error) {
	if err := n.Do(func() error { return link(filepath.Base(argv[0])) }); err != nil {
		return nil, err
	}
	return program(argv...), nil
}

// StandIn prepares a process that looks like a program, and does nothing.
func (n *Namespace) StandIn(argv ...string) (*exec.Cmd, error) {
	cmd, err := n.Program(argv...)
	if err == nil {
		cmd.Env = append(cmd.Env, partMark+"="+idle)
	}
	return cmd, err
}

// link makes the file to start a program as. Its target is found by the process that starts it, in any mount namespace.
func link(name string) error {
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return err
	}
	if err := os.Symlink("/proc/self/exe", filepath.Join(programs, name)); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// program prepares a process within the namespaces of the calling one. It is killed when the thread that starts it ends.
func program(argv ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(programs, filepath.Base(argv[0])))
	cmd.Args = argv
	cmd.Env = []string{partMark + "=1", "PATH=" + programs, "HOME=/root"}
	cmd.Stderr = &bytes.Buffer{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd
}

// run runs a program as a child of a program and waits for it. It stays on the caller's thread, whose end would kill it.
func run(stdin string, argv ...string) error {
	if err := link(filepath.Base(argv[0])); err != nil {
		return err
	}
	cmd := program(argv...)
	cmd.Stdin = strings.NewReader(stdin)
	return explain(cmd, cmd.Run())
}

// explain adds what the program said to the error with which it ended.
func explain(cmd *exec.Cmd, err error) error {
	if err == nil {
		return nil
	}
	said := ""
	if b, ok := cmd.Stderr.(*bytes.Buffer); ok {
		said = strings.TrimSpace(b.String())
	}
	return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, said)
}
