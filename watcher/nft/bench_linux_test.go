package nft

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/watcher/lab/labtest"
)

// beside is a node with a number of other rules in its nat table.
type beside struct {
	rules  int
	node   *labtest.Namespace
	reader *Reader
	floor  *socket
}

func newBeside(b *testing.B, rules int) beside {
	n := newNode(b)
	if rules >= 5 {
		n.Feed(kubeRules(rules, "A"), "iptables-nft-restore", "--noflush")
	}
	s := beside{rules: rules, node: n, reader: openIn(b, n), floor: openIn(b, n).socket}
	mustRead(b, s.reader)
	return s
}

// methods are ways to get the counters of FLANNEL-POSTRTG, and how often each is tried between two looks at the clock.
func (s beside) methods(b *testing.B) map[string]method {
	c, shown := &s.reader.nft.chains[0], s.reader.nft.rules.Chains[0].Entries
	if c.id != postrtg || len(shown) != 6 {
		b.Fatalf("%s with %d rules", c.id, len(shown))
	}
	run := func(name string, args ...string) func() {
		return func() {
			if _, err := s.node.Run(name, args...); err != nil {
				b.Error(err)
			}
		}
	}
	return map[string]method{
		"dump": {500, func() { dump(b, s.floor, c.getRules) }},
		"dumps": {200, func() {
			for i := range s.reader.nft.chains {
				dump(b, s.floor, s.reader.nft.chains[i].getRules)
			}
		}},
		"read": {500, func() {
			if whole, err := c.readRules(s.reader.socket, s.reader.gen, shown); err != nil || !whole {
				b.Error(whole, err)
			}
			c.publishCounters(shown)
		}},
		"round":        {200, func() { _, _ = mustRead(b, s.reader) }},
		"iptables-nft": {5, run("iptables-nft", "-t", "nat", "-L", "FLANNEL-POSTRTG", "-nvx")},
		"nft":          {5, run("nft", "list", "chain", "ip", "nat", "FLANNEL-POSTRTG")},
	}
}

type method struct {
	times int
	run   func()
}

// dump is the least that a program can do to have a chain dumped: one request, and receiving until the end.
func dump(b *testing.B, s *socket, req []byte) {
	if _, err := unix.Write(s.fd, req); err != nil {
		b.Fatal(err)
	}
	for {
		n, err := unix.Read(s.fd, s.buf)
		if err != nil {
			b.Fatal(err)
		}
		for p := s.buf[:n]; len(p) > 0; p = p[align(int(binary.NativeEndian.Uint32(p))):] {
			if binary.NativeEndian.Uint16(p[4:]) == unix.NLMSG_DONE {
				return
			}
		}
	}
}

// meter collects the CPU time of methods, this process and its children together.
type meter map[string][]time.Duration

func (m meter) measure(b *testing.B, name string, with method) {
	start := cpuOf(b, unix.RUSAGE_SELF) + cpuOf(b, unix.RUSAGE_CHILDREN)
	for range with.times {
		with.run()
	}
	took := cpuOf(b, unix.RUSAGE_SELF) + cpuOf(b, unix.RUSAGE_CHILDREN) - start
	m[name] = append(m[name], took/time.Duration(with.times))
}

// of is the median for a method.
func (m meter) of(name string) float64 {
	slices.Sort(m[name])
	return float64(m[name][len(m[name])/2])
}

// BenchmarkChain compares the CPU time of reading one chain, and a whole round, with the bare dump and with the programs, in
// one run and interleaved. Last it compares a read beside 50,000 other rules with one beside ten.
//
//	go test -run '^$' -bench Chain -benchtime 20x ./watcher/nft
func BenchmarkChain(b *testing.B) {
	var nodes []beside
	for _, rules := range []int{10, 1000, 10000, 50000} {
		nodes = append(nodes, newBeside(b, rules))
	}
	for _, s := range nodes {
		b.Run(fmt.Sprintf("beside=%d", s.rules), func(b *testing.B) {
			m, methods := meter{}, s.methods(b)
			for b.Loop() {
				for name, with := range methods {
					m.measure(b, name, with)
				}
			}
			b.ReportMetric(m.of("read")/1000, "µs/read")
			b.ReportMetric(m.of("read")/m.of("dump"), "read/dump")
			b.ReportMetric(m.of("round")/1000, "µs/round")
			b.ReportMetric(m.of("round")/m.of("dumps"), "round/dumps")
			b.ReportMetric(m.of("iptables-nft")/m.of("read"), "iptables-nft/read")
			b.ReportMetric(m.of("nft")/m.of("read"), "nft/read")
		})
	}
	b.Run("flat", func(b *testing.B) {
		few, many := nodes[0], nodes[len(nodes)-1]
		m, atFew, atMany := meter{}, few.methods(b)["read"], many.methods(b)["read"]
		for b.Loop() {
			m.measure(b, "few", atFew)
			m.measure(b, "many", atMany)
		}
		b.ReportMetric(m.of("many")/m.of("few"), "50k/10")
	})
}
