package wire_test

import (
	"bytes"
	"strings"
	"testing"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
)

var nat = flannel.ChainID{Backend: flannel.IptablesNft, Family: flannel.IPv4, Table: "nat", Name: "FLANNEL-POSTRTG"}

func parse(t testing.TB, text string) flannel.Rule {
	t.Helper()
	r, err := flannel.ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func scan(t testing.TB, exprs []byte) wire.Scan {
	t.Helper()
	s, err := wire.ScanRule(exprs)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestScanCounts(t *testing.T) {
	rule := parse(t, `-s 10.42.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE`)
	exprs, err := wire.EncodeCounted(nat, rule, flannel.Counter{Packets: 7, Bytes: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	s := scan(t, exprs)
	if want := (flannel.Counter{Packets: 7, Bytes: 1 << 40}); s.Counter != want || !s.Counted {
		t.Errorf("got %+v, counted %v, want %+v", s.Counter, s.Counted, want)
	}
	if s.Exprs != 8 { // two loads and comparisons, one mask, comment, counter, target
		t.Errorf("got %d expressions", s.Exprs)
	}
	if zero := scan(t, encode(t, nat, rule)); zero.Body != s.Body {
		t.Error("the body depends on the count")
	}
	native := flannel.MasqChain(flannel.Nftables, flannel.IPv4)
	if s := scan(t, encode(t, native, parse(t, "-s 10.42.0.0/16 -j ACCEPT"))); s.Counted {
		t.Error("a native rule of Flannel has no counter")
	}
	if s := scan(t, nil); s.Exprs != 0 || s.Counted {
		t.Errorf("an empty rule: %+v", s)
	}
}

func TestBodyDependsOnEveryBitButTheCounts(t *testing.T) {
	for _, c := range readCaptured(t) {
		if strings.Contains(c.text, "[quota") {
			continue // see the next test
		}
		want := scan(t, c.exprs).Body
		counter := bytes.Index(c.exprs, []byte("counter\x00"))
		for i := range c.exprs {
			if counter >= 0 && i >= counter-8 && i < counter+36 {
				continue
			}
			changed := bytes.Clone(c.exprs)
			changed[i] ^= 1
			s, err := wire.ScanRule(changed)
			if err == nil && s.Body == want {
				t.Fatalf("%s: byte %d of %d makes no difference", c.text, i, len(c.exprs))
			}
		}
	}
}

func TestStateOfOtherExpressionsIsNoPartOfTheBody(t *testing.T) {
	labelled := func(name string, data ...byte) []byte {
		return wire.Element(name, data)
	}
	used := labelled("quota", 12, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 9)
	fresh := labelled("quota", 12, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	if scan(t, used).Body != scan(t, fresh).Body {
		t.Error("the body depends on how much of a quota is used")
	}
	larger := labelled("quota", 12, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 9)
	if scan(t, larger).Body == scan(t, fresh).Body {
		t.Error("the body does not depend on the quota")
	}
	if scan(t, labelled("last", 8, 0, 1, 0, 0, 0, 0, 1)).Body != scan(t, labelled("last", 8, 0, 1, 0, 0, 0, 0, 0)).Body {
		t.Error("the body depends on the time of the last packet")
	}
}

func TestScanAllocatesNothing(t *testing.T) {
	all := readCaptured(t)
	if n := testing.AllocsPerRun(100, func() {
		for _, c := range all {
			if _, err := wire.ScanRule(c.exprs); err != nil {
				t.Fatal(err)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations for %d rules", n, len(all))
	}
}

func TestMalformedListsAreErrors(t *testing.T) {
	good := encode(t, nat, parse(t, "-s 10.42.0.0/16 -j ACCEPT"))
	for n := 1; n < len(good); n++ {
		if _, err := wire.ScanRule(good[:n]); err == nil && !wire.EndsElement(good, n) {
			t.Errorf("the first %d of %d bytes pass for a rule", n, len(good))
		}
		if r := wire.Decode(nat.Family, good[:n]); !r.Opaque() && !wire.EndsElement(good, n) {
			t.Errorf("the first %d of %d bytes are taken for %s", n, len(good), r)
		}
	}
}

func BenchmarkScanRule(b *testing.B) {
	exprs := encode(b, nat, parse(b, `-s 10.42.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE`))
	b.SetBytes(int64(len(exprs)))
	for b.Loop() {
		if _, err := wire.ScanRule(exprs); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	exprs := encode(b, nat, parse(b, `-s 10.42.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE`))
	for b.Loop() {
		wire.Decode(nat.Family, exprs)
	}
}
