package nft

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/lab/labtest"
)

const tables = `*raw
:PREROUTING ACCEPT [11:1100]
:OUTPUT ACCEPT [0:0]
[7:700] -A PREROUTING -i lo -j ACCEPT
COMMIT
*mangle
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:FORWARD DROP [3:333]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [5:500]
:EXTRA - [0:0]
[9:900] -A POSTROUTING -s 10.1.0.0/16 -j EXTRA
[8:800] -A EXTRA -d 10.2.0.0/16 -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [2:222]
[6:600] -A POSTROUTING -s 10.3.0.0/16 -j ACCEPT
[4:400] -A POSTROUTING -d 10.4.0.0/16 -j MASQUERADE
COMMIT
`

const foreign = `table inet guard {
	chain late {
		type filter hook postrouting priority 300; policy drop;
		ip daddr 10.9.0.0/16 counter packets 3 bytes 99 accept
		meta nfproto ipv6 accept
	}
	chain unhooked { }
}
table netdev other { }
`

func browseIn(t testing.TB, n *labtest.Namespace) *Browser {
	t.Helper()
	var b *Browser
	err := n.Do(func() (err error) {
		b, err = Browse()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func mustBases(t testing.TB, b *Browser) (nft, native incident.Bases) {
	t.Helper()
	nft, native, err := b.Bases()
	if err != nil {
		t.Fatal(err)
	}
	return nft, native
}

func mustChain(t testing.TB, b *Browser, id flannel.ChainID) incident.Opened {
	t.Helper()
	c, present, err := b.Chain(id)
	if err != nil || !present {
		t.Fatalf("%s: present %v, %v", id, present, err)
	}
	return c
}

func nftID(f flannel.Family, table, name string) flannel.ChainID {
	return flannel.ChainID{Backend: flannel.IptablesNft, Family: f, Table: table, Name: name}
}

func TestBaseChainsAreThoseThatIptablesSaves(t *testing.T) {
	n := newNamespace(t)
	n.Feed(tables, "iptables-nft-restore", "-c")
	n.Feed(node6, "ip6tables-nft-restore", "-c")
	bases, _ := mustBases(t, browseIn(t, n))
	var got []string
	for _, b := range bases.Chains {
		got = append(got, fmt.Sprintf("%s *%s :%s %s [%d:%d]", b.ID.Family, b.ID.Table, b.ID.Name, strings.ToUpper(b.Policy),
			b.Counter.Packets, b.Counter.Bytes))
		if !b.Counted {
			t.Errorf("%s has no counter of its policy", b.ID)
		}
	}
	var want []string
	for _, tool := range []struct{ family, name string }{{"ip", "iptables-nft-save"}, {"ip6", "ip6tables-nft-save"}} {
		table := ""
		for line := range strings.Lines(n.Must(tool.name + " -c")) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "*") {
				table = line
			}
			if strings.HasPrefix(line, ":") && !strings.Contains(line, " - ") {
				want = append(want, tool.family+" "+table+" "+line)
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestABaseChainTellsItsHookPriorityAndRules(t *testing.T) {
	n := newNamespace(t)
	n.Feed(tables, "iptables-nft-restore", "-c")
	n.Feed(foreign, "nft", "-f", "-")
	nft, native := mustBases(t, browseIn(t, n))
	find := func(list incident.Bases, id flannel.ChainID) string {
		for _, b := range list.Chains {
			if b.ID == id {
				return fmt.Sprint(b.Type, b.Hook, b.Priority, b.Policy, " rules ", b.Rules)
			}
		}
		return "none"
	}
	late := flannel.ChainID{Backend: flannel.Nftables, Family: flannel.IPv4, Table: "inet guard", Name: "late"}
	late6 := late
	late6.Family = flannel.IPv6
	for _, c := range []struct {
		list incident.Bases
		id   flannel.ChainID
		want string
	}{
		{nft, nftID(flannel.IPv4, "raw", "PREROUTING"), fmt.Sprint("filter", "prerouting", -300, "accept", " rules ", 1)},
		{nft, nftID(flannel.IPv4, "mangle", "OUTPUT"), fmt.Sprint("route", "output", -150, "accept", " rules ", 0)},
		{nft, nftID(flannel.IPv4, "mangle", "FORWARD"), fmt.Sprint("filter", "forward", -150, "drop", " rules ", 0)},
		{nft, nftID(flannel.IPv4, "mangle", "EXTRA"), "none"},
		{nft, nftID(flannel.IPv4, "nat", "POSTROUTING"), fmt.Sprint("nat", "postrouting", 100, "accept", " rules ", 2)},
		{native, late, fmt.Sprint("filter", "postrouting", 300, "drop", " rules ", 2)},
		{native, late6, fmt.Sprint("filter", "postrouting", 300, "drop", " rules ", 2)},
	} {
		if got := find(c.list, c.id); got != c.want {
			t.Errorf("%s: %s, want %s", c.id, got, c.want)
		}
	}
	if len(native.Chains) != 2 {
		t.Errorf("native chains: %+v", native.Chains)
	}
	for _, b := range native.Chains {
		if b.Counted {
			t.Errorf("%s has a counter of its policy", b.ID)
		}
	}
}

func TestAnOpenedChainCountsAsIptablesSaves(t *testing.T) {
	n := newNamespace(t)
	n.Feed(tables, "iptables-nft-restore", "-c")
	b := browseIn(t, n)
	for _, id := range []flannel.ChainID{
		nftID(flannel.IPv4, "mangle", "POSTROUTING"), nftID(flannel.IPv4, "mangle", "EXTRA"),
		nftID(flannel.IPv4, "nat", "POSTROUTING"), nftID(flannel.IPv4, "raw", "PREROUTING"),
	} {
		var got []string
		for _, e := range mustChain(t, b, id).Entries {
			got = append(got, fmt.Sprintf("[%d:%d] -A %s %s", e.Counter.Packets, e.Counter.Bytes, id.Name, e.Rule))
		}
		want := regexp.MustCompile(`(?m)^\[.* -A `+id.Name+` .*$`).FindAllString(n.Must("iptables-nft-save -c -t "+id.Table), -1)
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", id, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestAChainOfTheFamilyInetIsOpenedForEachFamily(t *testing.T) {
	n := newNamespace(t)
	n.Feed(foreign, "nft", "-f", "-")
	b := browseIn(t, n)
	for _, f := range flannel.Families {
		c := mustChain(t, b, flannel.ChainID{Backend: flannel.Nftables, Family: f, Table: "inet guard", Name: "late"})
		if len(c.Entries) != 2 || c.Base == nil || c.Base.Policy != "drop" {
			t.Fatalf("%s: %+v", f, c)
		}
		if e := c.Entries[0]; !e.Counted || e.Counter != (flannel.Counter{Packets: 3, Bytes: 99}) || c.Entries[1].Counted {
			t.Errorf("%s: counters %+v", f, c.Entries)
		}
	}
}

func TestAChainThatIsNotThereIsNotPresent(t *testing.T) {
	b := browseIn(t, newNamespace(t))
	for _, id := range []flannel.ChainID{postrtg, native, {Backend: flannel.Nftables, Family: flannel.IPv6, Table: "inet no", Name: "no"}} {
		if _, present, err := b.Chain(id); present || err != nil {
			t.Errorf("%s: present %v, %v", id, present, err)
		}
	}
}

func TestALongChainIsCutAndSaysSo(t *testing.T) {
	n := newNamespace(t)
	var s strings.Builder
	s.WriteString("*mangle\n:POSTROUTING ACCEPT [0:0]\n")
	for i := range maxRules + 7 {
		fmt.Fprintf(&s, "-A POSTROUTING -d 10.%d.%d.0/24 -j ACCEPT\n", i/256, i%256)
	}
	n.Feed(s.String()+"COMMIT\n", "iptables-nft-restore")
	c := mustChain(t, browseIn(t, n), nftID(flannel.IPv4, "mangle", "POSTROUTING"))
	if len(c.Entries) != maxRules || c.More != 7 || c.Base.Rules != maxRules+7 {
		t.Errorf("%d rules, %d more, %d in all", len(c.Entries), c.More, c.Base.Rules)
	}
}

func TestManyBaseChainsAreCutAndSaySo(t *testing.T) {
	n := newNamespace(t)
	var s strings.Builder
	s.WriteString("table ip many {\n")
	for i := range maxBases + 3 {
		fmt.Fprintf(&s, "chain c%03d { type filter hook forward priority %d; }\n", i, i)
	}
	n.Feed(s.String()+"}\n", "nft", "-f", "-")
	_, native := mustBases(t, browseIn(t, n))
	if len(native.Chains) != maxBases || native.More != 3 {
		t.Errorf("%d chains, %d more", len(native.Chains), native.More)
	}
}

func TestBrowsingMakesNoTable(t *testing.T) {
	n := newNamespace(t)
	b := browseIn(t, n)
	nft, native := mustBases(t, b)
	if len(nft.Chains)+len(native.Chains) != 0 {
		t.Errorf("chains %v %v", nft, native)
	}
	_, _, _ = b.Chain(nftID(flannel.IPv4, "mangle", "POSTROUTING"))
	if got := n.Must("nft list tables"); got != "" {
		t.Errorf("tables: %s", got)
	}
}

func BenchmarkBases(b *testing.B) {
	n := newNamespace(b)
	n.Feed(kubeRules(10000, "X"), "iptables-nft-restore")
	n.Feed(tables, "iptables-nft-restore", "-n")
	br := browseIn(b, n)
	for b.Loop() {
		mustBases(b, br)
	}
}
