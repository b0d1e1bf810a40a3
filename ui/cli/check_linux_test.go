package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"flanwatch/assets"
	"flanwatch/ui/cli"
	"flanwatch/watcher/lab/labtest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "rescue-remedy" {
		os.Exit(cli.Main(context.Background(), os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
	}
	labtest.Main(m)
}

const subnetEnv = `FLANNEL_NETWORK=10.244.0.0/16
FLANNEL_SUBNET=10.244.1.1/24
FLANNEL_IPV6_NETWORK=fd00:244::/48
FLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64
FLANNEL_MTU=1450
FLANNEL_IPMASQ=true
`

// save gives Flannel's rules of one family as iptables-restore takes them.
func save(network, subnet, multicast string) string {
	return fmt.Sprintf(`*nat
:POSTROUTING ACCEPT
:FLANNEL-POSTRTG -
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s %[2]s -d %[1]s -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s %[1]s -d %[2]s -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s %[1]s -d %[2]s -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s %[1]s ! -d %[3]s -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s %[1]s -d %[1]s -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
*filter
:FORWARD ACCEPT
:FLANNEL-FWD -
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FLANNEL-FWD -s %[1]s -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d %[1]s -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
`, network, subnet, multicast)
}

var (
	rules4 = save("10.244.0.0/16", "10.244.1.0/24", "224.0.0.0/4")
	rules6 = save("fd00:244::/48", "fd00:244:0:1::/64", "ff00::/8")
)

// node is a namespace with subnet.env and a process named flanneld that is past its start.
func node(t *testing.T) *labtest.Namespace {
	t.Helper()
	n := labtest.New(t)
	n.Must("ip link set lo up")
	n.Must("mkdir -p /run/flannel")
	n.Feed(subnetEnv, "tee", "/run/flannel/subnet.env")
	return n
}

type checked struct {
	Node struct {
		Networks   []string
		Source     string
		AgeSeconds *int64
	}
	Flannel struct {
		State, Generation, Dialect string
		Evidence                   []string
	}
	Chains []struct {
		Backend, Family, Table, Name, State string
		Rules                               []struct {
			Text, Status   string
			Packets, Bytes *uint64
		}
	}
	Findings   []checkedFinding
	Unreadable []struct{ What, Why string }
}

type checkedFinding struct {
	ID, Severity, Object, Summary, Remedy, Refused string
	Detail                                         []string
}

// check runs flanwatch check on a namespace.
func check(t *testing.T, n *labtest.Namespace) (checked, int) {
	t.Helper()
	return checkAt(t, n.Path(), n.Root())
}

