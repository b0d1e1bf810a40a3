package proc

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/lab/labtest"
)

// standIn, set in the environment of the test binary, makes it play a program of a node.
const standIn = "FLANWATCH_STAND_IN"

func TestMain(m *testing.M) {
	switch os.Getenv(standIn) {
	case "wait": // live until standard input ends
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	case "report":
		report()
	}
	os.Exit(m.Run())
}

// outcome is what a watcher in a PID namespace of its own sees.
type outcome struct {
	Found     Found
	Who       incident.Who
	ExecsFail string
	Elsewhere string
}

func report() {
	fs, err := OpenFS("/proc")
	if err != nil {
		panic(err)
	}
	ns, err := Here()
	if err != nil {
		panic(err)
	}
	scanner := New(fs, ns)
	o := outcome{Found: scanner.Scan(now()), Who: NewAsker(fs, nil).Who(incident.Who{PID: 1, Comm: "nft"}, now())}
	if _, err := OpenExecs(fs); err != nil {
		o.ExecsFail = err.Error()
	}
	if links, err := OpenLinks(); err == nil {
		o.Elsewhere, _ = scanner.Elsewhere(links)
	}
	if err := json.NewEncoder(os.Stdout).Encode(o); err != nil {
		panic(err)
	}
	os.Exit(0)
}

func now() flannel.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err)
	}
	return flannel.Time{Wall: time.Now(), Boot: time.Duration(ts.Nano()), Session: "test"}
}

// start runs the test binary under a name in a namespace until the test ends.
func start(t testing.TB, n *labtest.Namespace, name string, args ...string) int {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n.Shell(fmt.Sprintf("mkdir -p /run/bin; [ -e /run/bin/%[2]s ] || ln -s %[1]s /run/bin/%[2]s", exe, name))
	cmd := exec.Command("/run/bin/"+name, args...)
	cmd.Env = []string{standIn + "=wait", "FLANNELD_IPTABLES_RESYNC=7", "POD_NAME=kube-flannel-ds-abcde", "TOKEN=hush"}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	waitFor(t, name+" runs", func() bool {
		// In the middle of an exec the name is the new one already, and the command line still empty.
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
		return err == nil && strings.TrimSpace(string(comm)) == name && len(cmdline) > 0
	})
	return cmd.Process.Pid
}

func waitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	for range 500 {
		if done() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("waited in vain: %s", what)
}

func scannerOf(t testing.TB, n *labtest.Namespace) *Scanner {
	t.Helper()
	fs, err := OpenFS("/proc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fs.Close() })
	ns, err := NamespaceAt(n.Path())
	if err != nil {
		t.Fatal(err)
	}
	return New(fs, ns)
}

func pidsOf(list []diagnose.Process) string {
	var b strings.Builder
	for _, p := range list {
		fmt.Fprintf(&b, "%s %d\n", p.Comm, p.PID)
	}
	return b.String()
}

// inPIDNamespace runs the test binary as a reporter in a PID namespace of its own inside a network namespace.
func inPIDNamespace(t *testing.T, n *labtest.Namespace) outcome {
	t.Helper()
	labtest.RequireTools(t, "unshare")
	exe, err := filepath.EvalSymlinks("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", exe)
	cmd.Env = append(os.Environ(), standIn+"=report")
	out, err := n.Output(cmd)
	var o outcome
	if err != nil || json.Unmarshal([]byte(out), &o) != nil {
		t.Fatalf("report: %v\n%s", err, out)
	}
	return o
}

// without runs f on the namespace's thread while that lacks a capability in its effective set.
func without(t *testing.T, n *labtest.Namespace, capability uint, f func()) {
	t.Helper()
	if err := n.Do(func() error {
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var full [2]unix.CapUserData
		if err := unix.Capget(&head, &full[0]); err != nil {
			return err
		}
		less := full
		less[capability/32].Effective &^= 1 << (capability % 32)
		if err := unix.Capset(&head, &less[0]); err != nil {
			return err
		}
		f()
		return unix.Capset(&head, &full[0])
	}); err != nil {
		t.Fatal(err)
	}
}
