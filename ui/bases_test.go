package ui

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"

	"github.com/charmbracelet/x/ansi"
)

func chainID(b flannel.Backend, f flannel.Family, table, name string) flannel.ChainID {
	return flannel.ChainID{Backend: b, Family: f, Table: table, Name: name}
}

// withBases adds what a look at the base chains of the node would give.
func withBases() *incident.View {
	v := emptied()
	base := func(id flannel.ChainID, kind, hook string, priority int32, policy string, rules int, packets uint64) incident.Base {
		return incident.Base{
			ID: id, BaseChain: flannel.BaseChain{Type: kind, Hook: hook, Priority: priority, Policy: policy}, Rules: rules,
			Counted: id.Backend != flannel.Nftables, Counter: flannel.Counter{Packets: packets, Bytes: packets * 700},
		}
	}
	nft := func(table, name string, priority int32, policy string, rules int, packets uint64) incident.Base {
		kind := "filter"
		if table == "nat" {
			kind = "nat"
		}
		return base(chainID(flannel.IptablesNft, flannel.IPv4, table, name), kind, strings.ToLower(name), priority, policy, rules, packets)
	}
	v.Bases = []incident.BasesView{
		{Backend: flannel.IptablesNft, State: flannel.Known, Bases: incident.Bases{Chains: []incident.Base{
			nft("raw", "PREROUTING", -300, "accept", 1, 92_113_004), nft("mangle", "PREROUTING", -150, "accept", 2, 92_110_001),
			nft("mangle", "FORWARD", -150, "accept", 0, 61_440_218), nft("mangle", "POSTROUTING", -150, "accept", 3, 80_001_774),
			nft("nat", "PREROUTING", -100, "accept", 2, 201_552), nft("nat", "OUTPUT", -100, "accept", 1, 88_140),
			nft("nat", "POSTROUTING", 100, "accept", 4, 311_007), nft("filter", "INPUT", 0, "accept", 12, 7_201_443),
			nft("filter", "FORWARD", 0, "drop", 4, 17), nft("filter", "OUTPUT", 0, "accept", 3, 6_001_212),
			base(chainID(flannel.IptablesNft, flannel.IPv6, "nat", "POSTROUTING"), "nat", "postrouting", 100, "accept", 2, 4_112),
		}}},
		{Backend: flannel.IptablesLegacy, State: flannel.Absent, Why: "the kernel has no legacy tables"},
		{Backend: flannel.Nftables, State: flannel.Known, Bases: incident.Bases{Chains: []incident.Base{
			base(chainID(flannel.Nftables, flannel.IPv4, "inet firewalld", "filter_FORWARD"), "filter", "forward", 10, "accept", 9, 0),
			base(chainID(flannel.Nftables, flannel.IPv6, "inet firewalld", "filter_FORWARD"), "filter", "forward", 10, "accept", 9, 0),
		}}},
	}
	return v
}

var manglePost = chainID(flannel.IptablesNft, flannel.IPv4, "mangle", "POSTROUTING")

// withOpened is withBases with the rules of mangle POSTROUTING.
func withOpened() *incident.View {
	v := withBases()
	v.Opened = &incident.OpenedView{ID: manglePost, State: flannel.Known, Base: &v.Bases[0].Chains[3]}
	for i, text := range []string{
		`-j KUBE-POSTMANGLE`,
		`-s 10.244.3.0/24 -o eth0 -m comment --comment "clamp what leaves through the tunnel, as the path MTU is not discovered" -j TCPMSS --clamp-mss-to-pmtu`,
		`-d 203.0.113.0/24 -j DSCP --set-dscp 0x2e`,
	} {
		r, err := flannel.ParseRule(text)
		if err != nil {
			panic(err)
		}
		v.Opened.Rules = append(v.Opened.Rules, incident.OpenedRule{
			Rule: r, Counted: true, Counter: flannel.Counter{Packets: 80_001_774 >> (4 * i), Bytes: 61_223_554_112 >> (4 * i)},
			Rate: incident.Rate{Known: i < 2, Packets: 18_412 / float64(1+20*i), Bytes: 1e6},
		})
	}
	return v
}

func onBases(m *model) {
	m.page = pageBases
	m.bases.move(basesIDs(m.baseRows()), 9)
}

func onOpened(m *model) { m.page, m.trail = pageOpened, []visit{{manglePost, 1}} }

func TestBaseChainsStandInAPacketsOrder(t *testing.T) {
	m := still(t, withBases(), Options{})
	var got []string
	for _, b := range m.baseRows() {
		if b.ID.Family == flannel.IPv4 {
			got = append(got, b.ID.Table+" "+b.ID.Name)
		}
	}
	want := "raw PREROUTING, mangle PREROUTING, nat PREROUTING, filter INPUT, mangle FORWARD, filter FORWARD, " +
		"inet firewalld filter_FORWARD, nat OUTPUT, filter OUTPUT, mangle POSTROUTING, nat POSTROUTING"
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
}

