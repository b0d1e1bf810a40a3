package watcher_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/lab/labtest"
	"flanwatch/watcher/probe"
)

const outside = "192.0.2.80"

// cluster is a pod on a node, and a host outside that has no way back to pods' addresses.
type cluster struct {
	node *labtest.Namespace
	pod  int // number of a process in it
}

// newCluster wires the hosts; servers outside answer on port 8080, and nobody on others.
func newCluster(t *testing.T) cluster {
	t.Helper()
	labtest.RequireTools(t, "ip", "iptables-nft", "sysctl")
	node, pod, host := node(t, flannel.IptablesNft), labtest.New(t), labtest.New(t)
	node.Must("ip link add cni0 type veth peer name eth0 netns " + pod.Path())
	node.Must("ip link add uplink type veth peer name eth0 netns " + host.Path())
	for _, line := range []string{
		"ip addr add 10.244.1.1/24 dev cni0", "ip link set cni0 up", "ip addr add 192.168.60.11/24 dev uplink", "ip link set uplink up",
		"ip route add 192.0.2.0/24 via 192.168.60.1", "sysctl -qw net.ipv4.ip_forward=1",
	} {
		node.Must(line)
	}
	for _, line := range []string{"ip link set lo up", "ip addr add 10.244.1.5/24 dev eth0", "ip link set eth0 up", "ip route add default via 10.244.1.1"} {
		pod.Must(line)
	}
	for _, line := range []string{"ip addr add 192.168.60.1/24 dev eth0", "ip link set eth0 up", "ip addr add " + outside + "/32 dev eth0"} {
		host.Must(line)
	}
	serve(t, host)
	return cluster{node, pod.StandIn("/pause")}
}

func serve(t *testing.T, host *labtest.Namespace) {
	t.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	if err := host.Do(func() (err error) {
		if tcp, err = net.Listen("tcp", outside+":8080"); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp", outside+":8080")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		tcp.Close()
		udp.Close()
	})
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, c)
				c.Close()
			}()
		}
	}()
	go func() {
		for b := make([]byte, 100); ; {
			n, from, err := udp.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(b[:n], from)
		}
	}()
}

