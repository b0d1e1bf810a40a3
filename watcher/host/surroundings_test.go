package host

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

const snmp = `Ip: Forwarding DefaultTTL InReceives InHdrErrors InAddrErrors
Ip: 1 64 1000 7 2
Udp: InDatagrams NoPorts InErrors InCsumErrors
Udp: 5 0 3 3
TcpExt: SyncookiesSent
TcpExt: 0
`

func TestCountersAreReadByTheirNames(t *testing.T) {
	got := map[string]uint64{}
	parsePairs(snmp, got)
	parseSNMP6("Ip6InHdrErrors                  \t4\nUdp6InCsumErrors 9\nbroken\n", got)
	for name, want := range map[string]uint64{"IpInHdrErrors": 7, "UdpInCsumErrors": 3, "Ip6InHdrErrors": 4, "Udp6InCsumErrors": 9} {
		if got[name] != want {
			t.Errorf("%s is %d, want %d", name, got[name], want)
		}
	}
}

func TestACounterRisesOnlyByWhatWasSeen(t *testing.T) {
	at := func(s int) flannel.Time { return flannel.Time{Boot: time.Duration(s) * time.Second, Session: "x"} }
	var r risen
	look := func(total uint64, s int) uint64 {
		for _, c := range r.next(map[string]uint64{"UdpInCsumErrors": total}, at(s)) {
			if c.Name == "UdpInCsumErrors" {
				return c.Rose
			}
		}
		t.Fatal("not told")
		return 0
	}
	if n := look(500, 0); n != 0 {
		t.Errorf("rose by %d at the first look", n)
	}
	if n := look(520, 30); n != 20 {
		t.Errorf("rose by %d, want 20", n)
	}
	look(520, 90)
	if n := look(520, 155); n != 0 {
		t.Errorf("still rose by %d a minute later", n)
	}
	if n := look(3, 157); n != 0 {
		t.Errorf("rose by %d where it fell", n)
	}
}

func TestTheHolderOfALockIsFound(t *testing.T) {
	const text = `1: POSIX  ADVISORY  WRITE 12 00:1a:2034 0 EOF
2: FLOCK  ADVISORY  WRITE 811 00:1a:2034 0 EOF
2: -> FLOCK  ADVISORY  WRITE 900 00:1a:2035 0 EOF
3: FLOCK  ADVISORY  WRITE -1 fd:01:7 0 EOF
4: FLOCK
`
	for name, c := range map[string]struct {
		major, minor uint32
		inode        uint64
		pid          int
		held         bool
	}{
		"held":                              {0, 0x1a, 2034, 811, true},
		"only waited for":                   {0, 0x1a, 2035, 0, false},
		"by a process that cannot be seen":  {0xfd, 1, 7, 0, true},
		"another file of the same number":   {0, 0x1b, 2034, 0, false},
		"held by ranges, which is no flock": {0, 0x1a, 12, 0, false},
	} {
		if pid, held := parseLocks(text, c.major, c.minor, c.inode); pid != c.pid || held != c.held {
			t.Errorf("%s: %d %v", name, pid, held)
		}
	}
}

func TestTheLastFileDecidesASwitchAtBoot(t *testing.T) {
	folders := map[string][]string{
		"/etc/sysctl.d":     {"50-cni.conf", "99-hardening.conf", "README"},
		"/run/sysctl.d":     {"50-cni.conf", "60-more.conf"},
		"/usr/lib/sysctl.d": {"10-default.conf"},
	}
	files := bootFiles(func(folder string) []string { return folders[folder] })
	want := []string{
		"/usr/lib/sysctl.d/10-default.conf", "/etc/sysctl.d/50-cni.conf", "/run/sysctl.d/60-more.conf",
		"/etc/sysctl.d/99-hardening.conf", "/etc/sysctl.conf",
	}
	if !slices.Equal(files, want) {
		t.Fatalf("files %q", files)
	}
	texts := map[string]string{
		want[1]: "net.ipv4.ip_forward = 1\nnet/bridge/bridge-nf-call-iptables=1\n",
		want[3]: "# hardened\n;net.ipv4.ip_forward=9\n-net.ipv4.conf.all.forwarding=0\nkernel.x=1\n",
	}
	var known []diagnose.BootSetting
	for _, f := range files {
		known = parseSysctl(f, texts[f], known)
	}
	got := []diagnose.BootSetting{
		{Name: "net.bridge.bridge-nf-call-iptables", Value: "1", Path: want[1], Line: 2},
		{Name: "net.ipv4.ip_forward", Value: "0", Path: want[3], Line: 3},
	}
	if !reflect.DeepEqual(known, got) {
		t.Errorf("%+v", known)
	}
}

