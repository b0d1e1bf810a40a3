// Package labtest gives tests the namespaces of package lab. A test that lacks a privilege or a tool is skipped on a
// developer's machine and fails where CI=true, so that a suite that ran nothing cannot look green.
package labtest

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"flanwatch/watcher/lab"
)

// Main is the TestMain of a package whose tests start programs of the lab.
func Main(m *testing.M) {
	lab.Child()
	os.Exit(m.Run())
}

// RequireRoot ends the test unless it runs as root.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		lacks(t, "needs root")
	}
}

// RequireTools ends the test unless every program is installed.
func RequireTools(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			lacks(t, "needs the program "+name)
		}
	}
}

func lacks(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s, which CI must have", what)
	}
	t.Skip(what)
}

// Namespace is a lab namespace whose commands fail the test when they fail.
type Namespace struct {
	*lab.Namespace
	t testing.TB
}

// New makes a namespace that lives until the end of the test.
func New(t testing.TB) *Namespace {
	t.Helper()
	RequireRoot(t)
	n, err := lab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return &Namespace{n, t}
}

// Must runs a program, given as one line of words without quoting, and returns its output.
func (n *Namespace) Must(line string) string {
	n.t.Helper()
	words := strings.Fields(line)
	out, err := n.Run(words[0], words[1:]...)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// Shell runs a script with sh -e and returns its output.
func (n *Namespace) Shell(script string) string {
	n.t.Helper()
	out, err := n.Run("sh", "-ec", script)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// Feed gives text to the standard input of a program, as for iptables-restore, and returns its output.
func (n *Namespace) Feed(text, name string, args ...string) string {
	n.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(text)
	out, err := n.Output(cmd)
	if err != nil {
		n.t.Fatalf("%v: %v: %s", cmd.Args, err, out)
	}
	return out
}
