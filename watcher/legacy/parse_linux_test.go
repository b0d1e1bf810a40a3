package legacy

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"flanwatch/flannel"
	"flanwatch/watcher/lab/labtest"
)

// blob is a table as the kernel gave it: struct ipt_getinfo, then the entries.
type blob []byte

func (b blob) split() (info, []byte, bool) {
	var in info
	if len(b) < int(unsafe.Sizeof(in)) {
		return in, nil, false
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&in)), unsafe.Sizeof(in)), b)
	return in, b[unsafe.Sizeof(in):], true
}

// capture reads a table of a namespace into a blob.
func capture(t testing.TB, n *labtest.Namespace, f flannel.Family, name string) blob {
	t.Helper()
	var out blob
	err := n.Do(func() error {
		s, err := openSocket(f)
		if err != nil {
			return err
		}
		defer s.close()
		tab := bare(f, name)
		entries, err := tab.fetchAll(s)
		if err != nil {
			return err
		}
		head := unsafe.Slice((*byte)(unsafe.Pointer(&tab.info)), unsafe.Sizeof(tab.info))
		out = append(bytes.Clone(head), entries...)
		return tab.buf.free()
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// bare is a table of its own ruleset, that nothing has been read of.
func bare(f flannel.Family, name string) *table {
	rs := &flannel.Ruleset{Backend: flannel.IptablesLegacy}
	for _, t := range newFamily(f, rs).tables {
		if t.id.Name == name {
			return t
		}
	}
	return nil
}

// seeds are tables captured from Linux 6.18 and kept in testdata; run with UPDATE=1 to capture them anew.
func seeds(t testing.TB, f flannel.Family) map[string]blob {
	t.Helper()
	out := make(map[string]blob)
	paths, err := filepath.Glob("testdata/" + f.String() + "-*.table")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no seeds: %v", err)
	}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(p)] = b
	}
	return out
}

const seedRules = `*nat
:FLANNEL-POSTRTG - [0:0]
:other - [0:0]
[1:2] -A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
[3:4] -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
[5:6] -A FLANNEL-POSTRTG ! -s NET1 -d NET2 -i eth+ -o eth0 -p tcp -m tcp --dport 80 -g other
[7:8] -A FLANNEL-POSTRTG -s NET1 -m conntrack --ctstate NEW -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG -m comment --comment "only counts"
COMMIT
*filter
:FORWARD DROP [0:0]
:FLANNEL-FWD - [0:0]
[9:10] -A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
[11:12] -A FLANNEL-FWD -s NET1 -m addrtype --dst-type LOCAL -j ACCEPT
-A FLANNEL-FWD -d NET2 -p tcp -j REJECT --reject-with tcp-reset
-A FLANNEL-FWD -j MARK --set-xmark 0x1/0x1
COMMIT
`

