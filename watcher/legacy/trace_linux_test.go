package legacy_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"flanwatch/watcher/lab/labtest"
	"flanwatch/watcher/legacy"
)

const readsOnly = "FLANWATCH_TEST_READS_ONLY"

// TestMain turns the test program into one that does nothing but read, for strace.
func TestMain(m *testing.M) {
	if os.Getenv(readsOnly) == "" {
		os.Exit(m.Run())
	}
	if err := readOnly(); err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}

func readOnly() error {
	r, err := legacy.Open()
	if err != nil {
		return err
	}
	w, err := legacy.WatchLock(nil)
	if err != nil {
		return err
	}
	for range 3 {
		if _, err := r.Changed(); err != nil {
			return err
		}
		if _, err := r.Read(now()); err != nil {
			return err
		}
		_, _ = w.Next(now, time.Now())
	}
	if err := w.Close(); err != nil {
		return err
	}
	return r.Close()
}

// calls runs the test program under strace in the namespace and gives its system calls of the kinds that could disturb.
func calls(t *testing.T, n *labtest.Namespace) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log := t.TempDir() + "/trace"
	cmd := exec.Command("strace", "-f", "-qq", "-o", log, "-e",
		"trace=execve,execveat,flock,fcntl,open,openat,creat,unlink,unlinkat,setsockopt,getsockopt", self)
	cmd.Env = append(os.Environ(), readsOnly+"=1")
	if out, err := n.Output(cmd); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// asked counts what tables were asked for: probes that name none, sizes, and entries. Every other call must be harmless.
func asked(t *testing.T, lines []string) (probes, sizes, entries int) {
	t.Helper()
	programs := 0
	for _, line := range lines {
		has := func(word string) bool { return strings.Contains(line, word) }
		switch {
		case has(" execve"):
			programs++
		case has("SO_GET_INFO") && has("EINVAL"):
			probes++
		case has("SO_GET_INFO"):
			sizes++
		case has("SO_GET_ENTRIES"):
			entries++
		case has(" flock("), has("F_SETLK"), has(" setsockopt("), has(" unlink"), has(" open") && !has("O_RDONLY"), has(legacy.LockFile):
			t.Errorf("disturbs: %s", line)
		}
	}
	if programs != 1 {
		t.Errorf("%d programs were started, want the first alone", programs)
	}
	return probes, sizes, entries
}

func TestReadingDisturbsNothing(t *testing.T) {
	labtest.RequireTools(t, "strace", "iptables-legacy")
	n := labtest.New(t)
	lines := calls(t, n)
	if probes, sizes, entries := asked(t, lines); probes != 2 || sizes+entries != 0 {
		t.Errorf("without tables: %d probes, %d sizes and %d tables were asked for\n%s", probes, sizes, entries, strings.Join(lines, "\n"))
	}
	if got := n.Must("cat /proc/thread-self/net/ip_tables_names /proc/thread-self/net/ip6_tables_names"); got != "" {
		t.Errorf("tables were made: %s", got)
	}
	if got := n.Must("ls -A /run"); got != "" {
		t.Errorf("files were made: %s", got)
	}
	n.Must("iptables-legacy -t nat -S")
	n.Must("rm /run/xtables.lock")
	lines = calls(t, n)
	if probes, sizes, entries := asked(t, lines); probes != 2 || sizes == 0 || entries != 3 {
		t.Errorf("with one table: %d probes, %d sizes and %d tables were asked for\n%s", probes, sizes, entries, strings.Join(lines, "\n"))
	}
	if got := n.Must("cat /proc/thread-self/net/ip_tables_names"); got != "nat\n" {
		t.Errorf("tables are %q", got)
	}
}
