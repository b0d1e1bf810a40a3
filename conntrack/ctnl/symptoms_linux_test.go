package ctnl

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/lab/labtest"
)

// site is a node between pods and an outside host.
type site struct {
	node, outside *labtest.Namespace
	pods          []*labtest.Namespace
	reader        *Reader
}

// newSite makes a node that tracks connections, with two pods, 10.244.1.5 and 10.244.1.6, and 192.0.2.99 outside.
func newSite(t testing.TB) *site {
	t.Helper()
	node, reader := tracked(t)
	s := &site{node: node, outside: labtest.New(t), reader: reader}
	node.Must("ip link add cni0 type bridge")
	node.Must("ip link set cni0 up")
	cable(t, node, "up0", s.outside, "eth0")
	node.Shell(`
		ip addr add 10.244.1.1/24 dev cni0
		ip addr add 192.0.2.10/24 dev up0
		echo 1 > /proc/sys/net/ipv4/ip_forward`)
	s.outside.Must("ip addr add 192.0.2.99/24 dev eth0")
	for i := range 2 {
		pod := labtest.New(t)
		cable(t, node, fmt.Sprintf("vpod%d", i), pod, "eth0")
		node.Must(fmt.Sprintf("ip link set vpod%d master cni0", i))
		pod.Shell(fmt.Sprintf(`ip addr add 10.244.1.%d/24 dev eth0; ip route add default via 10.244.1.1`, 5+i))
		s.pods = append(s.pods, pod)
	}
	return s
}

func cable(t testing.TB, a *labtest.Namespace, port string, b *labtest.Namespace, end string) {
	t.Helper()
	sleep := exec.Command("sleep", "600") // a process for ip to find the namespace by
	if err := b.Start(sleep); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	}()
	a.Must("ip link add " + port + " type veth peer name " + end + " netns " + strconv.Itoa(sleep.Process.Pid))
	a.Must("ip link set " + port + " up")
	b.Must("ip link set " + end + " up")
}

// during gives what the counters of the node did while f ran.
func (s *site) during(t testing.TB, f func()) (conntrack.Health, conntrack.Trend) {
	t.Helper()
	read := func(at time.Duration) flannel.Reading[conntrack.Health] {
		h, err := s.reader.Health()
		if err != nil {
			t.Fatal(err)
		}
		return flannel.Know(h, h.Source, flannel.Time{Boot: at, Session: "test"})
	}
	before := read(time.Second)
	f()
	after := read(2 * time.Second)
	return after.Value, conntrack.Between(before, after)
}

func wantSymptoms(t *testing.T, h conntrack.Health, trend conntrack.Trend, want ...conntrack.Symptom) {
	t.Helper()
	if got := conntrack.Symptoms(h, trend); !slices.Equal(got, want) {
		t.Errorf("symptoms %v, want %v; health %+v, trend %+v", got, want, h, trend)
	}
}

// bursts sends datagrams from a pod to the outside, each from a port of its own.
func (s *site) bursts(t testing.TB, n int) {
	t.Helper()
	err := s.pods[0].Do(func() error {
		for i := range n {
			c, err := net.DialUDP("udp", &net.UDPAddr{Port: 30000 + i}, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 99), Port: 4000})
			if err != nil {
				return err
			}
			_, _ = c.Write([]byte("x"))
			c.Close()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAFullTableIsToldFromOneThatEvicts(t *testing.T) {
	if testing.Short() {
		t.Skip("fills the table twice")
	}
	for name, c := range map[string]struct {
		assured bool
		want    conntrack.Symptom
	}{
		"full of entries that may not be evicted": {true, conntrack.Full},
		"full of entries that may be":             {false, conntrack.Evicting},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			h, err := s.reader.Health()
			if err != nil {
				t.Fatal(err)
			}
			if h.Max.N > 1<<19 {
				t.Skipf("a table of %d entries takes too long to fill", h.Max.N)
			}
			f := newFiller(t, s.node)
			f.want = int(unix.ENOMEM)
			src, dst := netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("192.0.2.99")
			for i := range int(h.Max.N) - int(h.Count.N) {
				f.add(src, dst, entry{sport: 1024 + i%60000, dport: 10000 + i/60000, assured: c.assured, unreplied: !c.assured})
			}
			f.flush()
			h, trend := s.during(t, func() { s.bursts(t, 50) })
			wantSymptoms(t, h, trend, c.want)
		})
	}
}

