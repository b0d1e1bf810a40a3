package ctnl

import (
	"encoding/binary"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/lab/labtest"
)

// benchEntries is a large table. Of these, 1 % go from pod to pod with source NAT, 9 % from pod to the outside with it, 20 %
// to a service, and the rest from pod to pod.
const benchEntries = 250_000

func fillBench(b *testing.B) (*labtest.Namespace, *Reader) {
	n, r := tracked(b)
	f := newFiller(b, n)
	f.want = int(unix.EEXIST) // two pods' connections to the outside can want one port of the node
	for i := range benchEntries {
		src := netip.AddrFrom4([4]byte{10, 42, byte(i >> 8), byte(i%250 + 1)})
		dst := netip.AddrFrom4([4]byte{10, 42, byte(i>>8 + 100), byte(i%241 + 1)})
		e := entry{sport: 1024 + i%60000, dport: 8080, assured: true}
		switch k := i % 100; {
		case k < 1:
			e.snat = "192.168.1.10"
		case k < 10:
			dst = netip.AddrFrom4([4]byte{8, byte(i >> 16), byte(i >> 8), byte(i)})
			e.snat, e.dport = "192.168.1.10", 443
		case k < 30:
			e.dnat = dst.String()
			dst = netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i%200 + 1)})
		}
		f.add(src, dst, e)
	}
	f.flush()
	return n, r
}

func benchTopology() conntrack.Topology {
	return conntrack.Topology{
		Networks:   []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
		Subnets:    []netip.Prefix{netip.MustParsePrefix("10.42.3.0/24")},
		Services:   []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
		Nodes:      []netip.Addr{netip.MustParseAddr("192.168.1.10"), netip.MustParseAddr("192.168.1.11")},
		Tunnels:    map[netip.Addr]string{netip.MustParseAddr("10.42.4.0"): "192.168.1.11"},
		Masquerade: map[flannel.Family]bool{flannel.IPv4: true},
	}
}

// cpuTime is what the process and its children have used, user and system together: walking the table is the kernel's work.
func cpuTime() time.Duration {
	var total time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if unix.Getrusage(who, &u) == nil {
			total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return total
}

func measured(b *testing.B, name string, work func() error) {
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		before := cpuTime()
		for b.Loop() {
			if err := work(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N), "cpu-µs/op")
	})
}

// rawDump reads and throws away, which is the floor.
func rawDump(r *Reader, filter Filter) error {
	s := r.socket
	s.begin(msgGet, unix.NLM_F_DUMP, unix.AF_UNSPEC)
	if filter.Mask != 0 {
		s.attr32(attrStatus, uint32(filter.Status))
		s.attr32(attrStatusMask, uint32(filter.Mask))
	}
	binary.NativeEndian.PutUint32(s.req, uint32(len(s.req)))
	if _, err := unix.Write(s.fd, s.req); err != nil {
		return err
	}
	for {
		if _, err := unix.Read(s.fd, s.buf); err != nil {
			return err
		}
		if binary.NativeEndian.Uint16(s.buf[4:]) == unix.NLMSG_DONE {
			return nil
		}
	}
}

func BenchmarkTableOf250000(b *testing.B) {
	n, r := fillBench(b)
	survey := func(filters ...Filter) func() error {
		return func() error {
			s := conntrack.NewSurveyor(benchTopology(), nil)
			for _, f := range filters {
				if err := r.Dump(f, s.Add, s.Skip); err != nil {
					return err
				}
			}
			s.Done(0)
			return nil
		}
	}
	measured(b, "health", func() error { _, err := r.Health(); return err })
	measured(b, "raw/SRC_NAT", func() error { return rawDump(r, SourceNAT) })
	measured(b, "survey/SRC_NAT", survey(SourceNAT))
	measured(b, "raw/no_SRC_NAT", func() error { return rawDump(r, NoSourceNAT) })
	measured(b, "survey/no_SRC_NAT", survey(NoSourceNAT))
	measured(b, "survey/all", survey(All))
	measured(b, "exec/conntrack_-L_--src-nat", func() error {
		return n.Do(func() error { return exec.Command("conntrack", "-L", "--src-nat").Run() })
	})
	measured(b, "exec/conntrack_-S", func() error { return n.Do(func() error { return exec.Command("conntrack", "-S").Run() }) })
}
