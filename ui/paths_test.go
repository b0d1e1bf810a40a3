package ui

import (
	"net/netip"
	"strings"
	"testing"

	"flanwatch/flannel"
	"flanwatch/flannel/path"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

const pathRules = `*filter
:FORWARD DROP [17:1020]
:cali-FORWARD - [0:0]
:cali-from-wl - [0:0]
:FLANNEL-FWD - [0:0]
[91004:7280320] -A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD
[60000:4800000] -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
[14012:840720] -A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
[88100:7048000] -A cali-FORWARD -i cni0 -m comment --comment "cali:8ZoYfO5HKXWbB3pk" -j cali-from-wl
[1709:102540] -A cali-from-wl ! -d 10.244.0.0/16 -m comment --comment "cali:pKUuWjSz6HvhK2dC" -j DROP
[9:540] -A cali-from-wl -m set --match-set cali40s:blocked dst -j DROP
[8000:480000] -A FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
[6012:360720] -A FLANNEL-FWD -d 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
*nat
:POSTROUTING ACCEPT [0:0]
:FLANNEL-POSTRTG - [0:0]
[311007:18660420] -A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
[0:0] -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
[1204:72240] -A FLANNEL-POSTRTG -s 10.244.3.0/24 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j RETURN
[0:0] -A FLANNEL-POSTRTG -s 10.244.0.0/16 -d 10.244.3.0/24 -m comment --comment "flanneld masq" -j RETURN
[0:0] -A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.3.0/24 -m comment --comment "flanneld masq" -j RETURN
[309803:18588180] -A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
`

// withPaths is a node on which a policy of Calico keeps pods from the outside, and a set that was not read is open.
func withPaths() *incident.View {
	v := healthy()
	rs, err := flannel.ParseSave(pathRules, flannel.IptablesNft, flannel.IPv4)
	if err != nil {
		panic(err)
	}
	facts := path.Facts{
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")}, Remote: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		Pods: []netip.Addr{netip.MustParseAddr("10.244.3.17")}, Bridge: "cni0", Tunnel: "flannel.1", Uplink: "eth0",
		Addresses: []path.Address{
			{Addr: netip.MustParseAddr("10.244.3.0"), Interface: "flannel.1"}, {Addr: netip.MustParseAddr("192.0.2.10"), Interface: "eth0"},
		},
	}
	wanted := map[path.Name]path.Kind{path.PodToOutside: path.Masqueraded, path.NodeToRemotePod: path.Unknown}
	v.Paths = incident.PathsView{State: flannel.Known}
	for _, p := range path.New(path.Tables{Chains: rs.Chains}, facts).Paths() {
		want := wanted[p.Packet.Path]
		if want == "" {
			want = path.Unchanged
		}
		v.Paths.List = append(v.Paths.List, diagnose.Path{Verdict: p, Expected: want})
	}
	return v
}

func onPaths(m *model) { m.page = pagePaths }

func onOpenPath(m *model) {
	m.page = pagePaths
	m.path.move(pathKeys(m.paths()), 1)
}

var pathScenes = []scene{
	{"paths", withPaths, onPaths},
	{"paths-uncertain", withPaths, onOpenPath},
	{"paths-unread", func() *incident.View {
		v := healthy()
		v.Paths = incident.PathsView{State: flannel.Unreadable, Why: "read rules of all owners: changed whenever it was read"}
		return v
	}, onPaths},
}

func TestAPathLeadsToTheChainThatDecidesIt(t *testing.T) {
	tt := open(t, 100, 30, withPaths(), nil)
	tt.shows("Timeline")
	tt.keys("v")
	tt.shows("Paths 5")
	tt.shows("pod-to-outside")
	tt.keys("\r")
	tt.looksAt(chainID(flannel.IptablesNft, flannel.IPv4, "filter", "cali-from-wl").String())
	tt.shows("reading")
	tt.keys("\x1b")
	tt.shows("Paths 5")
	tt.keys("v")
	tt.shows("Base chains")
	tt.keys("v")
	tt.shows("Timeline")
}

func TestAPathIsCopiedWithItsTrail(t *testing.T) {
	m := still(t, withPaths(), Options{})
	onPaths(m)
	text := m.pathCopy()
	for _, want := range []string{"pod-to-outside (v4): dropped, wanted masqueraded", "10.244.3.17 → 192.0.2.1", "cali-from-wl 1 (Calico)"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}