// looks is what the watcher was told, in short.
func (tt *terminal) looksAt(want string) {
	tt.t.Helper()
	tt.until("a look at "+want, func(string) bool {
		tt.mu.Lock()
		defer tt.mu.Unlock()
		return len(tt.looks) > 0 && tt.looks[len(tt.looks)-1] == want
	})
}

func TestAChainIsOpenedFollowedAndLeft(t *testing.T) {
	tt := open(t, 100, 30, withBases(), nil)
	tt.shows("FLANNEL-POSTRTG empty")
	tt.keys("v")
	tt.shows("Paths 0")
	tt.keys("v")
	tt.shows("Base chains 13")
	tt.looksAt("open")
	tt.keys("jjjjjjjjj")
	tt.selects("mangle", "POSTROUTING")
	tt.keys("\r")
	tt.shows("reading")
	tt.looksAt(manglePost.String())
	tt.box.Put(withOpened())
	tt.shows("-j KUBE-POSTMANGLE")
	tt.selects("KUBE-POSTMANGLE")
	tt.keys("\r")
	tt.shows("→ KUBE-POSTMANGLE")
	next := manglePost
	next.Name = "KUBE-POSTMANGLE"
	tt.looksAt(next.String())
	tt.keys("\x1b")
	tt.looksAt(manglePost.String())
	tt.shows("-j KUBE-POSTMANGLE")
	tt.keys("j")
	tt.shows("[5000110:3826472132] -A POSTROUTING -s 10.244.3.0/24")
	tt.keys("\r")
	tt.shows("leads to no chain")
	tt.keys("\x1b")
	tt.looksAt("open")
	tt.selects("mangle", "POSTROUTING")
	tt.keys("\x1b")
	tt.shows("Timeline")
	tt.looksAt("closed")
}

func TestALookEndsWithItsPage(t *testing.T) {
	for key, then := range map[string]string{"v": "Timeline", "?": "previous panel", "\t": "Timeline", "/": "esc clear"} {
		t.Run(fmt.Sprintf("%q", key), func(t *testing.T) {
			tt := open(t, 100, 30, withBases(), nil)
			tt.shows("Timeline")
			tt.keys("v")
			tt.shows("Paths")
			tt.keys("v")
			tt.shows("Base chains")
			tt.looksAt("open")
			tt.keys(key)
			tt.looksAt("closed")
			tt.shows(then)
		})
	}
}

func TestWithoutAWatcherThereAreOnlyThePaths(t *testing.T) {
	m := still(t, withBases(), Options{})
	m.looks, m.opt.Look = false, nil
	if m.look(); m.page != pagePaths {
		t.Errorf("page %d", m.page)
	}
	if m.look(); m.page != pageDashboard {
		t.Errorf("then page %d", m.page)
	}
}

func TestBaseChainsAreShownWhereThereIsNoFlannel(t *testing.T) {
	v := noFlannel()
	v.Bases = withBases().Bases
	m := still(t, v, Options{})
	m.look()
	m.look()
	if s := ansi.Strip(m.at(100, 30)); !strings.Contains(s, "Base chains 13") {
		t.Errorf("%s", s)
	}
}

func TestWhatCannotBeReadOfOthersIsSaid(t *testing.T) {
	v := withOpened()
	v.Bases[0].State, v.Bases[0].Why, v.Bases[0].Chains = flannel.Unreadable, "no buffer \x1b[31mspace", nil
	v.Bases[2].More = 3
	v.Opened.State, v.Opened.Why, v.Opened.More = flannel.Unreadable, "operation not permitted", 12
	m := still(t, v, Options{})
	onBases(m)
	list := ansi.Strip(m.at(100, 30))
	onOpened(m)
	for text, in := range map[string]string{
		`iptables-nft cannot be read: no buffer \x1b[31mspace`: list, "nftables has 3 more, which are not listed": list,
		"iptables-legacy: the kernel has no legacy tables": list,
		"cannot be read: operation not permitted":          ansi.Strip(m.at(100, 30)),
		"12 more rules, which are not listed":              ansi.Strip(m.at(100, 30)),
	} {
		if !strings.Contains(in, text) {
			t.Errorf("%q is not in\n%s", text, in)
		}
	}
}

func TestAnOpenedChainThatShrankKeepsASelection(t *testing.T) {
	m := still(t, withOpened(), Options{})
	onOpened(m)
	m.moveLook(10)
	v := withOpened()
	v.Now = v.Now.Add(time.Second)
	v.Opened.Rules = v.Opened.Rules[:1]
	m.receive(v)
	if row := selectedRow(ansi.Strip(m.at(100, 30))); !strings.Contains(row, "KUBE-POSTMANGLE") {
		t.Errorf("selected: %q", row)
	}
	v = withOpened()
	v.Opened.Rules = nil
	m.receive(v)
	m.openLook()
	m.moveLook(1)
	if s := ansi.Strip(m.at(100, 30)); !strings.Contains(s, "no rules") || m.lookCopy() != "" {
		t.Errorf("%s", s)
	}
}
