package flannel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// written gives wanted chains as lines, with N and S for network and subnet, and m and f for the comments.
func written(list []Wanted, networks, subnets []netip.Prefix) string {
	var b strings.Builder
	replace := []string{
		`-m comment --comment "flanneld masq"`, "m", `-m comment --comment "flanneld forward"`, "f",
		"224.0.0.0/4", "M", "ff00::/8", "M",
	}
	for i, n := range networks {
		replace = append(replace, n.String(), fmt.Sprintf("N%d", i+1))
	}
	for _, s := range subnets {
		replace = append(replace, s.String(), "S")
	}
	short := strings.NewReplacer(replace...)
	for _, w := range list {
		fmt.Fprintf(&b, "%s %s\n", w.ID.Table, w.ID.Name)
		if hooked(w) {
			fmt.Fprintf(&b, "  hook %s: %s first=%t\n", w.HookChain.Name, short.Replace(w.Hook.String()), w.HookFirst)
		}
		for _, r := range w.Rules {
			fmt.Fprintf(&b, "  %s\n", short.Replace(r.Text(w.ID.Backend, w.ID.Family)))
		}
	}
	return b.String()
}

const (
	bareRules = `nat POSTROUTING
  -s N1 -d N1 -j RETURN
  -s N1 ! -d M -j MASQUERADE
  ! -s N1 -d S -j RETURN
  ! -s N1 -d N1 -j MASQUERADE
filter FORWARD
  -s N1 -j ACCEPT
  -d N1 -j ACCEPT
`
	commentedRules = `nat POSTROUTING
  -s N1 -d N1 m -j RETURN
  -s N1 ! -d M m -j MASQUERADE --random-fully
  ! -s N1 -d S m -j RETURN
  ! -s N1 -d N1 m -j MASQUERADE --random-fully
filter FORWARD
  -s N1 f -j ACCEPT
  -d N1 f -j ACCEPT
`
	firstChains = `nat FLANNEL-POSTRTG
  hook POSTROUTING: m -j FLANNEL-POSTRTG first=true
  -s N1 -d N1 m -j RETURN
  -s N1 ! -d M m -j MASQUERADE --random-fully
  ! -s N1 -d S m -j RETURN
  ! -s N1 -d N1 m -j MASQUERADE --random-fully
filter FLANNEL-FWD
  hook FORWARD: f -j FLANNEL-FWD first=true
  -s N1 f -j ACCEPT
  -d N1 f -j ACCEPT
`
	todaysChains = `nat FLANNEL-POSTRTG
  hook POSTROUTING: m -j FLANNEL-POSTRTG first=false
  -m mark --mark 0x4000/0x4000 m -j RETURN
  -s S -d N1 m -j RETURN
  -s N1 -d S m -j RETURN
  ! -s N1 -d S m -j RETURN
  -s N1 ! -d M m -j MASQUERADE --random-fully
  ! -s N1 -d N1 m -j MASQUERADE --random-fully
filter FLANNEL-FWD
  hook FORWARD: f -j FLANNEL-FWD first=false
  -s N1 f -j ACCEPT
  -d N1 f -j ACCEPT
`
	threeNetworks = `nat FLANNEL-POSTRTG
  hook POSTROUTING: m -j FLANNEL-POSTRTG first=false
  -m mark --mark 0x4000/0x4000 m -j RETURN
  -s S -d N1 m -j RETURN
  -s N1 -d S m -j RETURN
  -s S -d N2 m -j RETURN
  -s N2 -d S m -j RETURN
  -s S -d N3 m -j RETURN
  -s N3 -d S m -j RETURN
  ! -s N1 -d S m -j RETURN
  ! -s N2 -d S m -j RETURN
  ! -s N3 -d S m -j RETURN
  -s N1 ! -d M m -j MASQUERADE --random-fully
  -s N2 ! -d M m -j MASQUERADE --random-fully
  -s N3 ! -d M m -j MASQUERADE --random-fully
  ! -s N1 -d N1 m -j MASQUERADE --random-fully
  ! -s N2 -d N2 m -j MASQUERADE --random-fully
  ! -s N3 -d N3 m -j MASQUERADE --random-fully
filter FLANNEL-FWD
  hook FORWARD: f -j FLANNEL-FWD first=false
  -s N2 f -j ACCEPT
  -d N2 f -j ACCEPT
`
)

