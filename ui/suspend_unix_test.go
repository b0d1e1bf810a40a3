//go:build unix

package ui

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

const suspendChild = "FLANWATCH_TEST_SUSPEND"

// ctrl+z stops the process, so the screen runs in a child of its own process group; here it is continued.
func TestSuspendStopsAndResumeDrawsAnew(t *testing.T) {
	if os.Getenv(suspendChild) != "" {
		suspendOnce(t)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), suspendChild+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}
	if !status.Stopped() {
		t.Fatalf("ctrl+z did not stop the process:\n%s", out.String())
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after fg: %v\n%s", err, out.String())
	}
}

func suspendOnce(t *testing.T) {
	tt := open(t, 100, 30, emptied(), nil)
	tt.shows("FLANNEL-POSTRTG empty")
	tt.keys("j")
	tt.selects("v6", "filter")
	sent := tt.sent()
	tt.keys("\x1a")
	tt.until("the picture drawn anew", func(s string) bool { return tt.sent() > sent+2000 && strings.Contains(s, "Timeline") })
	tt.selects("v6", "filter")
	tt.keys("x") // taken by the reader from before, which an input that is no terminal cannot cancel
	tt.keys("k")
	tt.selects("v4", "nat")
}
