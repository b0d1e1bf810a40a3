package lab

import (
	"context"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"flanwatch/flannel"

	"golang.org/x/sys/unix"
)

// flow is one kind of connection that the lab opens again and again.
type flow struct {
	from    *host
	proto   string // "tcp" or "udp"
	to      *host
	family  flannel.Family
	rate    float64 // connections a second, on average
	packets int     // datagrams, or kilobytes asked for
}

// flows touch every rule that a healthy node's traffic touches: pods to the outside, pods to a remote pod and back.
func (w *network) flows() []flow {
	v4, v6 := flannel.IPv4, flannel.IPv6
	return []flow{
		{w.podA, "tcp", w.outside, v4, 12, 6},
		{w.podB, "udp", w.outside, v4, 16, 2},
		{w.podA, "udp", w.remote, v4, 10, 3},
		{w.podB, "tcp", w.remote, v4, 6, 12},
		{w.remote, "tcp", w.podA, v4, 7, 8},
		{w.remote, "udp", w.podB, v4, 5, 2},
		{w.podA, "udp", w.outside, v6, 6, 2},
		{w.podB, "tcp", w.outside, v6, 4, 5},
		{w.podA, "tcp", w.remote, v6, 5, 6},
		{w.podB, "udp", w.remote, v6, 4, 2},
		{w.remote, "udp", w.podA, v6, 4, 2},
	}
}

const (
	echoPort = 8080
	patience = 800 * time.Millisecond // how long a client waits for an answer, which never comes while masquerading is off
	crowd    = 400                    // connections open at once, at most
)

// traffic is the lab's load.
type traffic struct {
	servers []io.Closer
	stop    context.CancelFunc
	done    sync.WaitGroup
	slots   chan struct{}
}

func startTraffic(w *network) (*traffic, error) {
	ctx, stop := context.WithCancel(context.Background())
	t := &traffic{stop: stop, slots: make(chan struct{}, crowd)}
	// A datagram is answered from the address it came to only by a socket of that address, and the outside host has two;
	// pods have one each, which can change.
	for _, s := range []struct {
		at   *host
		addr netip.Addr
	}{
		{w.outside, w.outside.at(flannel.IPv4)},
		{w.outside, w.outside.at(flannel.IPv6)},
		{w.remote, netip.IPv6Unspecified()},
		{w.podA, netip.IPv6Unspecified()},
		{w.podB, netip.IPv6Unspecified()},
	} {
		if err := t.serve(s.at, netip.AddrPortFrom(s.addr, echoPort)); err != nil {
			t.close()
			return nil, err
		}
	}
	for i, f := range w.flows() {
		t.done.Go(func() { t.run(ctx, f, float64(i)) })
	}
	return t, nil
}

func (t *traffic) close() {
	t.stop()
	for _, s := range t.servers {
		s.Close()
	}
	t.done.Wait()
}

// serve opens the echo servers of one address; that of no address serves both families.
func (t *traffic) serve(at *host, where netip.AddrPort) error {
	var stream *net.TCPListener
	var datagrams *net.UDPConn
	err := at.Do(func() (err error) {
		if stream, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(where)); err != nil {
			return err
		}
		t.servers = append(t.servers, stream)
		datagrams, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(where))
		return err
	})
	if err != nil {
		return err
	}
	t.servers = append(t.servers, datagrams)
	t.done.Go(func() { echoStreams(stream) })
	t.done.Go(func() { echoDatagrams(datagrams) })
	return nil
}

// echoStreams answers each byte asked with a kilobyte.
func echoStreams(l *net.TCPListener) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(patience)) //nolint:errcheck // a connection that cannot be bounded fails at once
			want := make([]byte, 64)
			n, _ := c.Read(want)
			c.Write(make([]byte, n<<10)) //nolint:errcheck // nobody is told of a lost answer
		}()
	}
}

func echoDatagrams(c *net.UDPConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		c.WriteToUDPAddrPort(buf[:n], from) //nolint:errcheck // the outside has no route to pods, that is the point
	}
}

// run opens connections of one flow at a rate that swells and ebbs around its mean.
func (t *traffic) run(ctx context.Context, f flow, phase float64) {
	const step = 50 * time.Millisecond
	tick := time.NewTicker(step)
	defer tick.Stop()
	start, due := time.Now(), 0.0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		swell := 1 + 0.3*math.Sin(time.Since(start).Seconds()/7+phase) + 0.3*(rand.Float64()-0.5)
		for due += f.rate * swell * step.Seconds(); due >= 1; due-- {
			t.open(ctx, f)
		}
	}
}

// open starts one connection, unless too many are open.
func (t *traffic) open(ctx context.Context, f flow) {
	select {
	case t.slots <- struct{}{}:
	default:
		return
	}
	c, err := dial(f)
	if err != nil {
		<-t.slots
		return
	}
	t.done.Go(func() {
		defer func() { <-t.slots }()
		defer context.AfterFunc(ctx, func() { c.Close() })()
		defer c.Close()
		converse(c, f)
	})
}

func converse(c *os.File, f flow) {
	c.SetDeadline(time.Now().Add(patience)) //nolint:errcheck // a connection that cannot be bounded fails at once
	if f.proto == "tcp" {
		c.Write(make([]byte, f.packets)) //nolint:errcheck // a connection without an answer ends at the deadline
		io.Copy(io.Discard, c)           //nolint:errcheck
		return
	}
	for range f.packets {
		c.Write(make([]byte, 120))                           //nolint:errcheck
		if _, err := c.Read(make([]byte, 200)); err != nil { // one datagram after the other, as a resolver asks
			return
		}
	}
}

// dial opens a socket in the host's namespace without waiting for the other side: the first write does that.
func dial(f flow) (*os.File, error) {
	to := netip.AddrPortFrom(f.to.at(f.family), echoPort)
	kind := unix.SOCK_STREAM
	if f.proto == "udp" {
		kind = unix.SOCK_DGRAM
	}
	domain, where := sockaddr(to)
	fd := -1
	err := f.from.Do(func() (err error) {
		fd, err = unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, where); err != nil && err != unix.EINPROGRESS {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.proto), nil
}

func sockaddr(a netip.AddrPort) (int, unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
