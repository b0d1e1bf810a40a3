package path_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/flannel/path"
	"flanwatch/watcher/lab/labtest"
	"flanwatch/watcher/reach"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// world is a node with pods on one side, other nodes' pods and the outside on the other. Neighbours are fixed, so that no
// rule can keep them from being found.
//
//	[inside] pod ── cni0    [node] flannel.1 ── tun [beyond]
//	         fpod ── cali0         eth0 ────── lan
type world struct {
	t                    testing.TB
	inside, node, beyond *labtest.Namespace
	facts                path.Facts
	receivers            []receiver
	reader               reach.Reader
	next                 uint16 // source port of the next packet: every packet opens a connection of its own
}

// receiver is a socket that takes every packet to a port in a namespace.
type receiver struct {
	fd    int
	where string
}

var destinationPorts = []uint16{443, 7000}

const wiring = `
for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done
echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
ip link set lo up
link() { # name peer namespace
	ip link add $1 type veth peer name $2
	ip link set $2 netns $3
	echo 0 > /proc/sys/net/ipv4/conf/$1/rp_filter
	ip link set $1 up
}
link cni0 pod INSIDE; link cali0 fpod INSIDE; link flannel.1 tun BEYOND; link eth0 lan BEYOND
add() { ip addr add $1 dev $2 $3; }
add 10.244.1.1/24 cni0; add fd00:244:0:1::1/64 cni0 nodad; add 169.254.1.1/32 cali0; add fe80::1:1/64 cali0 nodad
add 10.244.1.0/32 flannel.1; add fd00:244:0:1::/128 flannel.1 nodad; add 192.0.2.10/24 eth0; add 2001:db8::10/64 eth0 nodad
ip route add 10.77.0.0/24 dev cali0; ip -6 route add fd00:77::/64 dev cali0
ip route add 10.244.2.0/24 dev flannel.1; ip -6 route add fd00:244:0:2::/64 dev flannel.1
ip route add 10.244.3.0/24 dev flannel.1; ip -6 route add fd00:244:0:3::/64 dev flannel.1
ip route add default dev eth0; ip -6 route add default dev eth0`

// End hosts answer for every address of their side and have the whole world on one link.
const ends = `
for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done
ip link set lo up`

func newWorld(t testing.TB) *world {
	labtest.RequireTools(t, "ip", "iptables-nft-restore", "ip6tables-nft-restore", "iptables-legacy-restore",
		"ip6tables-legacy-restore", "nft", "ipset")
	w := &world{t: t, inside: labtest.New(t), node: labtest.New(t), beyond: labtest.New(t), next: 20000}
	for name, list := range map[string][]netip.Prefix{"peers4 hash:net": peers4, "peers6 hash:net family inet6": peers6} {
		w.node.Must("ipset create " + name)
		for _, p := range list {
			w.node.Must("ipset add " + strings.Fields(name)[0] + " " + p.String())
		}
	}
	w.node.Shell(strings.NewReplacer("INSIDE", w.inside.Path(), "BEYOND", w.beyond.Path()).Replace(wiring))
	w.end(w.inside, []link{
		{"pod", "cni0", []string{"10.244.1.2", "fd00:244:0:1::2"}},
		{"fpod", "cali0", []string{"10.77.0.2", "fd00:77::2"}},
	})
	w.end(w.beyond, []link{
		{"tun", "flannel.1", []string{"10.244.2.2", "fd00:244:0:2::2", "10.244.3.2", "fd00:244:0:3::2"}},
		{"lan", "eth0", []string{"192.0.2.99", "2001:db8::99"}},
	})
	w.facts = path.Facts{
		Subnets: prefixes("10.244.1.0/24", "fd00:244:0:1::/64"), Foreign: prefixes("10.77.0.0/24", "fd00:77::/64"),
		Remote:  prefixes("10.244.2.0/24", "fd00:244:0:2::/64", "10.244.3.0/24", "fd00:244:0:3::/64"),
		Outside: []netip.Addr{netip.MustParseAddr("192.0.2.99"), netip.MustParseAddr("2001:db8::99")},
		Bridge:  "cni0", ForeignBridge: "cali0", Tunnel: "flannel.1", Uplink: "eth0",
	}
	w.facts.Addresses = append(w.facts.Addresses, []path.Address{
		{Interface: "cni0", Addr: netip.MustParseAddr("10.244.1.1")},
		{Interface: "cni0", Addr: netip.MustParseAddr("fd00:244:0:1::1")},
		{Interface: "cali0", Addr: netip.MustParseAddr("169.254.1.1")},
		{Interface: "cali0", Addr: netip.MustParseAddr("fe80::1:1")},
		{Interface: "flannel.1", Addr: netip.MustParseAddr("10.244.1.0")},
		{Interface: "flannel.1", Addr: netip.MustParseAddr("fd00:244:0:1::")},
		{Interface: "eth0", Addr: netip.MustParseAddr("192.0.2.10")},
		{Interface: "eth0", Addr: netip.MustParseAddr("2001:db8::10")},
	}...)
	for where, ns := range map[string]*labtest.Namespace{"inside": w.inside, "node": w.node, "beyond": w.beyond} {
		for _, port := range destinationPorts {
			w.receive(ns, where, port)
		}
	}
	return w
}

