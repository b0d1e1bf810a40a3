package legacy

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/lab/labtest"
)

// container starts a shell in a mount namespace of its own, with a lock file of its own, which it opens for each line that it
// is told.
func container(t *testing.T, n *labtest.Namespace) (pid int, tell io.Writer) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", `mount -t tmpfs tmpfs /run; : > /run/xtables.lock; echo ready; while read -r x; do : < /run/xtables.lock; done`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatal(line, err)
	}
	return cmd.Process.Pid, in
}

func TestTheLockFileOfAContainerIsWatchedWhileItRuns(t *testing.T) {
	n := labtest.New(t)
	n.Write("/run/xtables.lock", "")
	w, err := WatchLock([]string{n.Root() + LockFile})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	pid, tell := container(t, n)
	theirs := fmt.Sprintf("/proc/%d/root%s", pid, LockFile)
	clock := func() flannel.Time { return flannel.Time{Wall: time.Now(), Boot: time.Second, Session: "boot/1"} }
	hears := func() bool {
		fmt.Fprintln(tell)
		e, err := w.Next(clock, time.Now().Add(time.Second))
		for err == nil && !e.Closed {
			e, err = w.Next(clock, time.Now().Add(time.Second))
		}
		return err == nil && e.Path == theirs
	}
	if hears() {
		t.Error("heard of a file that is not watched")
	}
	w.Also([]string{theirs, n.Root() + LockFile})
	if len(w.files) != 2 || !hears() {
		t.Errorf("not heard; %s", w.Method())
	}
	w.Also(nil)
	if len(w.files) != 1 || hears() {
		t.Errorf("heard of a file that is watched no more; %s", w.Method())
	}
}
