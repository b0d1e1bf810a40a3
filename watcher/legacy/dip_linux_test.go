package legacy_test

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/lab/labtest"
)

// loop holds rules that traffic over the loopback device passes. Only with a rule that translates is conntrack switched on,
// without which no rule of the table is looked at.
const loop = `*nat
:FLANNEL-POSTRTG - [0:0]
:other - [0:0]
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -d NETWORK -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -d NETWORK -m comment --comment "flanneld masq" -j MASQUERADE
COMMIT
`

// flows opens sockets in the namespace: the first datagram of each will be a new flow.
func flows(t *testing.T, n *labtest.Namespace, to string, count int) []net.Conn {
	t.Helper()
	var conns []net.Conn
	err := n.Do(func() error {
		for range count {
			c, err := net.Dial("udp", to)
			if err != nil {
				return err
			}
			conns = append(conns, c)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range conns {
			_ = c.Close()
		}
	})
	return conns
}

// talk sends one datagram on each socket, until stop is set, and tells on how many.
func talk(conns []net.Conn, stop *atomic.Bool) int {
	for i, c := range conns {
		if stop.Load() {
			return i
		}
		_, _ = c.Write([]byte("hello")) // nobody listens, and nobody has to
		time.Sleep(2 * time.Millisecond)
	}
	return len(conns)
}

// changes makes a number of transactions with twenty programs over some seconds, so that falls come again and again.
func changes(n *labtest.Namespace, tool string, times int) error {
	const programs = 20
	for range programs {
		if err := change(n, tool, times/programs); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

// change makes a number of transactions on another chain of the table with one program.
func change(n *labtest.Namespace, tool string, times int) error {
	cmd := exec.Command(tool, "--noflush")
	cmd.Stdin = strings.NewReader(strings.Repeat("*nat\n-A other -j RETURN\nCOMMIT\n*nat\n-D other -j RETURN\nCOMMIT\n", times/2))
	out, err := n.Output(cmd)
	if err != nil {
		return fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
	}
	return nil
}

// TestUnrelatedChangesDisturbNoCounter makes 1,000 changes to another chain of the table while flows pass Flannel's.
func TestUnrelatedChangesDisturbNoCounter(t *testing.T) {
	labtest.RequireTools(t, "iptables-legacy-restore", "ip6tables-legacy-restore")
	targets := map[flannel.Family]struct{ network, to string }{
		flannel.IPv4: {"127.0.0.0/8", "127.0.0.1:9"},
		flannel.IPv6: {"::1/128", "[::1]:9"},
	}
	for _, tool := range both {
		t.Run(tool.iptables, func(t *testing.T) {
			n := labtest.New(t)
			n.Must("ip link set lo up")
			n.Feed(strings.ReplaceAll(loop, "NETWORK", targets[tool.family].network), tool.iptables+"-restore")
			if tool.family == flannel.IPv4 {
				n.Feed(services(1000), tool.iptables+"-restore", "--noflush") // falls last longer in a large table
			}
			r := open(t, n)
			chain := id(tool.family, "nat", "FLANNEL-POSTRTG")

			conns := flows(t, n, targets[tool.family].to, 5000)
			var stop atomic.Bool
			sent := make(chan int)
			changed := make(chan error)
			go func() { sent <- talk(conns, &stop) }()
			go func() { changed <- changes(n, tool.iptables+"-restore", 1000) }()

			counter := read(t, r).Chain(chain).Entries[1].Counter
			var hold incident.Hold
			hold.Start(counter)
			total, last, falls, reads := counter, counter, 0, 0
			sum := func() {
				e := read(t, r).Chain(chain).Entries[1]
				g := hold.Next(e.Counter, now())
				if g.Reset {
					t.Errorf("read %d: counters restarted at %+v", reads, e.Counter)
				}
				if g.Delta.Packets > 1<<32 {
					t.Errorf("read %d: negative growth", reads)
				}
				total.Packets += g.Delta.Packets
				total.Bytes += g.Delta.Bytes
				if e.Counter.Packets < last.Packets {
					falls++
				}
				last = e.Counter
				reads++
			}
			for done := false; !done; {
				select {
				case err := <-changed:
					done = true
					if err != nil {
						t.Error(err)
					}
				case <-time.After(r.Interval(2 * time.Millisecond)):
				}
				sum()
			}
			stop.Store(true)
			flows := <-sent
			sum()
			compare(t, "at the end", counted(read(t, r).Chain(chain)), saved(n, tool.iptables, "nat", "FLANNEL-POSTRTG"))
			if int(total.Packets) != flows || last.Packets != total.Packets {
				t.Errorf("counted %d packets, the kernel %d, sent %d", total.Packets, last.Packets, flows)
			}
			t.Logf("%d reads, %d falls, %d flows", reads, falls, flows)
		})
	}
}
