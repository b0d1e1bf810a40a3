package upstream_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"flanwatch/watcher/lab/labtest"
)

// remedied runs a remedy of flanwatch from the preview to the end.
func remedied(t *testing.T, n *labtest.Namespace, flanwatch string, args ...string) string {
	t.Helper()
	out, _ := n.Output(exec.Command(flanwatch, append(args, "--dry-run", "-o", "json")...)) // it exits with 1: there is something to do
	var plan struct{ ID, Title string }
	if err := json.Unmarshal([]byte(out), &plan); err != nil || plan.ID == "" {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	out, err := n.Output(exec.Command(flanwatch, append(args, "--plan", plan.ID, "--look-again", "0")...))
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	return plan.Title
}

// What flanwatch put back is, to Flannel's own code, as it should be: its repair finds nothing to do, so that rules keep
// their handles and counters.
func TestFlannelsOwnRepairLeavesAloneWhatWasPutBack(t *testing.T) {
	program, flanwatch := build(t, "flanneld", "flanneld"), build(t, "../../..", "flanwatch")
	for _, c := range []struct {
		flavour, damage string
		rules           func(n *labtest.Namespace) string
	}{
		{"nft", "nft flush table ip nat; nft delete chain ip nat FLANNEL-POSTRTG; nft flush table ip filter", func(n *labtest.Namespace) string {
			return n.Shell("nft -a list ruleset")
		}},
		{"legacy", "iptables-legacy -w -t nat -F; iptables-legacy -w -t nat -X; iptables-legacy -w -F", func(n *labtest.Namespace) string {
			return n.Shell("iptables-legacy-save -c | grep -v '^#'; ip6tables-legacy-save -c | grep -v '^#'")
		}},
	} {
		t.Run(c.flavour, func(t *testing.T) {
			n := labtest.New(t)
			n.Must("ip link set lo up")
			n.Write("/run/xtables.lock", "")
			cmd := flanneld(t, n, program, c.flavour, "--iptables-resync=1")
			time.Sleep(7 * time.Second) // it is no longer starting
			repair := func(s syscall.Signal) {
				t.Helper()
				if err := syscall.Kill(-cmd.Process.Pid, s); err != nil {
					t.Fatal(err)
				}
			}
			for free := false; !free; { // not while one of its programs holds the lock
				repair(syscall.SIGSTOP)
				time.Sleep(20 * time.Millisecond)
				if _, err := n.Run("flock", "-n", "/run/xtables.lock", "true"); err == nil {
					free = true
				} else {
					repair(syscall.SIGCONT)
					time.Sleep(50 * time.Millisecond)
				}
			}
			n.Shell(c.damage)
			state := filepath.Join(t.TempDir(), "state")
			t.Log(remedied(t, n, flanwatch, "reapply", "--state", state))
			if c.flavour == "legacy" { // counters that a repair of flanneld would lose
				n.Shell(`for p in iptables-legacy ip6tables-legacy; do $p-save -c | sed 's/^\[0:0\]/[7:700]/' | $p-restore -c; done`)
			}
			before := c.rules(n)
			if strings.Count(before, "flanneld masq")+strings.Count(before, "counter") < 14 {
				t.Fatalf("put back:\n%s", before)
			}
			repair(syscall.SIGCONT)
			time.Sleep(4 * time.Second)
			if after := c.rules(n); counters.ReplaceAllString(after, "") != counters.ReplaceAllString(before, "") {
				t.Errorf("flanneld made of it\n%s\nwant\n%s", after, before)
			}
		})
	}
}

// counters of base chains' policies move by themselves.
var counters = regexp.MustCompile(`(?m)^:.*$`)
