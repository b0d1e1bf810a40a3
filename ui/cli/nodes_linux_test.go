package cli_test

import (
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"flanwatch/ui/cli"
	"flanwatch/watcher/lab"
	"flanwatch/watcher/lab/labtest"
)

// play starts a scenario of the lab.
func play(t *testing.T, name string) *lab.Lab {
	t.Helper()
	labtest.RequireRoot(t)
	s, err := lab.LoadScenario(name)
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

var flanneldNumber = regexp.MustCompile(`flanneld\[(\d+)\]`)

// flanneldOf reads the number of flanneld off the evidence, 0 if there is none.
func flanneldOf(c checked) int {
	m := flanneldNumber.FindStringSubmatch(strings.Join(c.Flannel.Evidence, "\n"))
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// On a Canal node subnet.env lies in flanneld's container only. When the container is gone, the networks must still be
// known, and no rule for forwarding be missed, since flanneld was told to write none.
func TestACanalNodeIsKnownWithoutItsContainer(t *testing.T) {
	l := play(t, "canal")
	c, code := checkAt(t, l.Node.Path(), l.Root())
	if code != cli.ExitOK || len(c.Findings) != 0 {
		t.Errorf("while it runs: exit code %d, %+v", code, c.Findings)
	}
	if !strings.HasPrefix(c.Node.Source, "/proc/") {
		t.Errorf("networks from %q", c.Node.Source)
	}
	pid := flanneldOf(c)
	if pid == 0 {
		t.Fatalf("no flanneld in %q", c.Flannel.Evidence)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); flanneldOf(c) != 0 && time.Now().Before(end); {
		c, _ = checkAt(t, l.Node.Path(), l.Root())
	}
	if got := strings.Join(c.Node.Networks, " "); got != "10.244.0.0/16 fd00:244::/48" && got != "10.244.0.0/16" {
		t.Errorf("networks %q from %q", got, c.Node.Source)
	}
	if c.Node.Source == "" || c.Node.AgeSeconds == nil {
		t.Errorf("the networks are from %q, age %v", c.Node.Source, c.Node.AgeSeconds)
	}
	for _, f := range c.Findings {
		if strings.Contains(f.Object, "FLANNEL-FWD") {
			t.Errorf("%s: %s", f.ID, f.Summary)
		}
	}
}

func TestTwoNodesSideBySideDoNotSeeEachOthersFlannel(t *testing.T) {
	a, b := play(t, "healthy"), play(t, "healthy")
	ca, _ := checkAt(t, a.Node.Path(), a.Root())
	cb, _ := checkAt(t, b.Node.Path(), b.Root())
	pa, pb := flanneldOf(ca), flanneldOf(cb)
	if pa == 0 || pb == 0 || pa == pb {
		t.Fatalf("flanneld is %d and %d", pa, pb)
	}
	for _, c := range []struct {
		checked
		other int
	}{{ca, pb}, {cb, pa}} {
		if strings.Contains(strings.Join(c.Flannel.Evidence, "\n"), strconv.Itoa(c.other)) {
			t.Errorf("the other's process is in %q", c.Flannel.Evidence)
		}
	}
}

func TestADamagedSubnetEnvIsFoundWithItsLine(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"torn":         {"FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.24", "/run/flannel/subnet.env:2"},
		"empty":        {"", "/run/flannel/subnet.env"},
		"foreign keys": {"FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nCOLOUR=red\n", "/run/flannel/subnet.env:3"},
		"host bits":    {"FLANNEL_NETWORK=10.244.7.7/16\nFLANNEL_SUBNET=10.244.1.1/24\n", "/run/flannel/subnet.env:1"},
	} {
		t.Run(name, func(t *testing.T) {
			n := labtest.New(t)
			n.Feed(rules4, "iptables-nft-restore")
			n.Flanneld("--ip-masq")
			n.Write("/run/flannel/subnet.env", c.text)
			got, _ := check(t, n)
			for _, f := range got.Findings {
				if f.ID == "config-damaged" && strings.Contains(f.Summary+strings.Join(f.Detail, "\n")+f.Object, c.want) {
					return
				}
			}
			t.Errorf("no finding names %s: %+v", c.want, got.Findings)
		})
	}
}
