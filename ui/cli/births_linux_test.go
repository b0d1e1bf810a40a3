package cli_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"flanwatch/ui/cli"
	"flanwatch/watcher/lab/labtest"
)

// hears tells whether somebody listens for new connections in a namespace.
func hears(n *labtest.Namespace) bool {
	const newConnections = 1 // NFNLGRP_CONNTRACK_NEW, as a bit of the groups
	for line := range strings.Lines(n.Must("cat /proc/thread-self/net/netlink")) {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[1] == "12" {
			if groups, err := strconv.ParseUint(fields[3], 16, 64); err == nil && groups&newConnections != 0 {
				return true
			}
		}
	}
	return false
}

// within waits for something to become true.
func within(t *testing.T, d time.Duration, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v: not %s", d, what)
		}
	}
}

// gap is what an exported incident tells of connections.
type gap struct {
	ID    int
	Flows *struct {
		HeardSince           *string
		Born, Alive, Replied *int
		Others               int
		Curve                []struct{ Bare int }
	}
}

func TestARecorderTellsInWhichGapABareConnectionBeganAndListensNoLonger(t *testing.T) {
	program := buildFlanwatch(t)
	c := newCluster(t)
	root, state := t.TempDir(), t.TempDir()
	put := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("run/flannel/subnet.env", subnetEnv)
	put("var/lib/cni/results/cbr0-0a1b-eth0", `{"cniArgs":[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","cart-0"]],
		"result":{"ips":[{"address":"10.244.1.5/24"}]}}`)
	flannel := func() {
		c.node.Feed(rules4, "iptables-nft-restore")
		c.node.Feed(rules6, "ip6tables-nft-restore")
	}
	flannel()
	c.node.Must("iptables-nft -A FORWARD -m conntrack --ctstate INVALID -j DROP")
	c.node.Flanneld("--ip-masq", "--kube-subnet-mgr")
	record := exec.Command(program, "record", "--netns", c.node.Path(), "--root", root, "--state", state)
	record.Stdout, record.Stderr = os.Stderr, os.Stderr
	if err := record.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = record.Process.Signal(syscall.SIGTERM)
			_ = record.Wait()
		}
	}
	t.Cleanup(end)
	time.Sleep(2 * time.Second) // it has read everything
	if hears(c.node) {
		t.Error("it listens with no incident open")
	}
	c.node.Must("iptables-nft -t nat -F FLANNEL-POSTRTG")
	within(t, 3*time.Second, "listening in the gap", func() bool { return hears(c.node) })
	send(t, c.pod, 40000, "192.0.2.80:9")
	send(t, c.pod, 40001, "192.0.2.80:9")
	time.Sleep(300 * time.Millisecond)
	flannel()
	send(t, c.pod, 40000, "192.0.2.80:9") // it lives on
	send(t, c.pod, 40002, "192.0.2.80:9") // this one is masqueraded
	within(t, 5*time.Second, "silent after the gap", func() bool { return !hears(c.node) })

	var list []gap
	within(t, 10*time.Second, "recorded", func() bool {
		out, _ := exec.Command(program, "export", "-o", "json", "--state", state).Output()
		var x struct{ Incidents []gap }
		_ = json.Unmarshal(out, &x)
		list = x.Incidents
		return len(list) == 1 && list[0].Flows != nil && list[0].Flows.Alive != nil && *list[0].Flows.Alive == 2
	})
	f := list[0].Flows
	if f.HeardSince == nil || *f.Born != 2 || *f.Replied != 0 || f.Others != 0 || len(f.Curve) < 3 {
		t.Errorf("the incident tells %+v", f)
	}
	out, err := exec.Command(program, "flows", "-o", "json", "--netns", c.node.Path(), "--root", root, "--state", state).CombinedOutput()
	if code := exitCode(err); code != cli.ExitFinding {
		t.Errorf("exit code %d: %s", code, out)
	}
	var l struct {
		Flows []struct {
			Kind, Pod  string
			SPort      int
			AgeSeconds *int
			BornIn     *int
			Replied    bool
		}
	}
	if err := json.Unmarshal(out, &l); err != nil || len(l.Flows) != 2 {
		t.Fatalf("%v: %s", err, out)
	}
	for i, f := range l.Flows {
		if f.Kind != "bare" || f.SPort != 40000+i || f.BornIn == nil || *f.BornIn != 1 || f.AgeSeconds == nil || f.Pod != "shop/cart-0" || f.Replied {
			t.Errorf("%+v", f)
		}
	}
	end()
}

func exitCode(err error) int {
	if e, ok := err.(*exec.ExitError); ok {
		return e.ExitCode()
	}
	return 0
}
