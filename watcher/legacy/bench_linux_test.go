package legacy_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/watcher/lab/labtest"
)

// services makes rules of the shape of kube-proxy's, n of them, for iptables-restore.
func services(n int) string {
	var chains, rules strings.Builder
	chains.WriteString("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-POSTROUTING - [0:0]\n")
	rules.WriteString("-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n" +
		"-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING\n")
	for i := 0; 3*i < n; i++ {
		svc, sep := fmt.Sprintf("KUBE-SVC-%08X", i), fmt.Sprintf("KUBE-SEP-%08X", i)
		fmt.Fprintf(&chains, ":%s - [0:0]\n:%s - [0:0]\n", svc, sep)
		fmt.Fprintf(&rules, "-A KUBE-SERVICES -d 10.96.%d.%d/32 -p tcp -m comment --comment \"ns/svc-%d:http cluster IP\" -m tcp --dport 80 -j %s\n",
			i/256%256, i%256, i, svc)
		fmt.Fprintf(&rules, "-A %s -m comment --comment \"ns/svc-%d:http\" -j %s\n", svc, i, sep)
		fmt.Fprintf(&rules, "-A %s -p tcp -m comment --comment \"ns/svc-%d:http\" -m tcp -j DNAT --to-destination 10.244.%d.%d:8080\n",
			sep, i, i/256%256, i%256)
	}
	return chains.String() + rules.String() + "COMMIT\n"
}

// cpuTime is what this process has used, or its children have.
func cpuTime(b *testing.B, who int) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkReadBesideOtherRules compares a whole Read (all chains, both families) with one listing of one chain by
// iptables-legacy, by CPU time; what starting the program costs the one who starts it is left out.
func BenchmarkReadBesideOtherRules(b *testing.B) {
	labtest.RequireTools(b, "iptables-legacy", "iptables-legacy-restore")
	for _, others := range []int{10, 1_000, 10_000, 50_000} {
		b.Run(fmt.Sprint(others), func(b *testing.B) {
			n := labtest.New(b)
			n.Feed(flannel4, "iptables-legacy-restore", "--noflush")
			n.Feed(services(others), "iptables-legacy-restore", "--noflush")
			r := open(b, n)
			read(b, r)
			b.ReportAllocs()
			start := cpuTime(b, unix.RUSAGE_SELF)
			for b.Loop() {
				read(b, r)
			}
			ours := (cpuTime(b, unix.RUSAGE_SELF) - start) / time.Duration(b.N)
			start = cpuTime(b, unix.RUSAGE_CHILDREN)
			const times = 20
			for range times {
				cmd := exec.Command("iptables-legacy", "-t", "nat", "-L", "FLANNEL-POSTRTG", "-nvx")
				if _, err := n.Output(cmd); err != nil {
					b.Fatal(err)
				}
			}
			tool := (cpuTime(b, unix.RUSAGE_CHILDREN) - start) / times
			b.ReportMetric(float64(ours.Nanoseconds())/1e3, "CPU-µs/read")
			b.ReportMetric(float64(tool.Nanoseconds())/1e3, "CPU-µs/iptables-L")
			b.ReportMetric(float64(tool)/float64(ours), "×less")
		})
	}
}

// BenchmarkChanged is the look that is taken between reads: of two tables in each family.
func BenchmarkChanged(b *testing.B) {
	n := labtest.New(b)
	n.Feed(flannel4, "iptables-legacy-restore", "--noflush")
	n.Must("ip6tables-legacy -t nat -S")
	n.Must("ip6tables-legacy -S")
	r := open(b, n)
	read(b, r)
	b.ReportAllocs()
	for b.Loop() {
		if changed, err := r.Changed(); changed || err != nil {
			b.Fatal(changed, err)
		}
	}
}
