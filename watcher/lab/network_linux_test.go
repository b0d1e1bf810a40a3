package lab

import (
	"net"
	"os"
	"os/exec"
	"testing"
	"time"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		lacks(t, "needs root")
	}
}

func needTool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		lacks(t, "needs the program "+name)
	}
}

// lacks skips the test on a developer's machine, and fails it in CI, which must have everything.
func lacks(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}

func testNetwork(t *testing.T) *network {
	t.Helper()
	needRoot(t)
	w, err := newNetwork()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	return w
}

// seenFrom sends datagrams until one arrives, and gives the source address with which it does. The first ones can be lost:
// the kernel opens the ports of a new bridge in its own time.
func seenFrom(t *testing.T, from, to *host, addr string) string {
	t.Helper()
	where := net.JoinHostPort(addr, "7000")
	var server net.PacketConn
	if err := to.Do(func() (err error) {
		server, err = net.ListenPacket("udp", where)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for range 30 {
		if err := from.Do(func() error { return send(where) }); err != nil {
			t.Fatal(err)
		}
		server.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, source, err := server.ReadFrom(make([]byte, 9)); err == nil {
			host, _, _ := net.SplitHostPort(source.String())
			return host
		}
	}
	return ""
}

func send(where string) error {
	c, err := net.Dial("udp", where)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte("x"))
	return err
}

// arrival says from which address a packet should arrive.
type arrival struct {
	name     string
	from, to *host
	addr     string
	want     string
}

func expectSources(t *testing.T, list []arrival) {
	t.Helper()
	for _, a := range list {
		if got := seenFrom(t, a.from, a.to, a.addr); got != a.want {
			t.Errorf("%s: arrives from %q, want %q", a.name, got, a.want)
		}
	}
}

func TestWithoutRulesPacketsKeepTheirAddress(t *testing.T) {
	w := testNetwork(t)
	expectSources(t, []arrival{
		{"pod to outside, IPv4", w.podA, w.outside, outsideV4, podAV4},
		{"pod to outside, IPv6", w.podA, w.outside, outsideV6, podAV6},
		{"pod to remote pod, IPv4", w.podA, w.remote, remoteV4, podAV4},
		{"pod to remote pod, IPv6", w.podB, w.remote, remoteV6, podBV6},
		{"remote pod to pod, IPv4", w.remote, w.podB, podBV4, remoteV4},
		{"remote pod to pod, IPv6", w.remote, w.podA, podAV6, remoteV6},
		{"node to outside", w.node, w.outside, outsideV4, nodeV4},
	})
}
