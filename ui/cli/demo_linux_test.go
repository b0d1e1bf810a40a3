package cli_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"flanwatch/watcher/lab"
	"flanwatch/watcher/lab/labtest"
)

// TestWithoutUserNamespacesTheDemoPlaysARecordingAndSaysSo runs the demo as an ordinary user of a user namespace that allows
// no further ones.
func TestWithoutUserNamespacesTheDemoPlaysARecordingAndSaysSo(t *testing.T) {
	labtest.RequireRoot(t)
	labtest.RequireTools(t, "setpriv")
	program := buildFlanwatch(t)
	for dir := program; dir != "/"; dir = dir[:max(strings.LastIndex(dir, "/"), 1)] { // others may run it
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o005 != 0o005 {
			if err := os.Chmod(dir, info.Mode().Perm()|0o055); err != nil {
				t.Fatal(err)
			}
		}
		if dir == os.TempDir() {
			break
		}
	}
	for _, name := range lab.Scenarios() {
		cmd := exec.Command("sh", "-ec", "echo 0 > /proc/sys/user/max_user_namespaces; "+
			"exec setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all "+program+" demo "+name+" -o text")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 1000, HostID: 1000, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 1000, HostID: 1000, Size: 1}},

			GidMappingsEnableSetgroups: true,
		}
		out, err := cmd.CombinedOutput()
		first, rest, _ := strings.Cut(string(out), "\n")
		if err != nil || !strings.HasPrefix(first, "# a RECORDING of the lab, not a live one: build lab: neither root nor user namespaces") {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		if !strings.Contains(rest, "FLANNEL-") && !strings.Contains(rest, "flannel-ipv4") {
			t.Errorf("%s plays\n%s", name, rest)
		}
	}
}
