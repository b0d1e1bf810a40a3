package lab_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"flanwatch/watcher/lab/labtest"
)

func TestNamespaceIsPrivate(t *testing.T) {
	n := labtest.New(t)
	if got := n.Must("ip -br link"); !strings.HasPrefix(got, "lo") || strings.Count(got, "\n") != 1 {
		t.Errorf("a new namespace has links:\n%s", got)
	}
	if got := n.Must("ls -A /run"); got != "" {
		t.Errorf("/run of a new namespace is not empty: %q", got)
	}
	n.Shell("touch /run/mark")
	if _, err := os.Stat("/run/mark"); err == nil {
		t.Error("a file written in the namespace is seen outside")
	}
	if _, err := os.Stat(n.Root() + "/run/mark"); err != nil {
		t.Error(err)
	}
}

func TestNamespacePathEntersIt(t *testing.T) {
	n := labtest.New(t)
	n.Must("ip link add mark0 type bridge")
	out, err := exec.Command("nsenter", "--net="+n.Path(), "ip", "-br", "link").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "mark0") {
		t.Errorf("nsenter: %v, %s", err, out)
	}
}
