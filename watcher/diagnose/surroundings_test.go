package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
)

// housed gives a node its surroundings: a bridge with two pods, the tunnel to another node, and every switch on.
func housed(f Facts) Facts {
	f.Around = Surroundings{
		Routing: flannel.Know(Routing{
			Links: []Interface{
				{Name: "cni0", Type: "bridge", Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.1.1/24")}},
				{Name: "flannel.1", Type: "vxlan", Port: 8472, Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/32")}},
			},
			Uplink: "eth0", Ports: 2, Whole: 1,
			Pods:   []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("10.244.1.6")},
			Remote: prefixList("10.244.2.0/24"),
		}, "rtnetlink", now),
		Signs:    flannel.Know([]Sign{{Owner: "kube-proxy", What: "process kube-proxy"}}, "", now),
		Lock:     flannel.Miss[Lock](flannel.Absent, "nobody holds it", "/run/xtables.lock", now),
		Counters: flannel.Know([]Counter{{Name: "UdpInCsumErrors", Total: 12}}, "", now),
		Tools:    flannel.Know(map[string]Tool{"iptables": {Path: "/usr/sbin/iptables"}, "nft": {Path: "/usr/sbin/nft"}}, "", now),
	}
	for _, name := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "net.bridge.bridge-nf-call-iptables"} {
		f.turn(name, "1")
	}
	f.Remains = flannel.Know(Remains{Configs: []CNIConfig{{Path: "/etc/cni/net.d/10-flannel.conflist", Name: "cbr0", Types: []string{"flannel", "portmap"}}}}, "/", now)
	return f
}

// turn sets a switch.
func (f *Facts) turn(name, value string) {
	f.Around.Settings = slices.DeleteFunc(slices.Clone(f.Around.Settings), func(s Setting) bool { return s.Name == name })
	f.Around.Settings = append(f.Around.Settings, Setting{Name: name, Value: flannel.Know(value, "", now)})
}

func (f *Facts) lose(name string) {
	f.turn(name, "")
	f.Around.Settings[len(f.Around.Settings)-1].Value = flannel.Miss[string](flannel.Absent, "", "", now)
}

