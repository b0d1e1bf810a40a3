package cli_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"flanwatch/watcher/lab/labtest"
)

// TestWatchingDisturbsNothing traces ten seconds of watching: in an empty namespace, where reading could create tables,
// and beside Flannel's rules in both iptables backends.
func TestWatchingDisturbsNothing(t *testing.T) {
	labtest.RequireTools(t, "strace")
	program := buildFlanwatch(t)
	t.Run("in a namespace without tables", func(t *testing.T) {
		t.Parallel()
		n := node(t)
		trace(t, n, program)
		if got := n.Must("nft list tables"); got != "" {
			t.Errorf("watching made tables: %s", got)
		}
		for _, names := range []string{"ip_tables_names", "ip6_tables_names"} {
			if got := n.Must("cat /proc/thread-self/net/" + names); got != "" {
				t.Errorf("watching made legacy tables: %s", got)
			}
		}
	})
	t.Run("beside rules of both backends", func(t *testing.T) {
		t.Parallel()
		n := node(t)
		n.Feed(rules4, "iptables-nft-restore")
		n.Feed(rules6, "ip6tables-nft-restore")
		n.Feed(rules4, "iptables-legacy-restore")
		n.Flanneld("--ip-masq", "--kube-subnet-mgr")
		before := n.Must("nft list ruleset")
		trace(t, n, program)
		if after := n.Must("nft list ruleset"); after != before {
			t.Errorf("watching changed the ruleset to\n%s", after)
		}
	})
}

func buildFlanwatch(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "flanwatch")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	return path
}

var (
	execCall   = regexp.MustCompile(`execve(at)?\(`)
	socketCall = regexp.MustCompile(`socket\(AF_NETLINK, .*NETLINK_NETFILTER\) = (\d+)`)
	closeCall  = regexp.MustCompile(`close\((\d+)\)`)
	writeCall  = regexp.MustCompile(`(?:write|sendto|sendmsg)\((\d+), .*?"((?:\\x[0-9a-f]{2})+)`)
	setCall    = regexp.MustCompile(`setsockopt\(\d+, SOL_IPV?6?, (IPT|IP6T)_`)
)

// trace watches for ten seconds under strace and complains of every call that could disturb.
func trace(t *testing.T, n *labtest.Namespace, program string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "trace")
	out, _ := n.Run("timeout", "-s", "TERM", "10", "strace", "-f", "-xx", "-s", "32", "-o", file,
		"-e", "trace=execve,execveat,open,openat,openat2,socket,close,write,sendto,sendmsg,setsockopt", program, "watch", "-o", "text", "--state", t.TempDir())
	text := n.Must("cat " + file)
	if strings.Count(out, "\n") < 8 || !strings.Contains(text, "NETLINK_NETFILTER") {
		t.Fatalf("nothing was watched: %s", out)
	}
	netfilter := map[string]bool{}
	for i, line := range strings.Split(text, "\n") {
		if i > 0 && execCall.MatchString(line) {
			t.Errorf("exec: %s", line)
		}
		// What is opened as a path alone can be told from other files, and can be neither locked nor read.
		if strings.Contains(line, "open") && strings.Contains(line, hex("xtables.lock")) && !strings.Contains(line, "O_PATH") {
			t.Errorf("the lock was opened: %s", line)
		}
		if setCall.MatchString(line) {
			t.Errorf("a legacy table was written: %s", line)
		}
		if m := socketCall.FindStringSubmatch(line); m != nil {
			netfilter[m[1]] = true
		}
		if m := closeCall.FindStringSubmatch(line); m != nil && netfilter[m[1]] {
			t.Errorf("a netfilter socket was closed: %s", line)
		}
		if m := writeCall.FindStringSubmatch(line); m != nil && netfilter[m[1]] && !asks(m[2]) {
			t.Errorf("netfilter was written to: %s", line)
		}
	}
	if len(netfilter) == 0 {
		t.Error("no netfilter socket was seen")
	}
}

// Commands of ctnetlink that ask, by linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet         = 1
	ctGetStatsCPU = 4
	ctGetStats    = 5
)

// asks tells whether a netlink message, in strace's hexadecimal form, only asks.
func asks(message string) bool {
	words := strings.Split(message, `\x`)[1:]
	if len(words) < 6 {
		return false
	}
	command, _ := strconv.ParseUint(words[4], 16, 8)
	subsystem, _ := strconv.ParseUint(words[5], 16, 8)
	if subsystem == unix.NFNL_SUBSYS_CTNETLINK {
		const get, statsCPU, stats = 1, 4, 5
		return command == get || command == statsCPU || command == stats
	}
	switch subsystem {
	case unix.NFNL_SUBSYS_NFTABLES:
		return slices.Contains([]uint64{unix.NFT_MSG_GETTABLE, unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_GETRULE, unix.NFT_MSG_GETGEN}, command)
	case unix.NFNL_SUBSYS_CTNETLINK:
		return slices.Contains([]uint64{ctGet, ctGetStatsCPU, ctGetStats}, command)
	}
	return false
}

func hex(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, `\x%02x`, s[i])
	}
	return b.String()
}
