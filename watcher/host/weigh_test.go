package host

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

func TestSubnetsFromLinksAndRoutes(t *testing.T) {
	addr := netip.MustParseAddr
	for name, c := range map[string]struct {
		kernel kernel
		want   []string
	}{
		"nothing": {kernel{}, nil},
		"the bridge": {
			kernel{bridge: nets("10.244.1.1/24", "fd00:244:0:1::1/64")},
			[]string{"address of cni0: [10.244.1.0/24 fd00:244:0:1::/64]"},
		},
		"the blackhole route of RKE2 canal": {
			kernel{own: map[string][]netip.Addr{"flannel.1": {addr("10.42.3.0")}}, holes: nets("10.42.3.0/24", "192.168.5.64/26")},
			[]string{"blackhole route at the address of flannel.1: [10.42.3.0/24]"},
		},
		"the length of other nodes' subnets": {
			kernel{
				own:  map[string][]netip.Addr{"flannel.1": {addr("10.244.1.0")}},
				over: map[string][]netip.Prefix{"flannel.1": nets("10.244.0.0/24", "10.244.2.0/24")},
			},
			[]string{"address of flannel.1 with the length of the routes over it: [10.244.1.0/24]"},
		},
		"lengths that disagree tell nothing": {
			kernel{
				own:  map[string][]netip.Addr{"flannel.1": {addr("10.244.1.0")}},
				over: map[string][]netip.Prefix{"flannel.1": nets("10.244.0.0/24", "10.244.2.0/25")},
			}, nil,
		},
		"an address that begins no subnet of that length": {
			kernel{
				own:  map[string][]netip.Addr{"flannel.1": {addr("10.244.1.7")}},
				over: map[string][]netip.Prefix{"flannel.1": nets("10.244.0.0/24")},
			}, nil,
		},
		"the other family's length does not count": {
			kernel{
				own:  map[string][]netip.Addr{"flannel-v6.1": {addr("fd00:244:0:1::")}},
				over: map[string][]netip.Prefix{"flannel-v6.1": nets("10.244.0.0/24", "fd00:244:0:2::/64")},
			},
			[]string{"address of flannel-v6.1 with the length of the routes over it: [fd00:244:0:1::/64]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range c.kernel.claims() {
				got = append(got, fmt.Sprintf("%s: %v", strings.TrimPrefix(c.Source, sourceLinks), c.Subnets))
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("claims\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

func TestDistribution(t *testing.T) {
	flanneld := diagnose.Process{Kind: diagnose.ProcFlanneld, Comm: "flanneld", Cmdline: []string{"flanneld", "--kube-subnet-mgr"}, Env: map[string]string{}}
	etcd := diagnose.Process{Kind: diagnose.ProcFlanneld, Comm: "flanneld", Cmdline: []string{"flanneld"}, Env: map[string]string{}}
	k3s := diagnose.Process{Kind: diagnose.ProcK3s, Comm: "k3s-server"}
	near := func(comms ...string) (out []diagnose.Process) {
		for _, c := range comms {
			out = append(out, diagnose.Process{Comm: c})
		}
		return out
	}
	for name, c := range map[string]struct {
		procs []diagnose.Process
		near  []diagnose.Process
		files []string
		want  string
	}{
		"kube-flannel": {
			[]diagnose.Process{flanneld}, near("kubelet"), []string{"/etc/cni/net.d/10-flannel.conflist"}, "kube-flannel",
		},
		"kube-flannel without CNI file":    {[]diagnose.Process{flanneld}, nil, nil, "kube-flannel"},
		"flanneld as a service with etcd":  {[]diagnose.Process{etcd}, nil, nil, "flanneld with etcd"},
		"Calico's canal":                   {[]diagnose.Process{flanneld}, near("calico-node"), nil, "canal"},
		"canal by its CNI file":            {[]diagnose.Process{flanneld}, nil, []string{"/etc/cni/net.d/10-canal.conflist"}, "canal"},
		"RKE2 canal":                       {[]diagnose.Process{flanneld}, near("rke2", "calico-node"), nil, "rke2-canal"},
		"RKE2 canal whose pods are gone":   {nil, nil, []string{"/etc/cni/net.d/10-canal.conflist", rke2Data}, "rke2-canal"},
		"RKE2 with Flannel alone":          {[]diagnose.Process{flanneld}, near("rke2"), nil, "rke2-flannel"},
		"k3s":                              {[]diagnose.Process{k3s}, nil, []string{k3sNetConf}, "k3s"},
		"k3s that is stopped":              {nil, nil, []string{k3sNetConf}, "k3s"},
		"Calico alone is no canal":         {nil, near("calico-node"), nil, ""},
		"nothing":                          {nil, nil, nil, ""},
		"flanneld wins over k3s leftovers": {[]diagnose.Process{flanneld}, nil, []string{k3sNetConf}, "kube-flannel"},
	} {
		t.Run(name, func(t *testing.T) {
			r := distribution(flannel.Know(c.procs, "", flannel.Time{}), c.near, c.files, flannel.Time{})
			if r.Value != c.want || (r.State == flannel.Known) != (c.want != "") || r.State == flannel.Known && r.Source == "" {
				t.Errorf("distribution %+v, want %q", r, c.want)
			}
		})
	}
}

func TestSavedFactsComeBack(t *testing.T) {
	written := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	n := Combine(Evidence{Claims: []Claim{{
		Source: SubnetEnv, Written: written, Networks: nets("10.244.0.0/16"), Subnets: nets("10.244.1.0/24"),
		Settings: Settings{IPMasq: yes(), ForwardRules: no(), NFTables: no(), Resync: time.Minute, MTU: 1450},
	}}}, flannel.Time{})
	data, err := json.Marshal(toSaved(n, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	c, ok := parseSaved(data, "/state/node.json")
	if !ok {
		t.Fatalf("not understood: %s", data)
	}
	back := Combine(Evidence{Claims: []Claim{c}}, flannel.Time{})
	if prefixesRead(back.Networks) != "[10.244.0.0/16] from remembered in /state/node.json, from /run/flannel/subnet.env" || !back.Written.Equal(written) {
		t.Errorf("networks %s, written %v", prefixesRead(back.Networks), back.Written)
	}
	if !back.IPMasq.Value || back.ForwardRules.State != flannel.Known || back.ForwardRules.Value ||
		back.RandomFully.State != flannel.Absent || back.Resync.Value != time.Minute || back.MTU.Value != 1450 {
		t.Errorf("settings %+v", back)
	}
	if worthSaving(back) {
		t.Error("what was remembered would be remembered again")
	}
}

func TestOnlySolidFactsAreSaved(t *testing.T) {
	node := func(source string) flannel.Node {
		return Combine(Evidence{Claims: []Claim{{Source: source, Networks: nets("10.244.0.0/16"), Subnets: nets("10.244.1.0/24")}}}, flannel.Time{})
	}
	for source, want := range map[string]bool{
		SubnetEnv: true, "/proc/7/root/run/flannel/subnet.env": true, sourceGiven: false,
		sourceRules + "iptables-nft": false, sourceLinks + "address of cni0": false, "flags of kube-proxy (pid 7)": false,
	} {
		if got := worthSaving(node(source)); got != want {
			t.Errorf("%s: %v, want %v", source, got, want)
		}
	}
	if worthSaving(flannel.Node{}) {
		t.Error("nothing is worth saving")
	}
}

func FuzzSaved(f *testing.F) {
	f.Add([]byte(`{"schema":"flanwatch.node/v1","networks":["10.244.0.0/16"],"subnets":["10.244.1.1/24"],"resync":-1,"mtu":-5}`))
	f.Add([]byte(`{"schema":"flanwatch.node/v1","networks":[""]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, ok := parseSaved(data, "node.json")
		if ok && (c.Resync < 0 || c.MTU < 0) {
			t.Errorf("%+v", c)
		}
		for _, p := range append(c.Networks, c.Subnets...) {
			if !p.IsValid() || p != p.Masked() {
				t.Errorf("prefix %v", p)
			}
		}
	})
}