func checkAt(t *testing.T, netns, root string) (checked, int) {
	t.Helper()
	var out, errs bytes.Buffer
	code := cli.Main(t.Context(), []string{"check", "-o", "json", "--netns", netns, "--root", root},
		cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	if errs.Len() > 0 {
		t.Fatalf("check says: %s", errs.String())
	}
	return decode(t, out.Bytes()), code
}

// decode holds check's JSON against its schema and decodes it.
func decode(t *testing.T, doc []byte) (c checked) {
	t.Helper()
	validate(t, doc)
	if err := json.Unmarshal(doc, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func validate(t *testing.T, doc []byte) {
	t.Helper()
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(assets.CheckSchema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("check.json", schema); err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.MustCompile("check.json").Validate(value); err != nil {
		t.Fatalf("%v\n%s", err, doc)
	}
}

// wantOK fails the test unless every chain is ok and nothing is found.
func wantOK(t *testing.T, c checked, code, chains int) {
	t.Helper()
	if code != cli.ExitOK || len(c.Chains) != chains {
		t.Errorf("exit code %d with %d chains, want %d with %d", code, len(c.Chains), cli.ExitOK, chains)
	}
	for _, chain := range c.Chains {
		if chain.State != "ok" {
			t.Errorf("%s %s %s %s is %s", chain.Backend, chain.Family, chain.Table, chain.Name, chain.State)
		}
		for _, r := range chain.Rules {
			if r.Status != "ok" {
				t.Errorf("%s: %s", r.Status, r.Text)
			}
		}
	}
	for _, f := range c.Findings {
		t.Errorf("finding %s (%s): %s", f.ID, f.Severity, f.Summary)
	}
}

func TestCheckIsContentWithTheRulesOfEveryIptables(t *testing.T) {
	for release, version := range map[string]string{"bullseye": "1.8.7", "bookworm": "1.8.9", "trixie": "1.8.11"} {
		t.Run(version, func(t *testing.T) {
			n := node(t)
			root := labtest.IptablesRoot(t, release)
			if got := n.Must("chroot " + root + " iptables-nft --version"); !strings.Contains(got, version) {
				t.Fatalf("%s has %s", release, got)
			}
			n.Feed(rules4, "chroot", root, "iptables-nft-restore")
			n.Feed(rules6, "chroot", root, "ip6tables-nft-restore")
			n.Flanneld("--ip-masq", "--kube-subnet-mgr")
			c, code := check(t, n)
			wantOK(t, c, code, 4)
		})
	}
}

func TestCountersEqualThoseOfIptablesSave(t *testing.T) {
	n := node(t)
	n.Feed(rules4, "iptables-nft-restore")
	n.Feed(rules6, "ip6tables-nft-restore")
	n.Flanneld("--ip-masq", "--kube-subnet-mgr")
	pod := connect(t, n)
	_, err := pod.Run("bash", "-ec", `
		for i in 1 2 3 4 5 6 7; do
			echo x > /dev/udp/198.51.100.1/9
			echo x > /dev/udp/2001:db8::1/9
		done`)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	c, _ := check(t, n)
	want := map[string][2]uint64{}
	for family, program := range map[string]string{"ip": "iptables-nft-save", "ip6": "ip6tables-nft-save"} {
		for _, m := range savedRule.FindAllStringSubmatch(n.Must(program+" -c"), -1) {
			packets, _ := strconv.ParseUint(m[1], 10, 64)
			octets, _ := strconv.ParseUint(m[2], 10, 64)
			want[family+" "+m[3]+" "+m[4]] = [2]uint64{packets, octets}
		}
	}
	var compared, counted int
	for _, chain := range c.Chains {
		for _, r := range chain.Rules {
			w, ok := want[chain.Family+" "+chain.Name+" "+r.Text]
			if !ok || r.Packets == nil || r.Bytes == nil || *r.Packets != w[0] || *r.Bytes != w[1] {
				t.Errorf("%s %s %s: got %v, %v, want %v", chain.Family, chain.Name, r.Text, r.Packets, r.Bytes, w)
				continue
			}
			compared++
			counted += int(w[0])
		}
	}
	if compared != 16 || counted == 0 {
		t.Errorf("compared %d rules with %d packets in all", compared, counted)
	}
}

// connect gives the node an uplink that leads nowhere and a pod behind a veth.
func connect(t *testing.T, n *labtest.Namespace) *labtest.Namespace {
	t.Helper()
	pod := labtest.New(t)
	sleep := exec.Command("sleep", "600") // a process for ip to find the namespace by
	if err := pod.Start(sleep); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	}()
	n.Must("ip link add vpod type veth peer name eth0 netns " + strconv.Itoa(sleep.Process.Pid))
	n.Shell(`
		ip link add up0 type bridge
		for d in up0 vpod; do ip link set $d up; done
		ip addr add 10.244.1.1/24 dev vpod
		ip addr add fd00:244:0:1::1/64 dev vpod nodad
		ip addr add 192.0.2.1/24 dev up0
		ip addr add 2001:db8:1::1/64 dev up0 nodad
		ip route add 198.51.100.0/24 via 192.0.2.2 dev up0
		ip route add 2001:db8::/64 via 2001:db8:1::2 dev up0
		ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:01 dev up0
		ip neigh add 2001:db8:1::2 lladdr 02:00:00:00:00:01 dev up0
		echo 1 > /proc/sys/net/ipv4/ip_forward
		echo 1 > /proc/sys/net/ipv6/conf/all/forwarding`)
	pod.Shell(`
		ip addr add 10.244.1.5/24 dev eth0
		ip addr add fd00:244:0:1::5/64 dev eth0 nodad
		ip link set eth0 up
		ip route add default via 10.244.1.1
		ip route add default via fd00:244:0:1::1`)
	return pod
}

var savedRule = regexp.MustCompile(`(?m)^\[(\d+):(\d+)\] -A (\S+) (.*)$`)

func TestCheckInTheWrongNamespaceProvesNothing(t *testing.T) {
	program := buildFlanwatch(t)
	n := labtest.New(t)
	out, err := n.Run(program, "check", "-o", "json")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != cli.ExitUnreadable {
		t.Fatalf("%v: %s", err, out)
	}
	c := decode(t, []byte(out))
	if len(c.Findings) != 0 || len(c.Unreadable) != 1 || !strings.Contains(c.Unreadable[0].Why, "--netns") {
		t.Errorf("%+v", c)
	}
}

func TestCheckWithoutThePrivilegeNamesIt(t *testing.T) {
	labtest.RequireTools(t, "setpriv")
	program := buildFlanwatch(t)
	n := node(t)
	n.Feed(rules4, "iptables-nft-restore")
	n.Flanneld("--ip-masq")
	out, err := n.Run("setpriv", "--bounding-set=-all", "--inh-caps=-all", program, "check", "-o", "json")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != cli.ExitUnreadable {
		t.Fatalf("%v: %s", err, out)
	}
	c := decode(t, []byte(out))
	var why []string
	for _, u := range c.Unreadable {
		why = append(why, u.What+": "+u.Why)
	}
	if !strings.Contains(strings.Join(why, "\n"), "CAP_NET_ADMIN") {
		t.Errorf("unreadable: %q", why)
	}
	for _, f := range c.Findings {
		if f.Severity != "info" {
			t.Errorf("finding %s: %s", f.ID, f.Summary)
		}
	}
}
