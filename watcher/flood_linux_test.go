package watcher_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/lab/labtest"
)

// TestFlushesHiddenInAFloodOfCommitsAreIncidents rewrites 10,000 rules back to back, as kube-proxy can, and empties Flannel's
// chain in the midst of one such commit and fills it in the midst of the next. The listener has the buffer of an ordinary
// socket. FLANWATCH_FULL=1 goes on for 30 s.
func TestFlushesHiddenInAFloodOfCommitsAreIncidents(t *testing.T) {
	n := node(t, flannel.IptablesNft)
	f := watchFolded(t, optionsOf(n))
	shrinkListener(t)
	const rules = 10000
	flush, refill := floodFile(t, rules, "-F FLANNEL-POSTRTG\n"), floodFile(t, rules, "-F FLANNEL-POSTRTG\n"+masqRules)
	rewrite(t, n, refill) // the first has nothing to remove
	f.wait("the first commit", func() bool { return f.commits() > 0 })
	before, heard, listener, whole := len(f.incidents()), f.commits(), listenerCPU(t), processCPU(t)
	lasts := 6 * time.Second
	if full() {
		lasts = 30 * time.Second
	}
	pairs := 0
	for end := time.Now().Add(lasts); time.Now().Before(end); pairs++ {
		rewrite(t, n, flush)
		rewrite(t, n, refill)
	}
	f.wait("the last commit", func() bool { return f.commits() >= heard+2*pairs })
	commits := time.Duration(2 * pairs)
	listener, whole = (listenerCPU(t)-listener)/commits, (processCPU(t)-whole)/commits
	found := f.incidents()[before:]
	t.Logf("%d commits of %d rules: %d of %d flushes caught; a commit costs the listener %v, all of this process %v",
		commits, rules, len(found), pairs, listener, whole)
	if len(found) != pairs || f.lost > 0 {
		t.Errorf("%d incidents in %d flushes; announcements were lost %d times", len(found), pairs, f.lost)
	}
	if listener > 5*time.Millisecond {
		t.Errorf("a commit costs the listener %v", listener)
	}
	for _, inc := range found {
		if inc.Open || !inc.Complete || inc.By == nil || inc.By.Comm != "iptables-nft-re" || inc.RecoveredBy == nil {
			t.Errorf("incident %+v", inc)
		}
	}
}

func (f *folded) commits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.heard
}

// floodFile is a restore file that rewrites a chain of many rules, with lines of Flannel's in the midst.
func floodFile(t *testing.T, rules int, midst string) string {
	t.Helper()
	text := otherRules(rules)
	half := strings.Index(text[len(text)/2:], "\n") + len(text)/2 + 1
	path := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(path, []byte(text[:half]+midst+text[half:]), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func rewrite(t *testing.T, n *labtest.Namespace, path string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command("iptables-nft-restore", "--noflush")
	cmd.Stdin = file
	if out, err := n.Output(cmd); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// shrinkListener gives the sockets on which this process hears of nf_tables the buffer that they have without privilege.
func shrinkListener(t *testing.T) {
	t.Helper()
	const usual = 212992
	shrunk := 0
	for fd := range 1024 {
		size, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
		protocol, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
		domain, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil || domain != unix.AF_NETLINK || protocol != unix.NETLINK_NETFILTER || size <= usual {
			continue
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, usual/2); err != nil {
			t.Fatal(err)
		}
		shrunk++
	}
	if shrunk != 1 {
		t.Fatalf("%d listening sockets found", shrunk)
	}
}

// listenerCPU is what the threads that run ahead of others have used: those that listen.
func listenerCPU(t *testing.T) (used time.Duration) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		var tid int
		if _, err := fmt.Sscan(filepath.Base(task), &tid); err != nil {
			t.Fatal(err)
		}
		attr, err := unix.SchedGetAttr(tid, 0)
		if err != nil || attr.Policy != unix.SCHED_RR {
			continue
		}
		b, err := os.ReadFile(filepath.Join(task, "schedstat"))
		if err != nil {
			t.Fatal(err)
		}
		var ns int64
		if _, err := fmt.Sscan(string(b), &ns); err != nil {
			t.Fatal(err)
		}
		used += time.Duration(ns)
	}
	if used == 0 {
		t.Error("no thread runs ahead of others")
	}
	return used
}

func processCPU(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