type link struct {
	name, peer string
	addresses  []string
}

// end sets up the far end of links, and what the node knows of their addresses.
func (w *world) end(ns *labtest.Namespace, links []link) {
	w.t.Helper()
	script := ends
	for i, l := range links {
		mac := hardware(w.node, l.peer)
		script += fmt.Sprintf("\nip link set %s up; echo 0 > /proc/sys/net/ipv4/conf/%[1]s/rp_filter", l.name)
		for _, a := range l.addresses {
			length := netip.MustParseAddr(a).BitLen()
			script += fmt.Sprintf("\nip addr add %s/%d dev %s %s", a, length, l.name, map[bool]string{true: "nodad"}[length == 128])
		}
		script += fmt.Sprintf("\nip neigh replace 169.254.9.9 lladdr %s dev %s nud permanent", mac, l.name)
		script += fmt.Sprintf("\nip neigh replace fe80::9 lladdr %s dev %s nud permanent", mac, l.name)
		script += fmt.Sprintf("\nip route add default via 169.254.9.9 dev %s onlink metric %d", l.name, i+1)
		script += fmt.Sprintf("\nip -6 route add default via fe80::9 dev %s metric %d", l.name, i+1)
	}
	ns.Shell(script)
	for _, l := range links {
		mac := hardware(ns, l.name)
		for _, a := range l.addresses {
			w.node.Must(fmt.Sprintf("ip neigh replace %s lladdr %s dev %s nud permanent", a, mac, l.peer))
		}
	}
}

func hardware(ns *labtest.Namespace, device string) string {
	return strings.Fields(ns.Must("ip -br link show dev " + device))[2]
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func (w *world) receive(ns *labtest.Namespace, where string, port uint16) {
	w.t.Helper()
	err := ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		w.receivers = append(w.receivers, receiver{fd, where})
		return unix.Bind(fd, &unix.SockaddrInet6{Port: int(port)})
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) close() {
	if err := w.reader.Close(); err != nil {
		w.t.Error(err)
	}
	for _, r := range w.receivers {
		_ = unix.Close(r.fd)
	}
}

// arrival is a packet that came.
type arrival struct {
	where  string
	source netip.Addr
}

// send sends a packet that carries a number.
func (w *world) send(p path.Packet, number uint32) {
	w.t.Helper()
	ns := w.node
	switch p.In {
	case "cni0", "cali0":
		ns = w.inside
	case "flannel.1", "eth0":
		ns = w.beyond
	}
	err := ns.Do(func() error {
		fd, err := unix.Socket(map[flannel.Family]int{flannel.IPv4: unix.AF_INET, flannel.IPv6: unix.AF_INET6}[p.Family],
			unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		device := map[string]string{"cni0": "pod", "cali0": "fpod", "flannel.1": "tun", "eth0": "lan"}[p.In]
		if device != "" {
			if err := unix.BindToDevice(fd, device); err != nil {
				return err
			}
		}
		if err := unix.Bind(fd, address(p.Source, p.SourcePort)); err != nil {
			return fmt.Errorf("bind %v: %w", p.Source, err)
		}
		err = unix.Sendto(fd, binary.BigEndian.AppendUint32(nil, number), 0, address(p.Destination, p.DestinationPort))
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
			return nil // a rule drops the node's own packet at once
		}
		return err
	})
	if err != nil {
		w.t.Fatalf("send %+v: %v", p, err)
	}
}

func address(a netip.Addr, port uint16) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: int(port), Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Port: int(port), Addr: a.As16()}
}

// collect takes what has arrived by packet number.
func (w *world) collect(into map[uint32]arrival) {
	var buf [64]byte
	for _, r := range w.receivers {
		for {
			n, from, err := unix.Recvfrom(r.fd, buf[:], 0)
			if err != nil {
				break
			}
			if a, ok := from.(*unix.SockaddrInet6); ok && n == 4 {
				into[binary.BigEndian.Uint32(buf[:])] = arrival{r.where, netip.AddrFrom16(a.Addr).Unmap()}
			}
		}
	}
}

// packets gives the typical packets as UDP, with ports of their own.
func (w *world) packets(r *rand.Rand) []path.Packet {
	list := w.facts.Packets()
	for i := range list {
		p := &list[i]
		p.Protocol, p.SourcePort, p.DestinationPort = "udp", w.next, destinationPorts[r.IntN(2)]
		if w.next++; w.next >= 60000 {
			w.next = 20000
		}
	}
	return list
}