// lockstep runs the same rounds on two threads, each round beginning on both at the same instant. On a busy machine a round
// can have to wait for both to get a processor, so it ends after a while at the latest.
func lockstep(rounds int, do func(side, round int)) {
	const patience = 3 * time.Second
	var at [2]atomic.Int64
	var both sync.WaitGroup
	end := time.Now().Add(patience)
	for side := range 2 {
		both.Go(func() {
			runtime.LockOSThread() // for good: a thread with an affinity of its own must not be used again
			var cpu unix.CPUSet
			cpu.Set(side)
			_ = unix.SchedSetaffinity(0, &cpu)
			for i := range rounds {
				at[side].Store(int64(i + 1))
				for spins := 1; at[1-side].Load() < int64(i+1); spins++ {
					if spins%10000 == 0 && time.Now().After(end) {
						return
					}
				}
				do(side, i)
			}
		})
	}
	both.Wait()
}

func TestTheRaceForATranslatedPortIsNamedAndGoneWithRandomPorts(t *testing.T) {
	for _, random := range []bool{false, true} {
		t.Run(fmt.Sprintf("random-fully %v", random), func(t *testing.T) {
			s := newSite(t)
			rule := "iptables-nft -t nat -A POSTROUTING -s 10.244.0.0/16 ! -d 10.244.0.0/16 -j MASQUERADE"
			if random {
				rule += " --random-fully"
			}
			s.node.Must(rule)
			s.outside.Must("iptables-nft -A INPUT -p tcp --dport 8080 -j DROP")
			h, trend := s.during(t, func() { s.race(t, 900) })
			for burst := 0; !random && burst < 20 && trend.InsertFailed.N < 3; burst++ {
				h, trend = s.during(t, func() { s.race(t, 900) }) // on a busy machine few rounds are simultaneous
			}
			if random {
				wantSymptoms(t, h, trend)
				return
			}
			if runtime.NumCPU() < 2 {
				t.Skip("a race needs two processors")
			}
			wantSymptoms(t, h, trend, conntrack.PortRace)
		})
	}
}

// race makes both pods connect to one place from the same port at the same instant, again and again.
func (s *site) race(t testing.TB, rounds int) {
	t.Helper()
	s.node.Must("conntrack -F")
	sockets := [2][]int{make([]int, rounds), make([]int, rounds)}
	for side, pod := range s.pods {
		if err := pod.Do(func() error { return openSockets(sockets[side]) }); err != nil {
			t.Fatal(err)
		}
	}
	lockstep(rounds, func(side, i int) {
		_ = unix.Connect(sockets[side][i], &unix.SockaddrInet4{Port: 8080, Addr: [4]byte{192, 0, 2, 99}})
	})
	for side := range sockets {
		for _, fd := range sockets[side] {
			_ = unix.Close(fd)
		}
	}
}

// openSockets makes connections that are about to begin, from ports 20000 on.
func openSockets(fds []int) error {
	for i := range fds {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 20000 + i}); err != nil {
			return err
		}
		fds[i] = fd
	}
	return nil
}

func TestAClashThatEndsWellIsHarmless(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("a race needs two processors")
	}
	s := newSite(t)
	const rounds = 400
	var h conntrack.Health
	var trend conntrack.Trend
	for burst := 0; burst < 20 && trend.ClashResolve.N == 0; burst++ {
		fds := make([]int, rounds)
		if err := s.pods[0].Do(func() error { return openDatagrams(fds) }); err != nil {
			t.Fatal(err)
		}
		h, trend = s.during(t, func() {
			lockstep(rounds, func(_, i int) { _, _ = unix.Write(fds[i], []byte("x")) }) // as a resolver asks for A and AAAA
		})
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
	wantSymptoms(t, h, trend, conntrack.Clash)
}

// openDatagrams makes sockets that are about to send to a resolver outside.
func openDatagrams(fds []int) error {
	for i := range fds {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 53, Addr: [4]byte{192, 0, 2, 99}}); err != nil {
			return err
		}
		fds[i] = fd
	}
	return nil
}
