package ctnl

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"flanwatch/conntrack"
	"flanwatch/watcher/lab/labtest"
)

func siteWanted() Wanted {
	t := conntrack.Topology{Own: []netip.Addr{netip.MustParseAddr("192.0.2.10")}}
	return Wanted{
		Networks: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")},
		Inside:   t.Inside(),
	}
}

func listenIn(t *testing.T, n *labtest.Namespace) *NewFlows {
	t.Helper()
	return openIn(t, n, func() (*NewFlows, error) { return Listen(siteWanted()) })
}

// flood sends one datagram from a port of a pod to each of so many ports outside.
func flood(t *testing.T, s *site, sport, first, count int) {
	t.Helper()
	err := s.pods[0].Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: sport}); err != nil {
			return err
		}
		for i := range count {
			to := &unix.SockaddrInet4{Port: first + i, Addr: [4]byte{192, 0, 2, 99}}
			if err := unix.Sendto(fd, []byte("x"), 0, to); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOf100000NewConnectionsAllThatAreBareAreHeardWithTheDefaultQueue(t *testing.T) {
	s := newSite(t)
	s.node.Must("iptables-nft -t nat -A POSTROUTING -p udp --sport 7 -j ACCEPT") // these stay bare
	s.node.Must("iptables-nft -t nat -A POSTROUTING -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE")
	s.outside.Must("iptables-nft -A INPUT -p udp -j DROP")
	n := listenIn(t, s.node)
	heard, lost, wrong := map[uint16]bool{}, 0, 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		var f conntrack.Flow
		for {
			switch err := n.Next(time.Time{}, &f); {
			case err == nil && f.Orig.SPort == 7 && f.Reply.Dst == f.Orig.Src && f.ID != 0:
				heard[f.Orig.DPort] = true
			case err == nil:
				wrong++
			case errors.Is(err, ErrLost):
				lost++
			default:
				return
			}
		}
	}()
	const each = 100
	for i := range 1000 {
		flood(t, s, 2000+i%2, 10000+i/2*each, each-1)
		flood(t, s, 7, 1000+i, 1)
	}
	time.Sleep(200 * time.Millisecond)
	if err := n.Wake(); err != nil {
		t.Fatal(err)
	}
	<-done
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	h, err := s.reader.Health()
	if err != nil {
		t.Fatal(err)
	}
	if len(heard) != 1000 || lost > 0 || wrong > 0 || h.Count.N < 100_000 {
		t.Errorf("heard of %d of 1000, %d losses, %d others; the table has %d entries", len(heard), lost, wrong, h.Count.N)
	}
}

func TestNobodyListensAfterClose(t *testing.T) {
	s := newSite(t)
	subscribed := func() bool {
		for line := range strings.Lines(s.node.Must("cat /proc/thread-self/net/netlink")) {
			fields := strings.Fields(line)
			if len(fields) > 3 && fields[1] == "12" && fields[3] != "00000000" {
				return true
			}
		}
		return false
	}
	if subscribed() {
		t.Fatal("somebody listens before")
	}
	n := listenIn(t, s.node)
	if !subscribed() {
		t.Error("the subscription is not seen")
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if subscribed() {
		t.Error("somebody listens after it")
	}
}

func TestNextEndsAtTheDeadlineAndWhenWoken(t *testing.T) {
	n := listenIn(t, newSite(t).node)
	defer n.Close()
	var f conntrack.Flow
	if err := n.Next(time.Now().Add(10*time.Millisecond), &f); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("at the deadline: %v", err)
	}
	if err := n.Wake(); err != nil {
		t.Fatal(err)
	}
	if err := n.Next(time.Time{}, &f); !errors.Is(err, ErrWoken) {
		t.Errorf("woken: %v", err)
	}
}

func TestTheFilterIsWithinTheKernelsLimits(t *testing.T) {
	w := siteWanted()
	for len(w.Inside) < 40 {
		w.Inside = append(w.Inside, netip.MustParsePrefix("fd00:1:2:3::1/128"))
	}
	for range 8 {
		w.Networks = append(w.Networks, netip.MustParsePrefix("fd00:1:2:3::/64"))
	}
	raw, err := bpf.Assemble(filterProgram(w))
	if err != nil || len(raw) > 4096 {
		t.Errorf("%d instructions, %v", len(raw), err)
	}
}

func TestAConnectionIsHeardOfExactlyIfItIsWrong(t *testing.T) {
	s := newSite(t)
	n := listenIn(t, s.node)
	defer n.Close()
	f := newFiller(t, s.node)
	entries := map[string]struct {
		e    entry
		want bool
	}{
		"bare":                         {entry{src: "10.244.1.5", dst: "192.0.2.80"}, true},
		"bare, through a service":      {entry{src: "10.244.1.5", dst: "10.96.0.1", dnat: "192.0.2.80"}, true},
		"bare, IPv6":                   {entry{src: "fd00:244::5", dst: "2001:db8::80"}, true},
		"masqueraded":                  {entry{src: "10.244.1.5", dst: "192.0.2.81", snat: "192.0.2.10"}, false},
		"masqueraded, IPv6":            {entry{src: "fd00:244::5", dst: "2001:db8::81", snat: "2001:db8::1"}, false},
		"pod to pod":                   {entry{src: "10.244.1.5", dst: "10.244.2.5"}, false},
		"pod to pod, IPv6":             {entry{src: "fd00:244::5", dst: "fd00:244:0:2::5"}, false},
		"pod to pod, translated":       {entry{src: "10.244.1.5", dst: "10.244.2.6", snat: "192.0.2.10"}, true},
		"pod to pod, translated, IPv6": {entry{src: "fd00:244::5", dst: "fd00:244:0:2::6", snat: "2001:db8::1"}, true},
		"pod to service":               {entry{src: "10.244.1.5", dst: "10.96.0.1", dnat: "10.244.2.7"}, false},
		"pod to the node":              {entry{src: "10.244.1.5", dst: "192.0.2.10"}, false},
		"pod to link-local":            {entry{src: "10.244.1.5", dst: "169.254.20.10"}, false},
		"node to outside":              {entry{src: "192.0.2.10", dst: "192.0.2.80"}, false},
		"outside to pod":               {entry{src: "192.0.2.80", dst: "10.244.1.5"}, false},
		"an outside with a pod's look": {entry{src: "10.245.1.5", dst: "192.0.2.80"}, false},
		"IPv6 with a pod's first word": {entry{src: "fd00:245::5", dst: "2001:db8::80"}, false},
	}
	port := 1000
	names := map[uint16]string{}
	for name, c := range entries {
		port++
		c.e.sport, c.e.dport = port, 80
		names[uint16(port)] = name
		f.put(c.e)
	}
	f.flush()
	heard := map[string]bool{}
	var flow conntrack.Flow
	for n.Next(time.Now().Add(200*time.Millisecond), &flow) == nil {
		heard[names[flow.Orig.SPort]] = true
	}
	for name, c := range entries {
		if heard[name] != c.want {
			t.Errorf("%s: heard %v, want %v", name, heard[name], c.want)
		}
	}
}
