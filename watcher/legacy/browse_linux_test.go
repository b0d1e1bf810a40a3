package legacy_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/lab/labtest"
	"flanwatch/watcher/legacy"
)

const tables4 = `*raw
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

func browse(t testing.TB, n *labtest.Namespace) *legacy.Browser {
	t.Helper()
	var b *legacy.Browser
	err := n.Do(func() (err error) {
		b, err = legacy.Browse()
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

func opened(t testing.TB, b *legacy.Browser, id flannel.ChainID) incident.Opened {
	t.Helper()
	c, present, err := b.Chain(id)
	if err != nil || !present {
		t.Fatalf("%s: present %v, %v", id, present, err)
	}
	return c
}

func TestBaseChainsAreThoseThatIptablesLegacySaves(t *testing.T) {
	n := labtest.New(t)
	n.Feed(tables4, "iptables-legacy-restore", "-c")
	six := strings.NewReplacer("10.", "fd0", ".0.0/16", "::/16")
	n.Feed(six.Replace(tables4), "ip6tables-legacy-restore", "-c")
	bases, err := browse(t, n).Bases()
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, b := range bases.Chains {
		got = append(got, fmt.Sprintf("%s *%s :%s %s [%d:%d] %d rules", b.ID.Family, b.ID.Table, b.ID.Name, strings.ToUpper(b.Policy),
			b.Counter.Packets, b.Counter.Bytes, b.Rules))
		if !b.Counted || b.ID.Backend != flannel.IptablesLegacy || !strings.EqualFold(b.Hook, b.ID.Name) {
			t.Errorf("%+v", b)
		}
	}
	for _, tool := range []struct{ family, name string }{{"ip", "iptables-legacy-save"}, {"ip6", "ip6tables-legacy-save"}} {
		for _, table := range []string{"raw", "mangle", "nat"} {
			saved := n.Must(tool.name + " -c -t " + table)
			for _, line := range regexp.MustCompile(`(?m)^:.* [A-Z]+ \[.*$`).FindAllString(saved, -1) {
				name, _, _ := strings.Cut(line[1:], " ")
				want = append(want, fmt.Sprintf("%s *%s %s %d rules", tool.family, table, line, strings.Count(saved, "] -A "+name+" ")))
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAnOpenedChainCountsAsIptablesLegacySaves(t *testing.T) {
	n := labtest.New(t)
	n.Feed(tables4, "iptables-legacy-restore", "-c")
	b := browse(t, n)
	for _, name := range []flannel.ChainID{
		id(flannel.IPv4, "mangle", "POSTROUTING"), id(flannel.IPv4, "mangle", "EXTRA"),
		id(flannel.IPv4, "nat", "POSTROUTING"), id(flannel.IPv4, "raw", "PREROUTING"),
	} {
		var got []string
		c := opened(t, b, name)
		for _, e := range c.Entries {
			got = append(got, fmt.Sprintf("[%d:%d] -A %s %s", e.Counter.Packets, e.Counter.Bytes, name.Name, e.Rule))
		}
		want := regexp.MustCompile(`(?m)^\[.* -A `+name.Name+` .*$`).FindAllString(n.Must("iptables-legacy-save -c -t "+name.Table), -1)
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if isBase := name.Name != "EXTRA"; isBase != (c.Base != nil) {
			t.Errorf("%s: base %+v", name, c.Base)
		}
	}
}

func TestALongLegacyChainIsCutAndSaysSo(t *testing.T) {
	n := labtest.New(t)
	var s strings.Builder
	s.WriteString("*mangle\n:POSTROUTING ACCEPT [0:0]\n")
	for i := range 2007 {
		fmt.Fprintf(&s, "-A POSTROUTING -d 10.%d.%d.0/24 -j ACCEPT\n", i/256, i%256)
	}
	n.Feed(s.String()+"COMMIT\n", "iptables-legacy-restore")
	c := opened(t, browse(t, n), id(flannel.IPv4, "mangle", "POSTROUTING"))
	if len(c.Entries) != 2000 || c.More != 7 || c.Base.Rules != 2007 {
		t.Errorf("%d rules, %d more, %d in all", len(c.Entries), c.More, c.Base.Rules)
	}
}

func TestBrowsingMakesNoLegacyTable(t *testing.T) {
	n := labtest.New(t)
	b := browse(t, n)
	bases, err := b.Bases()
	if err != nil || len(bases.Chains) != 0 {
		t.Errorf("%v, %v", bases, err)
	}
	for _, name := range []flannel.ChainID{id(flannel.IPv4, "mangle", "POSTROUTING"), id(flannel.IPv6, "nat", "NONE")} {
		if _, present, err := b.Chain(name); present || err != nil {
			t.Errorf("%s: present %v, %v", name, present, err)
		}
	}
	for _, family := range []string{"ip", "ip6"} {
		if got := n.Must("cat /proc/thread-self/net/" + family + "_tables_names"); got != "" {
			t.Errorf("browsing made %s tables: %s", family, got)
		}
	}
}

// Memory given back is taken again with the next look.
func TestBrowsingGoesOnAfterARest(t *testing.T) {
	n := labtest.New(t)
	n.Feed(tables4, "iptables-legacy-restore", "-c")
	b := browse(t, n)
	for range 2 {
		if c := opened(t, b, id(flannel.IPv4, "nat", "POSTROUTING")); len(c.Entries) != 2 {
			t.Errorf("%d rules", len(c.Entries))
		}
		b.Rest()
	}
	if _, present, err := b.Chain(id(flannel.IPv4, "nat", "NONE")); present || err != nil {
		t.Errorf("present %v, %v", present, err)
	}
}
