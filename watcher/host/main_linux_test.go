package host

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/lab/labtest"
)

// standIn, set in the environment of the test binary, makes it play a program of a node.
const standIn = "FLANWATCH_STAND_IN"

func TestMain(m *testing.M) {
	if os.Getenv(standIn) != "" {
		_, _ = io.Copy(io.Discard, os.Stdin) // live until standard input ends
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// start runs the test binary under a name in a namespace until the test ends, or the returned function is called.
func start(t *testing.T, n *labtest.Namespace, name string, args ...string) (p diagnose.Process, stop func()) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n.Shell(fmt.Sprintf("mkdir -p /run/bin; [ -e /run/bin/%[2]s ] || ln -s %[1]s /run/bin/%[2]s", exe, name))
	cmd := exec.Command("/run/bin/"+name, args...)
	cmd.Env = []string{standIn + "=wait"}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			in.Close()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(stop)
	for range 500 {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		if strings.TrimSpace(string(comm)) == name {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return diagnose.Process{
		PID: cmd.Process.Pid, Comm: name, Cmdline: append([]string{name}, args...), Env: map[string]string{},
		Started: flannel.Time{Wall: time.Now()},
	}, stop
}

func write(t testing.TB, root, name, text string) {
	t.Helper()
	name = filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func openRoot(t testing.TB, name string) *Files {
	t.Helper()
	f, err := OpenRoot(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
