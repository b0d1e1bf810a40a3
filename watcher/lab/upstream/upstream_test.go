package upstream_test

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"flanwatch/watcher/lab/labtest"
)

const (
	network, subnet   = "10.244.0.0/16", "10.244.1.0/24"
	network6, subnet6 = "fd00:244::/48", "fd00:244:0:1::/64"
)

const subnetEnv = `FLANNEL_NETWORK=` + network + `
FLANNEL_SUBNET=10.244.1.1/24
FLANNEL_IPV6_NETWORK=` + network6 + `
FLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64
FLANNEL_MTU=1450
FLANNEL_IPMASQ=true
`

// build compiles the program in a folder and gives its path.
func build(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", dir, err, out)
	}
	return path
}

// flanneld starts Flannel's traffic manager in a namespace whose `iptables` is of the flavour given, and waits until its
// rules are there.
func flanneld(t *testing.T, n *labtest.Namespace, program, flavour string, args ...string) *exec.Cmd {
	t.Helper()
	n.Must("mkdir -p /run/bin /run/flannel")
	for _, name := range []string{"", "-save", "-restore"} {
		n.Must("ln -sf /usr/sbin/iptables-" + flavour + name + " /run/bin/iptables" + name)
		n.Must("ln -sf /usr/sbin/ip6tables-" + flavour + name + " /run/bin/ip6tables" + name)
	}
	args = append([]string{
		program, "--network", network, "--subnet", subnet, "--network6", network6, "--subnet6", subnet6, "--ip-masq",
	}, args...)
	cmd := exec.Command("env", append([]string{"PATH=/run/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("flanneld said %q, %v", line, err)
	}
	n.Feed(subnetEnv, "tee", "/run/flannel/subnet.env")
	return cmd
}

// report is the part of check's JSON that is looked at.
type report struct {
	Flannel  struct{ State, Dialect, Generation string }
	Chains   []struct{ Backend, Family, Table, Name, State string }
	Findings []struct{ ID, Severity, Summary string }
}

func check(t *testing.T, n *labtest.Namespace, flanwatch string) (r report, code int) {
	t.Helper()
	cmd := exec.Command(flanwatch, "check", "-o", "json")
	out, err := n.Output(cmd)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("check: %v: %s", err, out)
	}
	if err != nil {
		code = cmd.ProcessState.ExitCode()
	}
	return r, code
}

func TestCheckIsContentWithTheRulesThatFlannelWrites(t *testing.T) {
	program, flanwatch := build(t, "flanneld", "flanneld"), build(t, "../../..", "flanwatch")
	for _, c := range []struct {
		name, flavour, backend, dialect, generation string
		args                                        []string
	}{
		{"with iptables-nft", "nft", "iptables-nft", "iptables", "v0.21.0", nil},
		{"with iptables-legacy", "legacy", "iptables-legacy", "iptables", "v0.21.0", nil},
		{"natively", "nft", "nftables", "nftables", "v0.25.0", []string{"--native"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := labtest.New(t)
			n.Must("ip link set lo up")
			flanneld(t, n, program, c.flavour, c.args...)
			r, code := check(t, n, flanwatch)
			if code != 0 || r.Flannel.Dialect != c.dialect || r.Flannel.Generation != c.generation || len(r.Chains) != 4 {
				t.Errorf("exit code %d, %+v, %d chains", code, r.Flannel, len(r.Chains))
			}
			for _, chain := range r.Chains {
				if chain.State != "ok" || chain.Backend != c.backend {
					t.Errorf("%+v", chain)
				}
			}
			for _, f := range r.Findings {
				t.Errorf("finding %s (%s): %s", f.ID, f.Severity, f.Summary)
			}
		})
	}
}
