package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"flanwatch/assets"
	"flanwatch/ui/cli"
	"flanwatch/watcher/lab/labtest"
)

// cluster is a node with two pods, an outside host behind its uplink, and another node with a pod.
type cluster struct {
	node, pod, other, outside, remote *labtest.Namespace
}

// plug lays a cable between two namespaces.
func plug(t *testing.T, a *labtest.Namespace, port string, b *labtest.Namespace, end string) {
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

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{node(t), labtest.New(t), labtest.New(t), labtest.New(t), labtest.New(t)}
	plug(t, c.node, "vpod", c.pod, "eth0")
	plug(t, c.node, "vother", c.other, "eth0")
	plug(t, c.node, "up0", c.outside, "eth0")
	plug(t, c.node, "peer", c.remote, "eth0")
	c.node.Shell(`
		ip addr add 10.244.1.1/32 dev vpod
		ip addr add fd00:244:0:1::1/128 dev vpod nodad
		ip route add 10.244.1.5 dev vpod
		ip route add 10.244.1.6 dev vother
		ip -6 route add fd00:244:0:1::5 dev vpod
		ip addr add 192.168.60.11/24 dev up0
		ip addr add fd00:60::11/64 dev up0 nodad
		ip addr add 192.168.61.11/24 dev peer
		ip addr add fd00:61::11/64 dev peer nodad
		ip route add 10.244.2.0/24 via 192.168.61.12
		ip -6 route add fd00:244:0:2::/64 via fd00:61::12
		ip route add default via 192.168.60.1
		ip -6 route add default via fd00:60::1
		echo 1 > /proc/sys/net/ipv4/conf/vother/proxy_arp
		echo 1 > /proc/sys/net/ipv4/ip_forward
		echo 1 > /proc/sys/net/ipv6/conf/all/forwarding`)
	pod := `
		ip addr add 10.244.1.%[1]s/32 dev eth0
		ip addr add fd00:244:0:1::%[1]s/128 dev eth0 nodad
		ip route add 10.244.1.1 dev eth0
		ip route add default via 10.244.1.1
		ip -6 route add fd00:244:0:1::1 dev eth0
		ip -6 route add default via fd00:244:0:1::1`
	c.pod.Shell(fmt.Sprintf(pod, "5"))
	c.other.Shell(fmt.Sprintf(pod, "6"))
	c.outside.Shell(`
		ip link set lo up
		ip addr add 192.168.60.1/24 dev eth0
		ip addr add fd00:60::1/64 dev eth0 nodad
		ip addr add 192.0.2.80/32 dev lo
		ip addr add 2001:db8::80/128 dev lo nodad`)
	c.remote.Shell(`
		ip link set lo up
		ip addr add 192.168.61.12/24 dev eth0
		ip addr add fd00:61::12/64 dev eth0 nodad
		ip addr add 10.244.2.7/32 dev lo
		ip addr add fd00:244:0:2::7/128 dev lo nodad
		ip route add default via 192.168.61.11
		ip -6 route add default via fd00:61::11`)
	return c
}

