package apply

import (
	"context"
	"maps"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/remediate"
	"flanwatch/watcher/lab/labtest"
)

// full asks for the counts and limits that a shared machine is spared.
var full = os.Getenv("FLANWATCH_FULL") != ""

// inPlace are the broken states in which connections are still translated, and must be while the rules are put right.
var inPlace = []string{"out of order", "two thousand copies", "with and without random", "jump thrice", "of another subnet", "the first missing"}

// perSecond is how many new connections are opened.
const perSecond = 1500

// pod is a namespace behind the node that opens connections to the outside all the time.
type pod struct {
	*node
	sent atomic.Int64
}

// newPod joins a pod to a node, and counts at the node's way out, behind all translation, what still has a pod's address.
func newPod(t *testing.T, n *node) *pod {
	p, inside := &pod{node: n}, labtest.New(t)
	hold := exec.Command("sleep", "600")
	if err := inside.Start(hold); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		hold.Process.Kill() //nolint:errcheck // it may be gone
		hold.Wait()         //nolint:errcheck // it was killed
	})
	n.Must("ip link add vpod type veth peer name eth0 netns " + strconv.Itoa(hold.Process.Pid))
	n.Shell(`ip link set lo up; ip link add up0 type bridge; for d in up0 vpod; do ip link set $d up; done
		ip addr add 10.244.1.1/24 dev vpod; ip addr add 192.0.2.1/24 dev up0; ip route add 198.51.100.0/24 via 192.0.2.2 dev up0
		ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:01 dev up0; echo 1 > /proc/sys/net/ipv4/ip_forward`)
	inside.Shell(`ip addr add 10.244.1.5/24 dev eth0; ip link set eth0 up; ip route add default via 10.244.1.1`)
	n.Feed(`table ip probe {
	chain post {
		type filter hook postrouting priority 300
		oif "up0" ip saddr 10.244.0.0/16 counter
		oif "up0" counter
	}
}
`, "nft", "-f", "-")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- inside.Do(func() error {
			c, err := net.ListenPacket("udp4", ":0")
			if err != nil {
				return err
			}
			defer c.Close()
			for begun := time.Now(); ctx.Err() == nil; time.Sleep(time.Millisecond) {
				for due := int64(time.Since(begun).Seconds() * perSecond); p.sent.Load() < due; {
					i := int(p.sent.Add(1)) // another place to go to, so a new connection
					to := net.UDPAddr{IP: net.IPv4(198, 51, 100, byte(1+i%250)), Port: 1000 + i/250}
					if _, err := c.WriteTo([]byte("x"), &to); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return p
}

var packets = regexp.MustCompile(`counter packets (\d+)`)

// left counts connections that left, and those of them that left with the pod's address.
func (p *pod) left() (all, untranslated int) {
	p.t.Helper()
	found := packets.FindAllStringSubmatch(p.Must("nft list chain ip probe post"), -1)
	untranslated, _ = strconv.Atoi(found[0][1])
	all, _ = strconv.Atoi(found[1][1])
	return all, untranslated
}

func TestConnectionsAreTranslatedWhileRulesArePutRight(t *testing.T) {
	for _, b := range []flannel.Backend{flannel.IptablesNft, flannel.IptablesLegacy} {
		t.Run(b.String(), func(t *testing.T) {
			n := newNode(t)
			n.live = true
			n.healthy(b)
			prog := remediate.Program(b, flannel.IPv4)
			start := n.Shell(prog + "-save 2>/dev/null | grep -v '^[#:]'")
			p := newPod(t, n)
			begun := time.Now()
			for _, name := range slices.Sorted(maps.Keys(broken)) {
				if !full && b == flannel.IptablesLegacy && !slices.Contains(inPlace, name) {
					continue
				}
				_, before := p.left()
				n.Shell(strings.ReplaceAll(broken[name], "PROG", prog))
				n.must(reapply)
				time.Sleep(20 * time.Millisecond) // what was on its way has left
				_, repaired := p.left()
				if slices.Contains(inPlace, name) && repaired != before {
					t.Errorf("%s: %d connections left untranslated", name, repaired-before)
				}
				time.Sleep(200 * time.Millisecond)
				if _, after := p.left(); after != repaired {
					t.Errorf("%s: %d connections left untranslated after the repair", name, after-repaired)
				}
				wantSame(t, name, lines(n.Shell(prog+"-save 2>/dev/null | grep -v '^[#:]'")), lines(start))
			}
			rate := float64(p.sent.Load()) / time.Since(begun).Seconds()
			all, untranslated := p.left()
			t.Logf("%d connections, %.0f a second, %d of them untranslated while rules were missing", all, rate, untranslated)
			if all == 0 || full && rate < 1000 {
				t.Errorf("%d connections left, %.0f a second", all, rate)
			}
		})
	}
}