func TestVerdictsAreWhatReceiversSee(t *testing.T) {
	seeds := 200
	if s := os.Getenv("FLANWATCH_EVALUATE_SEEDS"); s != "" {
		var err error
		if seeds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	first := uint64(1)
	if s := os.Getenv("FLANWATCH_EVALUATE_FIRST"); s != "" {
		var err error
		if first, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t)
	defer w.close()
	start := time.Now()
	counts := map[path.Kind]int{}
	for seed := first; seed < first+uint64(seeds); seed++ {
		w.try(seed, counts)
		if t.Failed() && os.Getenv("GOON") == "" {
			t.Fatalf("seed %d; run it alone with FLANWATCH_EVALUATE_FIRST=%[1]d FLANWATCH_EVALUATE_SEEDS=1", seed)
		}
	}
	all := 0
	for _, n := range counts {
		all += n
	}
	t.Logf("seeds %d to %d: %d verdicts %v in %v", first, first+uint64(seeds)-1, all, counts, time.Since(start).Round(time.Millisecond))
	if counts[path.May]*100 >= 15*all && seeds > 20 {
		t.Errorf("%d of %d verdicts are may", counts[path.May], all)
	}
}

// try loads one generated rule set, sends a packet on each path and compares.
func (w *world) try(seed uint64, counts map[path.Kind]int) {
	w.t.Helper()
	r := rand.New(rand.NewPCG(seed, 0))
	g := generate(r)
	w.load(g)
	written, comparable := g.tables(w.t)
	values := path.New(written, w.facts)
	arrived := map[uint32]arrival{}
	packets := w.packets(r)
	read := w.read(packets)
	for i, p := range packets {
		w.send(p, uint32(seed)<<8|uint32(i))
	}
	w.collect(arrived)
	for i, p := range packets {
		v := read[i]
		counts[v.Kind]++
		if u := values.Packet(p); comparable && u.Kind != v.Kind && u.Kind != path.May && v.Kind != path.May {
			w.t.Errorf("seed %d, %s %s: %s by the rules as written, %s by those read\n%s\nread\n%s\n%s", seed, p.Path, p.Family, u.Kind, v.Kind,
				trail(u), trail(v), g)
		}
		number := uint32(seed)<<8 | uint32(i)
		if complaint(v, arrived, number) != "" {
			time.Sleep(50 * time.Millisecond) // it may be late
			w.collect(arrived)
		}
		if c := complaint(v, arrived, number); c != "" {
			w.t.Errorf("seed %d, %s %s: %s\n%+v\nby %+v\n%s\n%s", seed, p.Path, p.Family, c, p, v.By, trail(v), g)
		}
	}
}

// read reads the rules back from the kernel, as far as the packets come, and evaluates those.
func (w *world) read(packets []path.Packet) (verdicts []path.Verdict) {
	w.t.Helper()
	err := w.node.Do(func() error {
		_, err := w.reader.Read(func(t path.Tables) ([]flannel.ChainID, []path.SetID) {
			e := path.New(t, w.facts)
			verdicts = verdicts[:0]
			for _, p := range packets {
				verdicts = append(verdicts, e.Packet(p))
			}
			return e.Wanted()
		}, func() bool { return false })
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return verdicts
}

func trail(v path.Verdict) string {
	var b strings.Builder
	for _, s := range v.Trail {
		fmt.Fprintf(&b, "  %-11s %v %s %s %d: %s sure=%t %v\n", s.Hook, s.By.Backend, s.By.Table, s.By.Chain, s.By.Position, s.By.Text, s.Sure, s.Unknown)
	}
	return b.String()
}

// whereIs tells who has an address.
func whereIs(a netip.Addr) string {
	text := a.String()
	for _, p := range []string{"10.244.1.2", "fd00:244:0:1::2", "10.77.0.", "fd00:77:"} {
		if strings.HasPrefix(text, p) {
			return "inside"
		}
	}
	switch text {
	case "192.0.2.10", "2001:db8::10", "10.244.1.0", "10.244.1.1", "fd00:244:0:1::", "fd00:244:0:1::1":
		return "node"
	case "192.0.2.77", "10.244.9.9", "2001:db8::77", "fd00:244:0:9::9":
		return "nowhere"
	}
	return "beyond"
}

// complaint says in what a verdict differs from what was seen.
func complaint(v path.Verdict, arrived map[uint32]arrival, number uint32) string {
	got, came := arrived[number]
	if v.Kind == path.May {
		return ""
	}
	where := whereIs(v.Destination)
	if v.Local {
		where = "node"
	}
	if v.Source.IsValid() && !came && v.Kind != path.Dropped && whereIs(v.Source) == where {
		return "" // sent back to where it came from, which takes no packet from its own address
	}
	if came != (v.Kind != path.Dropped) {
		return fmt.Sprintf("verdict %s, but arrived is %t (%v)", v.Kind, came, got)
	}
	if !came {
		return ""
	}
	switch {
	case got.where != where:
		return fmt.Sprintf("arrived %s, not %s", got.where, where)
	case v.Source.IsValid() && got.source != v.Source:
		return fmt.Sprintf("verdict %s with source %v, but the receiver saw %v", v.Kind, v.Source, got.source)
	case v.Kind == path.Unchanged && got.source != v.Packet.Source:
		return fmt.Sprintf("verdict %s, but the receiver saw %v", v.Kind, got.source)
	}
	return ""
}