func TestEachGenerationWritesItsRules(t *testing.T) {
	marked := strings.Replace(firstChains, "  -s N1 -d N1", "  -m mark --mark 0x4000/0x4000 m -j RETURN\n  -s N1 -d N1", 1)
	for g, want := range map[Generation]string{
		GenV080:  bareRules,
		GenV0110: strings.ReplaceAll(bareRules, "MASQUERADE", "MASQUERADE --random-fully"),
		GenV0162: commentedRules,
		GenV0200: firstChains,
		GenV0202: marked,
		GenV0210: todaysChains,
	} {
		for _, f := range Families {
			for _, b := range []Backend{IptablesNft, IptablesLegacy} {
				ns, ss := Of(f, nets), Of(f, subs)
				if got := written(Expected(nets, subs, g, everything, b, f), ns, ss); got != want {
					t.Errorf("%s %s %s:\n%s\nwant:\n%s", g, b, f, got, want)
				}
			}
			if list := Expected(nets, subs, g, everything, Nftables, f); list != nil {
				t.Errorf("%s in native tables: %+v", g, list)
			}
		}
	}
}

func TestSeveralNetworksAreWrittenKindByKind(t *testing.T) {
	ns, ss := prefixes("10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"), prefixes("10.2.7.0/24")
	if got := written(Expected(ns, ss, GenV0210, everything, IptablesNft, IPv4), ns, ss); got != threeNetworks {
		t.Errorf("%s\nwant:\n%s", got, threeNetworks)
	}
	if list := Expected(ns, nil, GenV0210, everything, IptablesNft, IPv4); len(list) != 0 {
		t.Errorf("forward rules of one network of three without knowing which: %+v", list)
	}
}

func TestOptionsDecide(t *testing.T) {
	for name, c := range map[string]struct {
		o    Options
		want []string
	}{
		"all":                  {everything, []string{ChainMasq, ChainFwd}},
		"masquerading alone":   {Options{Masq: true}, []string{ChainMasq}},
		"forwarding alone":     {Options{Forward: true}, []string{ChainFwd}},
		"nothing":              {Options{RandomFully: true}, nil},
		"with an older tool":   {Options{Masq: true, Forward: true}, []string{ChainMasq, ChainFwd}},
		"with an iptables new": {Options{Masq: true, Forward: true, RandomFully: true}, []string{ChainMasq, ChainFwd}},
	} {
		var got []string
		for _, w := range Expected(nets, subs, GenV0210, c.o, IptablesNft, IPv4) {
			got = append(got, w.ID.Name)
			for _, r := range w.Rules {
				if r.Target.Kind == TargetMasquerade && r.Target.RandomFully != c.o.RandomFully {
					t.Errorf("%s: %s", name, r)
				}
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestWhatIsNotKnownIsNotExpected(t *testing.T) {
	if list := Expected(prefixes("10.244.0.0/16"), nil, GenV0210, everything, IptablesNft, IPv6); list != nil {
		t.Errorf("no network of the family: %+v", list)
	}
	list := Expected(prefixes("10.244.0.0/16"), nil, GenV0210, everything, IptablesNft, IPv4)
	if len(list) != 1 || list[0].ID.Name != ChainFwd {
		t.Errorf("without a subnet: %+v", list)
	}
}

// nftRules reads the rules of `nft -a list ruleset`, by "table chain".
func nftRules(t *testing.T, file string) map[string][]string {
	rules := map[string][]string{}
	table, chain := "", ""
	for line := range strings.Lines(readFile(t, file)) {
		fields := strings.Fields(line)
		text, _, _ := strings.Cut(strings.TrimSpace(line), " # handle")
		switch {
		case len(fields) > 2 && fields[0] == "table":
			table = fields[2]
		case len(fields) > 2 && fields[0] == "chain":
			chain = fields[1]
		case len(fields) > 1 && fields[0] != "comment" && fields[0] != "type":
			rules[table+" "+chain] = append(rules[table+" "+chain], text)
		}
	}
	return rules
}

func TestNativeRulesAreThoseThatFlannelWrites(t *testing.T) {
	for _, file := range []string{"nft/v0.26.5-dual-running.txt", "nft/v0.28.10-dual-running.txt"} {
		have := nftRules(t, file)
		for _, f := range Families {
			list := Expected(nets, subs, GenV0250, everything, Nftables, f)
			if len(list) != 2 {
				t.Fatalf("%s: %d chains", file, len(list))
			}
			for _, w := range list {
				var want []string
				for _, r := range w.Rules {
					want = append(want, r.Nft(f))
				}
				if got := have[w.ID.Table+" "+w.ID.Name]; !slices.Equal(got, want) {
					t.Errorf("%s %s:\n got %q\nwant %q", file, w.ID, got, want)
				}
			}
		}
	}
}

func TestLookedListsWhatAReaderLooksFor(t *testing.T) {
	for b, n := range map[Backend]int{IptablesNft: 8, IptablesLegacy: 8, Nftables: 4} {
		ids := Looked(b)
		if len(ids) != n || !slices.IsSortedFunc(ids, ChainID.Compare) {
			t.Errorf("%s: %v", b, ids)
		}
		for _, f := range Families {
			for _, w := range Expected(nets, subs, GenV0210, everything, b, f) {
				if !slices.Contains(ids, w.ID) || !slices.Contains(ids, w.HookChain) {
					t.Errorf("%s is not looked for", w.ID)
				}
			}
		}
	}
}
