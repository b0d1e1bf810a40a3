package path

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
)

var facts = Facts{
	Subnets: prefixes("10.42.0.0/24", "fd00:42::/64"), Foreign: prefixes("10.42.77.128/26"),
	Remote: prefixes("10.42.1.0/24", "fd00:42:0:1::/64"), Pods: []netip.Addr{netip.MustParseAddr("10.42.0.5")},
	Addresses: []Address{
		{netip.MustParseAddr("192.0.2.10"), "eth0"}, {netip.MustParseAddr("10.42.0.1"), "cni0"}, {netip.MustParseAddr("10.42.0.0"), "flannel.1"},
	},
	Outside: []netip.Addr{netip.MustParseAddr("192.0.2.99")},
	Bridge:  "cni0", Tunnel: "flannel.1", Uplink: "eth0", Bridges: []string{"cni0"},
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// saved gives tables from the text of iptables-save, of one backend.
func saved(t testing.TB, b flannel.Backend, text string) Tables {
	t.Helper()
	rs, err := flannel.ParseSave(text, b, flannel.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	return Tables{Chains: rs.Chains}
}

// masq and fwd are what Flannel v0.21.3 and later write.
const (
	masq = `*nat
:POSTROUTING ACCEPT [0:0]
:FLANNEL-POSTRTG - [0:0]
FIRST-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.42.0.0/24 -d 10.42.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.42.0.0/16 -d 10.42.0.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s 10.42.0.0/16 -d 10.42.0.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.42.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.42.0.0/16 -d 10.42.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
`
	fwd = `*filter
:FORWARD DROP [0:0]
:FLANNEL-FWD - [0:0]
FIRST-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FLANNEL-FWD -s 10.42.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.42.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
`
)

// with puts rules before Flannel's own.
func with(text string, rules ...string) string {
	return strings.ReplaceAll(text, "FIRST", strings.Join(append(rules, ""), "\n"))
}

func TestTypicalStates(t *testing.T) {
	nft := flannel.IptablesNft
	healthy := map[Name]string{
		PodToOutside:          "masqueraded by FLANNEL-POSTRTG 5 flannel",
		PodToRemotePod:        "unchanged by FLANNEL-POSTRTG 2 flannel",
		RemotePodToPod:        "unchanged by FLANNEL-POSTRTG 3 flannel",
		OutsideToPod:          "unchanged by FLANNEL-POSTRTG 4 flannel",
		ForeignPodToRemotePod: "masqueraded by FLANNEL-POSTRTG 5 flannel",
		NodeToRemotePod:       "unchanged by FLANNEL-POSTRTG 2 flannel",
	}
	for name, c := range map[string]struct {
		text string
		want map[Name]string
	}{
		"Flannel with nothing beside it": {with(masq) + with(fwd), healthy},
		"an emptied chain": {
			"*nat\n:POSTROUTING ACCEPT [0:0]\n:FLANNEL-POSTRTG - [0:0]\n-A POSTROUTING -j FLANNEL-POSTRTG\nCOMMIT\n" + with(fwd),
			map[Name]string{PodToOutside: "unchanged by FLANNEL-FWD 1 flannel"},
		},
		"a policy that drops": {
			with(masq) + "*filter\n:FORWARD DROP [0:0]\n:DOCKER-USER - [0:0]\n-A FORWARD -j DOCKER-USER\nCOMMIT\n",
			map[Name]string{PodToOutside: "dropped by FORWARD 0 unknown", NodeToRemotePod: "unchanged by FLANNEL-POSTRTG 2 flannel"},
		},
		"residue of Calico that drops": {
			with(masq) + with(fwd, ":cali-FORWARD - [0:0]", "-A FORWARD -j cali-FORWARD", "-A cali-FORWARD -s 10.42.0.0/16 -j DROP"),
			map[Name]string{PodToOutside: "dropped by cali-FORWARD 1 Calico", OutsideToPod: "unchanged by FLANNEL-POSTRTG 4 flannel"},
		},
		"a foreign rule that translates before": {
			with(masq, "-A POSTROUTING -s 10.42.0.0/16 -o flannel.+ -j SNAT --to-source 192.0.2.10") + with(fwd),
			map[Name]string{PodToRemotePod: "masqueraded by POSTROUTING 1 unknown", PodToOutside: healthy[PodToOutside]},
		},
		"a rule that holds by chance": {
			with(masq) + with(fwd, "-A FORWARD -m limit --limit 3/min -j DROP"),
			map[Name]string{PodToOutside: "may by FLANNEL-POSTRTG 5 flannel because -m limit --limit 3/min"},
		},
		"a rule that may translate, of which the rest does not hold": {
			with(masq, "-A POSTROUTING -d 203.0.113.0/24 -m u32 --u32 x -j SNAT --to-source 192.0.2.10") + with(fwd), healthy,
		},
		"a hop limit that is too small": {
			with(masq) + with(fwd) + "*mangle\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -i cni0 -j TTL --ttl-set 1\nCOMMIT\n",
			map[Name]string{PodToOutside: "dropped by PREROUTING 1 unknown", RemotePodToPod: healthy[RemotePodToPod]},
		},
		"packets that are not tracked are not translated": {
			with(masq) + with(fwd) + "*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -i cni0 -j CT --notrack\nCOMMIT\n",
			map[Name]string{PodToOutside: "unchanged by FLANNEL-FWD 1 flannel"},
		},
		"a mark of kube-proxy's keeps Flannel out": {
			with(masq) + with(fwd) + "*mangle\n:FORWARD ACCEPT [0:0]\n-A FORWARD -d 192.0.2.99/32 -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n",
			map[Name]string{PodToOutside: "unchanged by FLANNEL-POSTRTG 1 flannel"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, v := range New(saved(t, nft, c.text), facts).Paths() {
				if v.Packet.Family != flannel.IPv4 {
					continue
				}
				if want, ok := c.want[v.Packet.Path]; ok && brief(v) != want {
					t.Errorf("%s: %s\nwant %s\n%+v", v.Packet.Path, brief(v), want, v.Trail)
				}
			}
		})
	}
}

func brief(v Verdict) string {
	s := string(v.Kind)
	if v.By != nil {
		s += fmt.Sprintf(" by %s %d %s", v.By.Chain, v.By.Position, v.By.Owner)
	}
	if len(v.Unknown) > 0 {
		s += " because " + strings.Join(v.Unknown, "; ")
	}
	return s
}

func verdictOf(t testing.TB, tables Tables, name Name) Verdict {
	t.Helper()
	for _, v := range New(tables, facts).Paths() {
		if v.Packet.Path == name && v.Packet.Family == flannel.IPv4 {
			return v
		}
	}
	t.Fatal("no such path")
	return Verdict{}
}

func TestAcceptInOneBackendSavesNotFromAnother(t *testing.T) {
	tables := saved(t, flannel.IptablesNft, with(fwd))
	legacy := saved(t, flannel.IptablesLegacy, "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n")
	tables.Chains = append(tables.Chains, legacy.Chains...)
	if v := verdictOf(t, tables, PodToOutside); v.Kind != Dropped || v.By.Backend != flannel.IptablesLegacy {
		t.Errorf("%s: %+v", brief(v), v.By)
	}
}

func TestHooksOfOnePriorityThatTranslateDifferentlyAreBothNamed(t *testing.T) {
	tables := saved(t, flannel.IptablesNft, with(masq))
	legacy := saved(t, flannel.IptablesLegacy, "*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -j SNAT --to-source 192.0.2.77\nCOMMIT\n")
	tables.Chains = append(tables.Chains, legacy.Chains...)
	v := verdictOf(t, tables, PodToOutside)
	if v.Kind != May || v.By == nil || len(v.Others) != 1 || v.By.Backend == v.Others[0].Backend {
		t.Errorf("%s: %+v, %+v", brief(v), v.By, v.Others)
	}
}

func TestWhatCouldNotBeReadMakesTheVerdictUnknownUnlessItIsDropped(t *testing.T) {
	tables := saved(t, flannel.IptablesNft, with(masq))
	tables.Unread = []string{"iptables-legacy: operation not permitted"}
	if v := verdictOf(t, tables, PodToOutside); v.Kind != Unknown || len(v.Unknown) != 1 {
		t.Error(brief(v))
	}
	tables.Chains = append(tables.Chains, saved(t, flannel.IptablesLegacy, "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n").Chains...)
	if v := verdictOf(t, tables, PodToOutside); v.Kind != Dropped {
		t.Error(brief(v))
	}
}

func TestASetDecidesWhereItIsGiven(t *testing.T) {
	tables := saved(t, flannel.IptablesNft, with(fwd, "-A FORWARD -m set --match-set blocked dst -j DROP"))
	if v := verdictOf(t, tables, PodToOutside); v.Kind != May || !strings.Contains(brief(v), "blocked") {
		t.Error(brief(v))
	}
	for list, want := range map[string]Kind{"192.0.2.0/24": Dropped, "198.51.100.0/24": Unchanged} {
		tables.Sets = map[SetID]Set{{Name: "blocked"}: {Prefixes: prefixes(list)}}
		if v := verdictOf(t, tables, PodToOutside); v.Kind != want {
			t.Errorf("%s: %s, want %s", list, brief(v), want)
		}
	}
}

func TestAnExpressionThatMayWriteTheMarkLeavesItUnknown(t *testing.T) {
	tables := saved(t, flannel.IptablesNft, "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -m mark --mark 0x1 -j DROP\nCOMMIT\n")
	act := flannel.NewRule(flannel.Target{Kind: flannel.TargetNone}, flannel.Match{Text: "[" + flannel.Doing + "meta 00]"})
	i := slices.IndexFunc(tables.Chains, func(c flannel.Chain) bool { return c.ID.Name == "FORWARD" })
	c := &tables.Chains[i]
	if v := verdictOf(t, tables, PodToOutside); v.Kind != Unchanged {
		t.Error(brief(v))
	}
	c.Entries = append([]flannel.Entry{{Rule: act}}, c.Entries...)
	if v := verdictOf(t, tables, PodToOutside); v.Kind != May {
		t.Error(brief(v))
	}
}

// A recording can hold what the kernel refuses.
func TestAnyTablesEndInBoundedTime(t *testing.T) {
	deep := strings.Builder{}
	deep.WriteString("*filter\n:FORWARD ACCEPT [0:0]\n")
	for i := range 100 {
		fmt.Fprintf(&deep, ":c%d - [0:0]\n", i)
	}
	deep.WriteString("-A FORWARD -j c0\n")
	for i := range 99 { // twice each: 2 to the 99th ways without a memory
		fmt.Fprintf(&deep, "-A c%d -m limit --limit 1/s -j c%d\n-A c%[1]d -j c%d\n-A c%[1]d -j MARK --set-xmark 0x%x/0xff\n", i, i+1, i+1, i)
	}
	wide := strings.Builder{}
	wide.WriteString("*filter\n:FORWARD ACCEPT [0:0]\n")
	for i := range 100_000 {
		fmt.Fprintf(&wide, "-A FORWARD -s 10.9.%d.%d/32 -p tcp -m tcp --dport 80 -m comment --comment x -j DROP\n", i>>8&0xff, i&0xff)
	}
	for name, c := range map[string]struct {
		text string
		want Kind
	}{
		"jumps a hundred deep":      {deep.String() + "COMMIT\n", May},
		"a circle":                  {"*filter\n:FORWARD ACCEPT [0:0]\n:a - [0:0]\n:b - [0:0]\n-A FORWARD -j a\n-A a -j b\n-A b -g a\nCOMMIT\n", May},
		"a hundred thousand rules":  {wide.String() + "COMMIT\n", Unchanged},
		"a chain that is not there": {"*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -j gone\nCOMMIT\n", May},
	} {
		t.Run(name, func(t *testing.T) {
			tables := saved(t, flannel.IptablesNft, c.text)
			start := time.Now()
			v := verdictOf(t, tables, PodToOutside)
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("took %v", took)
			}
			if v.Kind != c.want {
				t.Error(brief(v))
			}
		})
	}
}

func TestOwners(t *testing.T) {
	for text, want := range map[string]string{
		"FLANNEL-POSTRTG":     OwnerFlannel,
		"KUBE-POSTROUTING":    OwnerKubeProxy,
		"KUBE-ROUTER-FORWARD": OwnerKubeRouter,
		"KUBE-POD-FW-ABC":     OwnerKubeRouter,
		"cali-nat-outgoing":   OwnerCalico,
		"CILIUM_POST_nat":     OwnerCilium,
		"DOCKER-USER":         OwnerDocker,
		"NETAVARK_FORWARD":    OwnerPodman,
		"CNI-HOSTPORT-MASQ":   OwnerPortmap,
		"CNI-0a1b2c":          OwnerBridge,
		"ufw-before-forward":  OwnerUfw,
		"LIBVIRT_PRT":         OwnerLibvirt,
		"FWD_public_log":      OwnerFirewalld,
		"POSTROUTING_ZONES":   OwnerFirewalld,
		"mine":                OwnerUnknown,
		`POSTROUTING -m comment --comment "flanneld masq"`:    OwnerFlannel,
		`POSTROUTING -m comment --comment "cali:abc" -j X`:    OwnerCalico,
		"POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j ACCEPT": OwnerDocker,
		"FORWARD -j ufw-before-forward":                       OwnerUfw,
		"FORWARD -o virbr0 -j ACCEPT":                         OwnerLibvirt,
		"FORWARD -s 10.0.0.0/8 -j ACCEPT":                     OwnerUnknown,
	} {
		chain, words, _ := strings.Cut(text, " ")
		rule, err := flannel.ParseRule(words)
		if err != nil {
			t.Fatal(err)
		}
		if got := Owner(flannel.ChainID{Table: "nat", Name: chain}, rule); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	for table, want := range map[string]string{"flannel-ipv4": OwnerFlannel, "inet firewalld": OwnerFirewalld, "kube-proxy": OwnerKubeProxy} {
		if got := Owner(flannel.ChainID{Table: table, Name: "c"}, flannel.Rule{}); got != want {
			t.Errorf("table %s: %s, want %s", table, got, want)
		}
	}
}

// What either of two states may be must cover both.
func TestJoinedMarksCoverBoth(t *testing.T) {
	for i := range uint32(256) {
		a, b := bits{value: i & 3, unknown: 0}, bits{value: i >> 2 & 3, unknown: i >> 4 & 3}
		b.value &^= b.unknown
		j := a.join(b)
		if j != b.join(a) || j.join(a) != j || j.join(b) != j || j.value&j.unknown != 0 {
			t.Fatalf("%v and %v join to %v", a, b, j)
		}
		for mask := range uint32(4) {
			for value := range uint32(4) {
				for _, x := range []bits{a, b} {
					if got := j.equals(mask, value); got != may && got != x.equals(mask, value) {
						t.Fatalf("%v: %v == %d/%d is %v, for %v it is %v", j, j, value, mask, got, x, x.equals(mask, value))
					}
				}
			}
		}
	}
}

// The kernel does not count a connection as translated where that leads to the address it had.
func TestATranslationToTheSameAddressIsNone(t *testing.T) {
	for to, want := range map[string]Kind{"192.0.2.99": Unchanged, "192.0.2.99:443": Unchanged, "192.0.2.98": Dropped, "192.0.2.99:80": Dropped} {
		tables := saved(t, flannel.IptablesNft, "*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -p tcp -j DNAT --to-destination "+to+"\nCOMMIT\n"+
			"*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -m conntrack --ctstate DNAT -j DROP\nCOMMIT\n")
		if v := verdictOf(t, tables, PodToOutside); v.Kind != want {
			t.Errorf("to %s: %s, want %s", to, brief(v), want)
		}
	}
}

func FuzzPaths(f *testing.F) {
	f.Add(with(masq)+with(fwd), "")
	f.Add("*filter\n:FORWARD ACCEPT [0:0]\n:a - [0:0]\n-A FORWARD -g a\n-A a -j a\nCOMMIT\n", with(masq))
	f.Add("*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -m statistic --mode nth --every 2 -j NOTRACK\nCOMMIT\n", with(masq))
	f.Add("*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j DNAT --to-destination 10.42.1.2-10.42.1.9:80\n-A PREROUTING -j REDIRECT\nCOMMIT\n", "")
	f.Fuzz(func(t *testing.T, nft, legacy string) {
		a, err := flannel.ParseSave(nft, flannel.IptablesNft, flannel.IPv4)
		if err != nil {
			return
		}
		tables := Tables{Chains: a.Chains}
		if b, err := flannel.ParseSave(legacy, flannel.IptablesLegacy, flannel.IPv4); err == nil {
			tables.Chains = append(tables.Chains, b.Chains...)
		}
		for _, v := range New(tables, facts).Paths() {
			switch v.Kind {
			case Masqueraded, Dropped:
				if v.By == nil {
					t.Errorf("%s by nothing", v.Kind)
				}
			case Unchanged, May:
			default:
				t.Errorf("verdict %q", v.Kind)
			}
		}
	})
}