func TestSavedRulesAreFoundWithTheirLines(t *testing.T) {
	networks := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	for name, c := range map[string]struct {
		text  string
		lines []int
	}{
		"iptables-save": {"*nat\n:FLANNEL-POSTRTG - [0:0]\n-A POSTROUTING -j KUBE-POSTROUTING\n-A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG\nCOMMIT\n", []int{2, 4}},
		"nft":           {"table ip flannel-ipv4 {\n\tchain postrtg {\n\t}\n}\n", []int{1}},
		"no comments":   {"-A POSTROUTING -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE\n-A POSTROUTING -s 172.17.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE\n", []int{1}},
		"commented out": {"# -A FLANNEL-FWD -j ACCEPT\n", nil},
		"of others":     {"-A FORWARD -j DOCKER-USER\n", nil},
	} {
		if got, found := savedRules("/f", c.text, networks); !slices.Equal(got.Lines, c.lines) || found != (c.lines != nil) {
			t.Errorf("%s: lines %v", name, got.Lines)
		}
	}
}

func TestAResultOfThePluginsNamesPodAndPorts(t *testing.T) {
	r, ok := parseResult([]byte(`{"containerId":"c0","cniArgs":[["K8S_POD_NAMESPACE","web"],["K8S_POD_NAME","a-0"],["odd"]],
		"capabilityArgs":{"portMappings":[{"hostPort":443,"protocol":"TCP"},{"hostPort":0,"protocol":"udp"},{"hostPort":70000}]},
		"result":{"ips":[{"address":"10.244.1.5/24"},{"address":"x"}]}}`))
	if !ok || r.container != "c0" || len(r.addresses) != 1 || len(r.ports) != 1 || r.ports[0] != (diagnose.HostPort{Port: 443, Protocol: "tcp", Pod: "web/a-0"}) {
		t.Errorf("%+v", r)
	}
	c, ok := parseCNI("/x", []byte(`{"name":"cbr0","plugins":[{"type":"flannel"},{"type":"portmap"}]}`))
	if !ok || !c.Flannels() || c.Name != "cbr0" {
		t.Errorf("%+v", c)
	}
}

// FuzzNodeFiles feeds every reader of a node's files with anything: each ends and tells no line that is not there.
func FuzzNodeFiles(f *testing.F) {
	for _, seed := range []string{snmp, "1: FLOCK  ADVISORY  WRITE 811 00:1a:2034 0 EOF\n", "net.ipv4.ip_forward=0\n", "-A FLANNEL-FWD\n", `{"plugins":[{}]}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parsePairs(text, map[string]uint64{})
		parseSNMP6(text, map[string]uint64{})
		parseLocks(text, 0, 0x1a, 2034)
		parseCNI("/x", []byte(text))
		parseResult([]byte(text))
		lines := strings.Count(text, "\n") + 1
		for _, b := range parseSysctl("/x", text, nil) {
			if b.Line < 1 || b.Line > lines {
				t.Errorf("line %d of %d", b.Line, lines)
			}
		}
		if s, found := savedRules("/x", text, nil); found && s.Lines[len(s.Lines)-1] > lines {
			t.Errorf("lines %v of %d", s.Lines, lines)
		}
	})
}