// send sends a datagram from a port of a namespace.
func send(t *testing.T, from *labtest.Namespace, port int, to string) {
	t.Helper()
	err := from.Do(func() error {
		c, err := (&net.Dialer{LocalAddr: &net.UDPAddr{Port: port}}).Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// seen receives one datagram sent by send and tells its source.
func seen(t *testing.T, at *labtest.Namespace, where string, send func()) string {
	t.Helper()
	var c net.PacketConn
	err := at.Do(func() (err error) {
		c, err = net.ListenPacket("udp", where)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	send()
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
	_, from, err := c.ReadFrom(make([]byte, 9))
	if err != nil {
		return err.Error()
	}
	host, _, _ := net.SplitHostPort(from.String())
	return host
}

type listedFlows struct {
	Counts map[string]*int
	Flows  []struct {
		Kind, Family, Src, Dst, ReplyDst string
		SPort                            int
		AgeSeconds                       *int
	}
	Unreadable []struct{ What, Why string }
}

func run(t *testing.T, n *labtest.Namespace, args ...string) (string, int) {
	t.Helper()
	var out, errs bytes.Buffer
	code := cli.Main(t.Context(), append(args, "--netns", n.Path(), "--root", n.Root(), "--state", n.Root()+"/run/flanwatch"),
		cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	return out.String() + errs.String(), code
}

func listFlows(t *testing.T, n *labtest.Namespace) (listedFlows, int) {
	t.Helper()
	out, code := run(t, n, "flows", "-o", "json")
	validateWith(t, assets.FlowsSchema, out)
	var l listedFlows
	if err := json.Unmarshal([]byte(out), &l); err != nil {
		t.Fatal(err)
	}
	return l, code
}

func (l listedFlows) lines() []string {
	var out []string
	for _, f := range l.Flows {
		out = append(out, fmt.Sprintf("%s %s %s:%d → %s, seen as %s", f.Kind, f.Family, f.Src, f.SPort, f.Dst, f.ReplyDst))
	}
	slices.Sort(out)
	return out
}

func wantFlows(t *testing.T, l listedFlows, code, wantCode int, want ...string) {
	t.Helper()
	if code != wantCode || !slices.Equal(l.lines(), want) {
		t.Errorf("exit code %d, want %d; got\n  %s\nwant\n  %s\nunreadable %v", code, wantCode,
			strings.Join(l.lines(), "\n  "), strings.Join(want, "\n  "), l.Unreadable)
	}
}

func TestFlowsOfAGapAndOfADeadRuleAreListedAndUnstuckAndNoOther(t *testing.T) {
	labtest.RequireTools(t, "conntrack")
	c := newCluster(t)
	flannel := func() {
		c.node.Feed(rules4, "iptables-nft-restore")
		c.node.Feed(rules6, "ip6tables-nft-restore")
		c.node.Must("iptables-nft -A FORWARD -m conntrack --ctstate INVALID -j DROP") // as kube-proxy has: keeps tracking on
		c.node.Must("ip6tables-nft -A FORWARD -m conntrack --ctstate INVALID -j DROP")
		c.node.Must("iptables-nft -t nat -A PREROUTING -d 10.96.0.10 -p udp --dport 53 -j DNAT --to-destination 10.244.2.7")
	}
	flannel()
	c.node.Flanneld("--ip-masq", "--kube-subnet-mgr")
	everybody := func() { // healthy traffic of every sort
		send(t, c.pod, 40001, "192.0.2.80:9")
		send(t, c.pod, 40002, "10.244.1.6:9")
		send(t, c.pod, 40003, "10.244.2.7:9")
		send(t, c.pod, 40004, "10.96.0.10:53")
		send(t, c.pod, 40005, "192.168.60.11:9")
		send(t, c.remote, 40006, "10.244.1.5:9")
		send(t, c.pod, 40007, "[2001:db8::80]:9")
		send(t, c.pod, 40008, "192.168.61.12:9")
		send(t, c.pod, 40009, "[fd00:244:0:2::7]:9")
	}
	everybody()
	l, code := listFlows(t, c.node)
	wantFlows(t, l, code, cli.ExitOK)
	if l.Counts["bare"] == nil || *l.Counts["bare"] != 0 {
		t.Errorf("bare is %v, want 0", l.Counts["bare"])
	}

	bare := func() {
		send(t, c.pod, 40000, "192.0.2.80:9")
		send(t, c.pod, 40000, "[2001:db8::80]:9")
	}
	c.node.Must("iptables-nft -t nat -F FLANNEL-POSTRTG")
	c.node.Must("ip6tables-nft -t nat -F FLANNEL-POSTRTG")
	bare()
	out, code := run(t, c.node, "unstick", "--dry-run")
	if code != cli.ExitRefused || !strings.Contains(out, "rules") {
		t.Errorf("in the gap: exit code %d: %s", code, out)
	}
	flannel()
	bare()
	everybody()
	c.node.Must("iptables-nft -t nat -I POSTROUTING -p udp --sport 41000 -j MASQUERADE") // stands for a dead rule of Flannel's
	c.node.Must("iptables-nft -t nat -I POSTROUTING -p udp --sport 42000 -j SNAT --to-source 192.168.60.99")
	c.node.Must("ip6tables-nft -t nat -I POSTROUTING -p udp --sport 41000 -j MASQUERADE")
	send(t, c.pod, 41000, "10.244.2.7:9")
	send(t, c.pod, 41000, "[fd00:244:0:2::7]:9")
	send(t, c.pod, 42000, "192.0.2.80:9")
	c.node.Must("iptables-nft -t nat -D POSTROUTING 1")
	c.node.Must("iptables-nft -t nat -D POSTROUTING 1")
	c.node.Must("ip6tables-nft -t nat -D POSTROUTING 1")
	others := fill(t, c.node, 10000)

	l, code = listFlows(t, c.node)
	wantFlows(t, l, code, cli.ExitFinding,
		"bare ip 10.244.1.5:40000 → 192.0.2.80, seen as 10.244.1.5",
		"bare ip6 fd00:244:0:1::5:40000 → 2001:db8::80, seen as fd00:244:0:1::5",
		"translated ip 10.244.1.5:41000 → 10.244.2.7, seen as 192.168.61.11",
		"translated ip6 fd00:244:0:1::5:41000 → fd00:244:0:2::7, seen as fd00:61::11")

	plan := dryRun(t, c.node)
	out, code = run(t, c.node, "unstick", "--plan", "000000000000")
	if code != cli.ExitRefused || !strings.Contains(out, "stale") {
		t.Errorf("another plan: exit code %d: %s", code, out)
	}
	if out, code = run(t, c.node, "unstick", "--plan", plan, "--read-only"); code != cli.ExitRefused {
		t.Errorf("read-only: exit code %d: %s", code, out)
	}
	if out, code = run(t, c.node, "unstick"); code != cli.ExitUsage {
		t.Errorf("without a terminal: exit code %d: %s", code, out)
	}
	out, code = run(t, c.node, "unstick", "--plan", plan)
	if code != cli.ExitOK || !strings.Contains(out, "deleted 4, gone already 0, left alone 0") || !strings.Contains(out, "cannot be undone") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if got := fill(t, c.node, 0); got != others {
		t.Errorf("%d of %d other entries are left", got, others)
	}
	if out, code = run(t, c.node, "unstick", "--plan", plan); code != cli.ExitOK {
		t.Errorf("a second time: exit code %d: %s", code, out)
	}
	receipts(t, c.node, 4)
	for what, got := range map[string][2]string{
		"IPv4": {"192.168.60.11", seen(t, c.outside, "192.0.2.80:9", func() { send(t, c.pod, 40000, "192.0.2.80:9") })},
		"IPv6": {"fd00:60::11", seen(t, c.outside, "[2001:db8::80]:9", func() { send(t, c.pod, 40000, "[2001:db8::80]:9") })},
		"pods": {"10.244.1.5", seen(t, c.remote, "10.244.2.7:9", func() { send(t, c.pod, 41000, "10.244.2.7:9") })},
		"pods, IPv6": {
			"fd00:244:0:1::5", seen(t, c.remote, "[fd00:244:0:2::7]:9", func() { send(t, c.pod, 41000, "[fd00:244:0:2::7]:9") }),
		},
	} {
		if got[0] != got[1] {
			t.Errorf("the next packet, %s: seen as %s, want %s", what, got[1], got[0])
		}
	}
	l, code = listFlows(t, c.node)
	wantFlows(t, l, code, cli.ExitOK)
}

// fill adds entries from a port and address of their own to the table, and counts those that are there.
func fill(t *testing.T, n *labtest.Namespace, entries int) int {
	t.Helper()
	var b strings.Builder
	for i := range entries {
		fmt.Fprintf(&b, "-I -p udp -s 172.16.%d.%d -d 172.31.0.1 --sport 7 --dport 7 -t 600 -u SEEN_REPLY,ASSURED\n", i/250, i%250+1)
	}
	if entries > 0 {
		n.Feed(b.String(), "conntrack", "-R", "-")
	}
	return strings.Count(n.Must("conntrack -L -d 172.31.0.1"), "dst=172.31.0.1 ")
}

// receipts holds the only receipt against what was deleted, and tries to take it back.
func receipts(t *testing.T, n *labtest.Namespace, deleted int) {
	t.Helper()
	out, code := run(t, n, "history", "-o", "json")
	validateWith(t, assets.HistorySchema, out)
	var h struct {
		Receipts []struct {
			ID, Kind, Result string
			Connections      []struct{ Kind, Text, Fate string }
		}
	}
	if err := json.Unmarshal([]byte(out), &h); err != nil || code != cli.ExitOK || len(h.Receipts) != 1 {
		t.Fatalf("exit code %d, %v: %s", code, err, out)
	}
	r := h.Receipts[0]
	if r.Kind != "unstick" || r.Result != "verified" || len(r.Connections) != deleted {
		t.Errorf("%+v", r)
	}
	for _, c := range r.Connections {
		if c.Fate != "deleted" || !strings.Contains(c.Text, "udp ") || !strings.Contains(c.Text, "seen as") {
			t.Errorf("%+v", c)
		}
	}
	if out, code := run(t, n, "undo", r.ID); code != cli.ExitRefused || !strings.Contains(out, "cannot be brought back") {
		t.Errorf("undo: exit code %d: %s", code, out)
	}
}

func validatePlan(t *testing.T, text string) { t.Helper(); validateWith(t, assets.PlanSchema, text) }

// validateWith holds JSON against a schema.
func validateWith(t *testing.T, schema []byte, text string) {
	t.Helper()
	s, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", s); err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := c.MustCompile("schema.json").Validate(value); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}

func dryRun(t *testing.T, n *labtest.Namespace) string {
	t.Helper()
	out, code := run(t, n, "unstick", "--dry-run", "-o", "json")
	var p struct {
		ID, Title, Backup, Undo string
		Steps                   []struct{ Mark, Text string }
		Guards                  []any
		Why                     []string
	}
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	validatePlan(t, out)
	gone := 0
	for _, s := range p.Steps {
		if s.Mark == "-" {
			gone++
		}
	}
	if code != cli.ExitFinding || gone != 4 || p.ID == "" || p.Undo != "" || p.Backup != "" {
		t.Errorf("exit code %d, plan %+v", code, p)
	}
	if again, _ := run(t, n, "unstick", "--dry-run", "-o", "json"); !strings.Contains(again, p.ID) {
		t.Errorf("the plan of the same connections has another ID:\n%s", again)
	}
	return p.ID
}

func TestCheckCountsFlowsWhenAskedAndFindsThem(t *testing.T) {
	c := newCluster(t)
	c.node.Feed(rules4, "iptables-nft-restore")
	c.node.Feed(rules6, "ip6tables-nft-restore")
	c.node.Flanneld("--ip-masq", "--kube-subnet-mgr")
	c.node.Must("iptables-nft -t mangle -A POSTROUTING -m conntrack --ctstate INVALID -j DROP") // keeps tracking on without rules
	c.node.Must("iptables-nft -t nat -F FLANNEL-POSTRTG")
	send(t, c.pod, 40000, "192.0.2.80:9")
	c.node.Feed(rules4, "iptables-nft-restore")
	for _, flows := range []bool{false, true} {
		args := []string{"check", "-o", "json"}
		if flows {
			args = append(args, "--flows")
		}
		out, code := run(t, c.node, args...)
		validate(t, []byte(out))
		var r struct {
			Conntrack struct {
				Count, Max, BareFlows, TranslatedPodFlows, InsertFailed *int
				Source                                                  *string
			}
			Findings []struct{ ID, Remedy string }
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		k := r.Conntrack
		if k.Count == nil || *k.Count == 0 || k.Max == nil || k.InsertFailed == nil || k.Source == nil || *k.Source != "netlink" {
			t.Errorf("flows %v: %s", flows, out)
		}
		switch {
		case !flows && (code != cli.ExitOK || k.BareFlows != nil || len(r.Findings) != 0):
			t.Errorf("without --flows: exit code %d: %s", code, out)
		case flows && (code != cli.ExitFinding || k.BareFlows == nil || *k.BareFlows != 1 || *k.TranslatedPodFlows != 0 ||
			len(r.Findings) != 1 || r.Findings[0].ID != "flows-bare" || r.Findings[0].Remedy != "unstick"):
			t.Errorf("with --flows: exit code %d: %s", code, out)
		}
	}
}

func TestWithoutThePrivilegeTheCountersComeFromProcfsAndFlowsSayWhy(t *testing.T) {
	labtest.RequireTools(t, "setpriv")
	program := buildFlanwatch(t)
	n := node(t)
	n.Feed(rules4, "iptables-nft-restore")
	n.Must("iptables-nft -A FORWARD -m conntrack --ctstate INVALID -j DROP")
	for command, want := range map[string]string{
		"check": `"source": "procfs"`,
		"flows": `"bare": null`,
	} {
		out, err := n.Run("setpriv", "--bounding-set=-all", "--inh-caps=-all", program, command, "-o", "json")
		if err == nil || !strings.Contains(err.Error(), "exit status 3") {
			t.Errorf("%s: %v", command, err)
		}
		if !strings.Contains(out, want) || !strings.Contains(out, "CAP_NET_ADMIN") {
			t.Errorf("%s: no %s in %s", command, want, out)
		}
	}
}