func TestSurroundingsThatHarmPodsAreTold(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*Facts)
		want  []string
	}{
		"a healthy node": {func(*Facts) {}, nil},
		"forwarding is off": {
			func(f *Facts) { f.turn("net.ipv4.ip_forward", "0") },
			[]string{"critical ip-forward-off"},
		},
		"forwarding is off where there are no pods": {
			func(f *Facts) {
				f.turn("net.ipv4.ip_forward", "0")
				f.Around.Routing.Value.Links, f.Around.Routing.Value.Pods = nil, nil
			},
			nil,
		},
		"forwarding of IPv6 is off and there is none": {
			func(f *Facts) { f.turn("net.ipv6.conf.all.forwarding", "0") },
			nil,
		},
		"a file turns forwarding off at boot": {
			func(f *Facts) {
				f.Remains.Value.Boot = []BootSetting{{Name: "net.ipv4.ip_forward", Value: "0", Path: "/etc/sysctl.d/9.conf", Line: 2}}
			},
			[]string{"info ip-forward-off"},
		},
		"bridged packets pass no rule": {
			func(f *Facts) { f.turn("net.bridge.bridge-nf-call-iptables", "0") },
			[]string{"warning bridge-nf-call-off"},
		},
		"bridged packets pass no rule and nobody needs it": {
			func(f *Facts) {
				f.turn("net.bridge.bridge-nf-call-iptables", "0")
				f.Around.Signs.Value = nil
			},
			[]string{"info bridge-nf-call-off"},
		},
		"br_netfilter is not loaded": {
			func(f *Facts) { f.lose("net.bridge.bridge-nf-call-iptables") },
			[]string{"warning br-netfilter-missing"},
		},
		"br_netfilter is not loaded and nobody needs it": {
			func(f *Facts) {
				f.lose("net.bridge.bridge-nf-call-iptables")
				f.Around.Signs.Value = nil
			},
			nil,
		},
		"all routes are gone": {
			func(f *Facts) {
				f.Around.Routing.Value.Whole = 0
				f.Around.Routing.Value.Peers = []Peer{{Link: "flannel.1", Node: netip.MustParseAddr("192.0.2.12"), Neighbour: true, Forward: true}}
			},
			[]string{"critical route-missing"},
		},
		"one route of two is gone": {
			func(f *Facts) {
				f.Around.Routing.Value.Peers = []Peer{{Link: "flannel.1", Neighbour: true, Forward: true}}
			},
			[]string{"warning route-missing"},
		},
		"the lock has been held for a minute, with legacy tables": {
			func(f *Facts) {
				f.Around.Lock = flannel.Know(Lock{PID: 811, Comm: "x", Since: now.Add(-time.Minute)}, "", now)
			},
			[]string{"warning lock-held"},
		},
		"the lock is held for a moment": {
			func(f *Facts) {
				f.Around.Lock = flannel.Know(Lock{PID: 811, Comm: "x", Since: now.Add(-time.Second)}, "", now)
			},
			nil,
		},
		"broken packets arrive": {
			func(f *Facts) { f.Around.Counters.Value[0].Rose, f.Around.Counters.Value[0].Over = 9, time.Minute },
			[]string{"warning vxlan-checksum"},
		},
		"chains of Calico without Calico": {
			func(f *Facts) {
				f.Around.Signs.Value = append(f.Around.Signs.Value, Sign{Owner: "Calico", What: "chain cali-FORWARD", Chain: fwd4})
			},
			[]string{"warning foreign-leftover"},
		},
		"chains of Calico beside Felix, as on Canal": {
			func(f *Facts) {
				f.Around.Signs.Value = append(f.Around.Signs.Value, Sign{Owner: "Calico", What: "process calico-node"},
					Sign{Owner: "Calico", What: "chain cali-FORWARD", Chain: fwd4})
			},
			nil,
		},
		"a port of the node leads nowhere": {
			func(f *Facts) { f.Remains.Value.Ports = []HostPort{{Port: 443, Protocol: "tcp", Pod: "web/a"}} },
			[]string{"warning hostport-missing"},
		},
		"ports of the node are somebody else's": {
			func(f *Facts) {
				f.Remains.Value.Ports = []HostPort{{Port: 443, Protocol: "tcp"}}
				f.Remains.Value.Configs[0].Types = []string{"cilium-cni"}
			},
			nil,
		},
		"reservations have used up the subnet": {
			func(f *Facts) { f.Remains.Value.Pools = []Pool{{Path: "/var/lib/cni/networks/cbr0", Reserved: 253}} },
			[]string{"warning ipam-stale"},
		},
		"a pod more is reserved than is there": {
			func(f *Facts) { f.Remains.Value.Pools = []Pool{{Path: "/var/lib/cni/networks/cbr0", Reserved: 3}} },
			nil,
		},
		"the bridge is of another subnet": {
			func(f *Facts) {
				f.Around.Routing.Value.Links[0].Addresses = []netip.Prefix{netip.MustParsePrefix("10.244.9.1/24")}
			},
			[]string{"warning subnet-mismatch"},
		},
		"a node without programs": {
			func(f *Facts) { f.Around.Tools.Value = map[string]Tool{} },
			nil,
		},
		"saved rules hold Flannel's": {
			func(f *Facts) {
				f.Remains.Value.Saved = []SavedRules{{Path: "/etc/iptables/rules.v4", Lines: []int{3}}}
			},
			[]string{"info leftover-saved-rules"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := today()
			f = housed(f)
			c.spoil(&f)
			a := Assess(f, History{})
			wantIDs(t, a, c.want...)
			if len(a.Remains) > 0 {
				t.Errorf("left over while Flannel runs: %+v", a.Remains)
			}
		})
	}
}

