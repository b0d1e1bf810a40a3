package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"flanwatch/flannel"
	"flanwatch/flannel/path"
)

const (
	pathFlannel = `*filter
:FORWARD ACCEPT [0:0]
:FLANNEL-FWD - [0:0]
{first}-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
*nat
:POSTROUTING ACCEPT [0:0]
:FLANNEL-POSTRTG - [0:0]
{nat}-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
{masq}-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
`
)

// onPaths is a node with Flannel's rules and others before them, and what becomes of packets there.
func onPaths(t *testing.T, first, nat, masq string, change func(string) string) Facts {
	t.Helper()
	text := strings.NewReplacer("{first}", first, "{nat}", nat, "{masq}", masq).Replace(pathFlannel)
	if change != nil {
		text = change(text)
	}
	rs, err := flannel.ParseSave(text, flannel.IptablesNft, flannel.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	network, subnet := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.244.1.0/24")
	f := facts([]netip.Prefix{network}, []netip.Prefix{subnet})
	f.Rules[flannel.IptablesNft] = flannel.Know(*rs, "nf_tables", now)
	about := path.Facts{
		Subnets: []netip.Prefix{subnet}, Remote: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}, Bridge: "cni0", Tunnel: "flannel.1",
		Uplink: "eth0", Foreign: []netip.Prefix{netip.MustParsePrefix("10.244.77.130/32")}, ForeignBridge: "cali1",
		Addresses: []path.Address{{Addr: netip.MustParseAddr("10.244.1.0"), Interface: "flannel.1"}},
	}
	f.Paths = flannel.Know(Paths{Facts: []path.Facts{about, {}}, Verdicts: path.New(path.Tables{Chains: rs.Chains}, about).Paths()}, "", now)
	return f
}

func TestPathsThatDoNotGoAsTheyShouldAreFound(t *testing.T) {
	replace := func(old, with string) func(string) string {
		return func(s string) string { return strings.ReplaceAll(s, old, with) }
	}
	for name, c := range map[string]struct {
		first, nat, masq string
		change           func(string) string
		links            []Link
		id               string // of the finding, "" for none of paths
		severity         Severity
		object           string // its end
		detail           string
	}{
		"a foreign rule drops before Flannel's accept": {
			first: "-A FORWARD -s 10.244.0.0/16 -j REJECT --reject-with icmp-port-unreachable\n",
			id:    "path-shadowed", severity: Critical, object: "filter FORWARD", detail: "1: -s 10.244.0.0/16 -j REJECT",
		},
		"leftovers of Calico drop": {
			first: ":cali-FORWARD - [0:0]\n-A FORWARD -j cali-FORWARD\n-A cali-FORWARD -s 10.244.0.0/16 -j DROP\n",
			id:    "foreign-drop", severity: Critical, object: "filter cali-FORWARD", detail: "pod-to-outside (v4)",
		},
		"a policy of a Calico that runs drops": {
			first: ":cali-FORWARD - [0:0]\n-A FORWARD -j cali-FORWARD\n-A cali-FORWARD -s 10.244.0.0/16 -j DROP\n",
			links: []Link{{Name: "cali1a2b3c", Type: "veth", Up: true}},
			id:    "foreign-drop", severity: Info, object: "filter cali-FORWARD",
		},
		"somebody accepts in POSTROUTING before Flannel": {
			nat: "-A POSTROUTING -s 10.244.0.0/16 -j ACCEPT\n",
			id:  "path-shadowed", severity: Critical, object: "nat POSTROUTING", detail: "wanted masqueraded",
		},
		"somebody masquerades between pods": {
			nat: "-A POSTROUTING -s 10.0.0.0/8 -j MASQUERADE\n",
			id:  "foreign-snat", severity: Warning, object: "nat POSTROUTING", detail: "pod-to-remote-pod (v4)",
		},
		"a rule of portmap has lost its match": {
			nat: ":CNI-HOSTPORT-MASQ - [0:0]\n-A POSTROUTING -j CNI-HOSTPORT-MASQ\n-A CNI-HOSTPORT-MASQ -j MASQUERADE\n",
			id:  "damaged-rule", severity: Warning, object: "nat CNI-HOSTPORT-MASQ",
		},
		"Flannel's accept stands before the policies": {
			change: replace("-j FLANNEL-FWD\n-A FLANNEL-FWD -s", "-j FLANNEL-FWD\n:cali-FORWARD - [0:0]\n-A FORWARD -j cali-FORWARD\n-A FLANNEL-FWD -s"),
			id:     "policy-shadowed", severity: Warning, object: "filter FORWARD",
		},
		"pods outside the subnet are masqueraded by Flannel": {id: "pod-snat", severity: Warning, object: "nat FLANNEL-POSTRTG", detail: "foreign-pod-to-remote-pod"},
	} {
		t.Run(name, func(t *testing.T) {
			f := onPaths(t, c.first, c.nat, c.masq, c.change)
			f.Links.Value = append(f.Links.Value, c.links...)
			a := Assess(f, History{})
			i := slices.IndexFunc(a.Findings, func(f Finding) bool { return f.ID == c.id && strings.HasSuffix(f.Object, c.object) })
			if i < 0 {
				t.Fatalf("no %s: %+v", c.id, a.Findings)
			}
			got := a.Findings[i]
			if got.Severity != c.severity || !strings.Contains(strings.Join(got.Detail, "\n"), c.detail) {
				t.Errorf("%s with %q", got.Severity, got.Detail)
			}
			if got.Remedy != RemedyNone || got.Refused == "" && c.id != "pod-snat" {
				t.Errorf("remedy %q, refused %q", got.Remedy, got.Refused)
			}
		})
	}
}

func TestAHealthyNodeHasNoFindingOfPaths(t *testing.T) {
	f := onPaths(t, "", "", "", nil)
	f.Paths.Value.Verdicts = slices.DeleteFunc(f.Paths.Value.Verdicts, func(v path.Verdict) bool { return v.Packet.Path == path.ForeignPodToRemotePod })
	a := Assess(f, History{})
	if len(a.Findings) != 0 || len(a.Paths) != 5 {
		t.Errorf("%d paths, %+v", len(a.Paths), a.Findings)
	}
	for _, p := range a.Paths {
		if !p.Well() || p.Expected == path.Unknown {
			t.Errorf("%s: %s, wanted %s", p, p.Kind, p.Expected)
		}
	}
}

func TestAnEffectIsToldWithItsCause(t *testing.T) {
	f := onPaths(t, "", "", "", func(s string) string {
		i := strings.Index(s, "-A FLANNEL-POSTRTG")
		return s[:i] + "COMMIT\n"
	})
	a := Assess(f, History{})
	if len(a.Findings) != 1 || a.Findings[0].ID != "chain-empty" {
		t.Fatalf("%+v", a.Findings)
	}
	if text := strings.Join(a.Findings[0].Detail, "\n"); !strings.Contains(text, "pod-to-outside (v4), 10.244.1.2 to 192.0.2.1: unchanged, wanted masqueraded") {
		t.Errorf("%s", text)
	}
}
