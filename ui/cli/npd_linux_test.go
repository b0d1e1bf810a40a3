package cli_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/lab/labtest"
)

// What node-problem-detector makes of a plugin's end.
const (
	npdFalse   = "False"
	npdTrue    = "True"
	npdUnknown = "Unknown"
)

// detector holds flanwatch to the contract of node-problem-detector's custom plugins: it runs a program with a time limit,
// reads at most 4 KiB of its standard output, keeps 80 bytes, and takes exit code 0 for healthy, 1 for a problem, and
// everything else for unknown.
type detector struct {
	t      *testing.T
	binary string
	n      *labtest.Namespace
	prefix []string // what the program is run through
}

func (d detector) run(timeout time.Duration, args ...string) (status, message string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), timeout)
	defer cancel()
	argv := append(append(append([]string{}, d.prefix...), d.binary, "check", "-o", "npd"), args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	text, _ := io.ReadAll(io.LimitReader(out, 4<<10))
	_, _ = io.Copy(io.Discard, out)
	err = cmd.Wait()
	message = strings.TrimSpace(string(text))
	message = message[:min(80, len(message))]
	var ended *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return npdUnknown, "timeout"
	case err == nil:
		return npdFalse, message
	case errors.As(err, &ended) && ended.ExitCode() == 1:
		return npdTrue, message
	}
	return npdUnknown, message
}

// condition runs the rule of one condition in the namespace of the test.
func (d detector) condition(part string, settle time.Duration) (status, message string) {
	d.t.Helper()
	return d.run(15*time.Second, "--only", part, "--settle", settle.String(), "--netns", d.n.Path(), "--root", d.n.Root())
}

var npdParts = []string{"masquerade", "forward", "leftovers", "readers"}

// npdState is one state of a node, reached from the one before.
type npdState struct {
	name  string
	reach func(n *labtest.Namespace, d *detector)
	want  string // statuses of the four conditions: F, T or U
	says  string // what the message of the first problem begins with
}

func npdStates() []npdState {
	do := func(lines ...string) func(*labtest.Namespace, *detector) {
		return func(n *labtest.Namespace, _ *detector) {
			for _, l := range lines {
				n.Must(l)
			}
		}
	}
	restore := func(tool string) func(*labtest.Namespace, *detector) {
		return func(n *labtest.Namespace, _ *detector) { n.Feed(rules4, tool) }
	}
	masq := "iptables-nft -t nat "
	return []npdState{
		{"healthy", restore("iptables-nft-restore"), "FFFF", ""},
		{"masquerade chain flushed", do(masq + "-F FLANNEL-POSTRTG"), "TFFF", "chain-empty iptables-nft ip nat FLANNEL-POSTRTG"},
		{"masquerade chain gone", do(masq+"-F POSTROUTING", masq+"-X FLANNEL-POSTRTG"), "TFFF", "chain-missing iptables-nft ip nat FLANNEL-POSTRTG"},
		{"repaired", restore("iptables-nft-restore"), "FFFF", ""},
		{"masquerade hook gone", do(masq + "-F POSTROUTING"), "TFFF", "hook-missing iptables-nft ip nat FLANNEL-POSTRTG"},
		{"hook twice", do(masq+"-A POSTROUTING -m comment --comment flanneld\\040masq -j FLANNEL-POSTRTG", masq+"-F FLANNEL-POSTRTG"), "TFFF", "chain-empty"},
		{"repaired again", restore("iptables-nft-restore"), "FFFF", ""},
		{"forward chain flushed under a dropping policy", do("iptables-nft -P FORWARD DROP", "iptables-nft -F FLANNEL-FWD"), "FTFF", "chain-empty iptables-nft ip filter FLANNEL-FWD"},
		{"both", do(masq + "-F FLANNEL-POSTRTG"), "TTFF", "chain-empty"},
		{"all in order", restore("iptables-nft-restore"), "FFFF", ""},
		{"without the capability", func(n *labtest.Namespace, d *detector) {
			d.prefix = []string{"setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"}
		}, "UUUT", "cannot-read"},
		{"with it", func(_ *labtest.Namespace, d *detector) { d.prefix = nil }, "FFFF", ""},
	}
}

func TestNodeProblemDetectorGetsTheRightConditions(t *testing.T) {
	t.Parallel()
	labtest.RequireTools(t, "setpriv")
	n := node(t)
	n.Write("/run/flannel/subnet.env", "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPMASQ=true\n")
	n.Flanneld("--ip-masq")
	d := detector{t: t, binary: buildFlanwatch(t), n: n}
	for _, s := range npdStates() {
		s.reach(n, &d)
		got, first := "", ""
		for _, part := range npdParts {
			status, message := d.condition(part, 100*time.Millisecond)
			got += status[:1]
			if len(message) == 0 || strings.ContainsFunc(message, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("%s, %s: message %q", s.name, part, message)
			}
			if status == npdTrue && first == "" {
				first = message
			}
		}
		t.Logf("%-45s %s  %s", s.name, got, first)
		if got != s.want || !strings.HasPrefix(first, s.says) {
			t.Errorf("%s: conditions %s with %q, want %s with %q…", s.name, got, first, s.want, s.says)
		}
	}
}

// A gap that is over before the second look is no problem of the node; one that lasts is.
func TestAShortGapIsNoConditionOfTheNode(t *testing.T) {
	t.Parallel()
	n := node(t)
	n.Write("/run/flannel/subnet.env", "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPMASQ=true\n")
	n.Flanneld("--ip-masq")
	n.Feed(rules4, "iptables-nft-restore")
	d := detector{t: t, binary: buildFlanwatch(t), n: n}
	for _, c := range []struct {
		length time.Duration
		want   []string // statuses that came one after the other, without repetition
	}{
		{300 * time.Millisecond, []string{npdFalse}},
		{20 * time.Second, []string{npdFalse, npdTrue, npdFalse}},
	} {
		t.Run(fmt.Sprint(c.length), func(t *testing.T) {
			var gap sync.WaitGroup
			gap.Go(func() {
				time.Sleep(200 * time.Millisecond)
				n.Must("iptables-nft -t nat -F FLANNEL-POSTRTG")
				time.Sleep(c.length)
				n.Feed(rules4, "iptables-nft-restore")
			})
			var seen []string
			for end := time.Now().Add(c.length + 7*time.Second); time.Now().Before(end); {
				status, _ := d.condition("masquerade", 5*time.Second)
				if len(seen) == 0 || seen[len(seen)-1] != status {
					seen = append(seen, status)
				}
				time.Sleep(50 * time.Millisecond)
			}
			gap.Wait()
			if fmt.Sprint(seen) != fmt.Sprint(c.want) {
				t.Errorf("statuses %v, want %v", seen, c.want)
			}
		})
	}
}

// In a network namespace that is not the node's an empty packet filter proves nothing.
func TestAFreshNamespaceIsNotTakenForAHealthyNode(t *testing.T) {
	labtest.RequireRoot(t)
	d := detector{t: t, binary: buildFlanwatch(t), prefix: []string{"unshare", "--net"}}
	status, message := d.run(15*time.Second, "--only", "masquerade", "--root", t.TempDir())
	if status != npdUnknown || !strings.HasPrefix(message, "cannot read namespace: not the node's network namespace") {
		t.Errorf("%s: %q", status, message)
	}
	out, err := exec.Command("unshare", "--net", d.binary, "check", "--root", t.TempDir()).CombinedOutput()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() != 3 || !strings.Contains(string(out), "run on the host network") {
		t.Errorf("%v: %s", err, flannel.Printable(string(out)))
	}
}
