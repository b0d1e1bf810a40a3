package lab

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"flanwatch/flannel"
)

func TestMain(m *testing.M) {
	Child()
	os.Exit(m.Run())
}

func startScenario(t *testing.T, name string) *Lab {
	t.Helper()
	needRoot(t)
	s, err := LoadScenario(name)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Start(context.Background(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func TestHealthyNodeTranslatesWhatLeavesTheCluster(t *testing.T) {
	start := time.Now()
	l := startScenario(t, "healthy")
	t.Logf("up after %v", time.Since(start))
	w := l.network
	for _, tt := range []struct {
		name     string
		from, to *host
		addr     string
		want     string
	}{
		{"pod to outside, IPv4", w.podA, w.outside, outsideV4, nodeV4},
		{"pod to outside, IPv6", w.podA, w.outside, outsideV6, nodeV6},
		{"pod to remote pod, IPv4", w.podA, w.remote, remoteV4, podAV4},
		{"pod to remote pod, IPv6", w.podB, w.remote, remoteV6, podBV6},
		{"remote pod to pod, IPv4", w.remote, w.podB, podBV4, remoteV4},
		{"remote pod to pod, IPv6", w.remote, w.podA, podAV6, remoteV6},
	} {
		if got := seenFrom(t, tt.from, tt.to, tt.addr); got != tt.want {
			t.Errorf("%s: arrives from %q, want %q", tt.name, got, tt.want)
		}
	}
	time.Sleep(2 * time.Second)
	for _, tool := range []string{"iptables-nft-save", "ip6tables-nft-save"} {
		out, err := l.Node.Output(exec.Command(tool, "-c"))
		if err != nil {
			t.Error(err)
		}
		t.Log(out)
	}
	out, _ := l.Node.Output(exec.Command("sh", "-c", "nft list ruleset; conntrack -C; ls -laR "+hostRoot+"; ps axf | tail -15"))
	t.Log(out)
	_ = flannel.IPv4
}