func TestSeedsAreWhatTheKernelGives(t *testing.T) {
	labtest.RequireTools(t, "iptables-legacy-restore", "ip6tables-legacy-restore")
	for _, c := range []struct {
		family     flannel.Family
		tool       string
		net1, net2 string
	}{
		{flannel.IPv4, "iptables-legacy-restore", "10.244.0.0/16", "10.244.1.0/24"},
		{flannel.IPv6, "ip6tables-legacy-restore", "fd00:244::/56", "fd00:244:0:1::/64"},
	} {
		n := labtest.New(t)
		n.Feed(strings.NewReplacer("NET1", c.net1, "NET2", c.net2).Replace(seedRules), c.tool, "-c")
		for _, name := range []string{"nat", "filter"} {
			got := capture(t, n, c.family, name)
			path := "testdata/" + c.family.String() + "-" + name + ".table"
			if os.Getenv("UPDATE") != "" {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			compareTables(t, c.family, name, got, seeds(t, c.family)[filepath.Base(path)])
		}
	}
}

// compareTables holds two captures against each other by what is read from them: bytes that nobody reads may differ.
func compareTables(t *testing.T, f flannel.Family, name string, got, want blob) {
	t.Helper()
	var texts [2]string
	for i, b := range []blob{got, want} {
		tab := bare(f, name)
		if err := parseInto(tab, b); err != nil {
			t.Fatalf("%s %s: %v", f, name, err)
		}
		for _, c := range []*flannel.Chain{tab.baseChain(), tab.userChain()} {
			for _, e := range c.Entries {
				texts[i] += c.ID.Name + " " + e.Rule.String() + "\n"
			}
		}
	}
	if texts[0] != texts[1] || texts[0] == "" {
		t.Errorf("%s %s\n got:\n%swant:\n%s", f, name, texts[0], texts[1])
	}
}

func parseInto(t *table, b blob) error {
	in, entries, ok := b.split()
	if !ok {
		return errMalformed
	}
	t.info = in
	_, err := t.parse(entries, flannel.Time{})
	return err
}

func FuzzIPv4Table(f *testing.F) { fuzzTable(f, flannel.IPv4) }
func FuzzIPv6Table(f *testing.F) { fuzzTable(f, flannel.IPv6) }

// fuzzTable parses hostile tables: each must end, in an error or a ruleset that holds together.
func fuzzTable(f *testing.F, family flannel.Family) {
	for _, b := range seeds(f, family) {
		f.Add([]byte(b))
		for _, cut := range []int{84, 85, 200, len(b) / 2, len(b) - 1} {
			f.Add([]byte(b[:cut]))
		}
		for _, off := range offsets(family, b) { // each offset in turn leads nowhere, back to itself, and beyond
			for _, v := range []uint16{0, 1, 90, 0xffff} {
				bad := bytes.Clone(b)
				binary.NativeEndian.PutUint16(bad[off:], v)
				f.Add(bad)
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, name := range []string{"nat", "filter"} {
			tab := bare(family, name)
			if parseInto(tab, b) != nil {
				continue
			}
			if tab.userChain().Present {
				check(t, tab.userChain())
			}
			check(t, tab.baseChain())
			if err := parseInto(tab, b); err != nil || tab.ruleset.Revision != 0 {
				t.Errorf("parsed once, and then: %v", err)
			}
		}
	})
}

func check(t *testing.T, c *flannel.Chain) {
	t.Helper()
	if !c.Present {
		t.Errorf("%s is absent", c.ID)
	}
	for _, e := range c.Entries {
		text := e.Rule.String()
		if _, err := flannel.ParseRule(text); err != nil {
			t.Errorf("%s: rule %q does not parse: %v", c.ID, text, err)
		}
	}
}

// offsets are the places of target_offset, next_offset, and of the sizes of matches and targets in a capture.
func offsets(f flannel.Family, b blob) []int {
	l := bare(f, "nat").layout
	_, entries, _ := b.split()
	start := len(b) - len(entries)
	var out []int
	for off := 0; ; {
		e, ok := l.entry(entries, off)
		if !ok {
			return out
		}
		out = append(out, start+off+l.target, start+off+l.target+2, start+off+l.size, start+off+e.target)
		off += len(e.raw)
	}
}

func TestALargeTableIsReadPartly(t *testing.T) {
	labtest.RequireTools(t, "iptables-legacy-restore")
	n := labtest.New(t)
	var b strings.Builder
	b.WriteString("*nat\n:FLANNEL-POSTRTG - [0:0]\n:KUBE-SERVICES - [0:0]\n-A FLANNEL-POSTRTG -s 10.244.0.0/16 -j RETURN\n")
	for range 200 {
		b.WriteString("-A KUBE-SERVICES -s 192.0.2.0/24 -j RETURN\n")
	}
	n.Feed(b.String()+"COMMIT\n", "iptables-legacy-restore")
	err := n.Do(func() error {
		s, err := openSocket(flannel.IPv4)
		if err != nil {
			return err
		}
		defer s.close()
		tab := bare(flannel.IPv4, "nat")
		now := flannel.Time{Boot: time.Hour}
		if tab.readPart(s, now) {
			t.Error("a part was read before the whole")
		}
		if _, err := tab.read(s, now); err != nil {
			return err
		}
		if !tab.readPart(s, now.Add(time.Second)) {
			t.Error("no part was read")
		}
		if tab.buf.open >= len(tab.buf.mem) {
			t.Errorf("all of %d bytes are open", len(tab.buf.mem))
		}
		if tab.readPart(s, now.Add(wholeEvery)) {
			t.Error("a part was read when the whole was due")
		}
		return tab.buf.free()
	})
	if err != nil {
		t.Error(err)
	}
}