// TestWhatIsNotReadIsNotMissing: a node of which nothing but its rules is known gives no finding about its surroundings.
func TestWhatIsNotReadIsNotMissing(t *testing.T) {
	f, _ := today()
	wantIDs(t, Assess(f, History{}))
	f = housed(f)
	f.Around = Surroundings{Routing: f.Around.Routing}
	wantIDs(t, Assess(f, History{}))
}

func TestAfterAMigrationEverythingThatIsLeftIsToldWithWhatBringsItBack(t *testing.T) {
	f, _ := today()
	f = housed(f.without())
	f.Links = flannel.Know([]Link{{Name: "vxlan.calico", Type: "vxlan", Up: true}}, "", now)
	r := &f.Around.Routing.Value
	r.Pods, r.Ports = []netip.Addr{netip.MustParseAddr("10.244.77.130"), netip.MustParseAddr("10.244.1.5")}, 0
	r.Holes = []Route{{To: netip.MustParsePrefix(subnet4), Protocol: "boot"}, {To: netip.MustParsePrefix("10.244.77.128/26"), Protocol: "bird"}}
	f.Remains.Value.Configs = append([]CNIConfig{{Path: "/etc/cni/net.d/10-calico.conflist", Types: []string{"calico"}}}, f.Remains.Value.Configs...)
	f.Remains.Value.Files = []File{{Path: "/run/flannel/subnet.env", Written: now.Wall}}
	f.Remains.Value.Pools = []Pool{{Path: "/var/lib/cni/networks/cbr0", Reserved: 2}}
	f.Remains.Value.Saved = []SavedRules{{Path: "/etc/iptables/rules.v4", Lines: []int{3, 4}, First: "-A FLANNEL-FWD"}}
	a := Assess(f, History{})
	wantIDs(t, a, "warning leftover-chain", "warning leftover-chain", "warning pod-snat", "warning leftover-saved-rules",
		"info leftover-link", "info leftover-link", "info leftover-route", "info leftover-file", "info leftover-file", "info leftover-file")
	var got []string
	for _, x := range a.Remains {
		state := "dead"
		if x.Active {
			state = "active"
		}
		got = append(got, string(x.Kind)+" "+x.Object+" "+state+" "+strings.Join(x.Returns, "; "))
	}
	want := []string{
		"chain iptables-nft ip nat FLANNEL-POSTRTG active /etc/iptables/rules.v4, lines 3, 4",
		"chain iptables-nft ip filter FLANNEL-FWD active /etc/iptables/rules.v4, lines 3, 4",
		"link cni0 dead ", "link flannel.1 dead ", "route blackhole 10.244.1.0/24 active ",
		"file /run/flannel/subnet.env dead ", "cni-config /etc/cni/net.d/10-flannel.conflist dead it lies on the disk",
		"reservations /var/lib/cni/networks/cbr0 dead it lies on the disk", "saved-rules /etc/iptables/rules.v4 active it lies on the disk",
	}
	if !slices.Equal(got, want) {
		t.Errorf("left over:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, x := range a.Findings {
		if x.ID == "pod-snat" && (!strings.Contains(strings.Join(x.Detail, "\n"), "10.244.77.130") || strings.Contains(strings.Join(x.Detail, "\n"), "10.244.1.5 on")) {
			t.Errorf("pod-snat: %q", x.Detail)
		}
	}
}

func TestTheAddressBehindARange(t *testing.T) {
	for in, want := range map[string]string{"10.244.0.0/24": "10.244.1.2", "10.244.3.128/25": "10.244.4.2", "fd00::/64": "fd00:0:0:1::2"} {
		p := netip.MustParsePrefix(in)
		if got := beyond([]netip.Prefix{p}, p.Addr().Next()); got.String() != want {
			t.Errorf("behind %s is %s, want %s", in, got, want)
		}
	}
}