func target(t *testing.T, text string) probe.Target {
	t.Helper()
	target, err := probe.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestProbesFromAPodTellWhatAGapDidToIt(t *testing.T) {
	c := newCluster(t)
	o := optionsOf(c.node)
	o.Probe = &watcher.ProbeOptions{Target: target(t, "tcp://"+outside+":8080"), From: fmt.Sprint(c.pod)}
	f := watchFolded(t, o)
	f.wait("successful attempts", func() bool { v := f.view(); return v.Probe != nil && v.Probe.Successes > 5 })
	c.node.Must("iptables-nft -t nat -F FLANNEL-POSTRTG")
	time.Sleep(2 * time.Second)
	f.wait("failures on the view", func() bool { return !f.view().Probe.Failing.IsZero() })
	c.node.Feed(refillMasq, "iptables-nft-restore", "--noflush")
	f.wait("success again", func() bool { return f.view().Probe.Failing.IsZero() })
	time.Sleep(probe.Patience + 500*time.Millisecond) // the last failures have ended
	v := f.view()
	if len(v.Incidents) != 1 || v.Incidents[0].Probe == nil {
		t.Fatalf("incidents %+v", v.Incidents)
	}
	inc := v.Incidents[0]
	t.Logf("%v; connect time %v (median), %v (most)", inc.Effects, v.Probe.Median, v.Probe.Max)
	p, lasted := inc.Probe, inc.End.Sub(inc.Start)
	if p.Failed < 10 || p.Failed > 25 || p.Attempts-p.Failed > 1 || (p.Failing-lasted).Abs() > 500*time.Millisecond {
		t.Errorf("in %v: %+v", lasted, p)
	}
	said := fmt.Sprintf("%d of %d attempts", p.Failed, p.Attempts)
	if text := inc.Effects[len(inc.Effects)-1]; !strings.HasPrefix(text, "pods could not connect for ") || !strings.HasSuffix(text, said) {
		t.Errorf("effects %q", inc.Effects)
	}
	if v.Probe.Median <= 0 || v.Probe.Median > probe.Patience || v.Probe.Max < v.Probe.Median {
		t.Errorf("connect time %v, most %v", v.Probe.Median, v.Probe.Max)
	}
}

func TestOneProbeKnowsEveryProtocolAndEveryNameOfAPod(t *testing.T) {
	c := newCluster(t)
	w, err := watcher.Open(optionsOf(c.node))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	once := func(to, from string) *incident.Observation {
		var seen *incident.Observation
		w.ProbeOnce(watcher.ProbeOptions{Target: target(t, to), From: from}, func(o *incident.Observation) { seen = o })
		return seen
	}
	pid := fmt.Sprint(c.pod)
	tcp := "tcp://" + outside + ":8080"
	for _, good := range [][2]string{
		{tcp, pid},
		{tcp, "10.244.1.5"},
		{tcp, "/proc/" + pid + "/ns/net"},
		{"udp://" + outside + ":8080", pid},
		{"icmp://" + outside, pid},
		{"tcp://" + outside + ":9", pid},
		{"udp://" + outside + ":9", pid}, // refused, which is an answer
	} {
		if o := once(good[0], good[1]); o.Probe == nil || o.Probe.Why != "" || o.Probe.Took > probe.Patience {
			t.Errorf("%s from %s: %+v %+v", good[0], good[1], o.Probe, o.Fault)
		}
	}
	c.node.Must("iptables-nft -t nat -F FLANNEL-POSTRTG")
	for _, to := range []string{tcp, "udp://" + outside + ":8080", "icmp://" + outside} {
		if o := once(to, pid); o.Probe == nil || o.Probe.Why != "no answer" {
			t.Errorf("%s without masquerading: %+v %+v", to, o.Probe, o.Fault)
		}
	}
	for _, nowhere := range []string{"10.244.1.99", "no-such-namespace", "999999999"} {
		if o := once(tcp, nowhere); o.Fault == nil || o.Fault.Reader != "probe" || !strings.Contains(o.Fault.Why, nowhere) {
			t.Errorf("from %s: %+v %+v", nowhere, o.Probe, o.Fault)
		}
	}
	if o := once("tcp://[2001:db8::1]:80", pid); o.Fault == nil || !strings.Contains(o.Fault.Why, "not tried") {
		t.Errorf("without any route: %+v %+v", o.Probe, o.Fault)
	}
}

func TestAConnectionIsTriedWhenAPersonAsksForIt(t *testing.T) {
	c := newCluster(t)
	f := watchFolded(t, optionsOf(c.node))
	tcp := target(t, "tcp://"+outside+":8080")
	if err := f.Try(watcher.ProbeOptions{Target: tcp, From: "10.244.1.99"}); err == nil || !strings.Contains(err.Error(), "10.244.1.99") {
		t.Errorf("from a pod that is not there: %v", err)
	}
	for i := range 2 {
		if err := f.Try(watcher.ProbeOptions{Target: tcp, From: fmt.Sprint(c.pod)}); err != nil {
			t.Fatal(err)
		}
		f.wait("how it ended", func() bool { v := f.view(); return v.Probe != nil && v.Probe.Successes == i+1 })
	}
	if v := f.view(); v.Probe.Attempts != 2 || len(v.Faults) > 0 {
		t.Errorf("%+v, %+v", v.Probe, v.Faults)
	}
}

func TestAPodThatGoesAwayIsAFaultAndNotAFailure(t *testing.T) {
	c := newCluster(t)
	f := watchProbing(t, c)
	c.node.Must("ip link del cni0")
	f.wait("the fault", func() bool { return len(f.view().Faults) > 0 })
	v := f.view()
	if v.Faults[0].Reader != "probe" || v.Probe.Attempts-v.Probe.Successes > 12 {
		t.Errorf("%+v, %+v", v.Faults, v.Probe)
	}
}

func watchProbing(t *testing.T, c cluster) *folded {
	t.Helper()
	o := optionsOf(c.node)
	o.Probe = &watcher.ProbeOptions{Target: target(t, "tcp://"+outside+":8080"), From: fmt.Sprint(c.pod)}
	f := watchFolded(t, o)
	f.wait("successful attempts", func() bool { v := f.view(); return v.Probe != nil && v.Probe.Successes > 0 })
	return f
}

func TestProbingLeavesNoThreadsBehind(t *testing.T) {
	c := newCluster(t)
	threads := func() int {
		entries, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	p, err := probe.Open(target(t, "tcp://"+outside+":8080"), fmt.Sprint(c.pod))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	before, tried := threads(), make(chan probe.Attempt, 1000)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	p.Run(ctx, 10*time.Millisecond, func(a probe.Attempt) { tried <- a })
	if n := len(tried); n < 20 || n > 110 {
		t.Errorf("%d attempts in a second at 100 a second", n)
	}
	for end := time.Now().Add(5 * time.Second); threads() > before+4 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	if n := threads(); n > before+4 {
		t.Errorf("%d threads, before %d", n, before)
	}
}
