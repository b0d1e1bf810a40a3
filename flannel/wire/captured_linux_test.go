package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
)

var update = flag.Bool("update", false, "write testdata/captured.txt anew from rules that real programs give to the kernel")

const capturedFile = "testdata/captured.txt"

// captured is a rule as the kernel gave it back, with the text it decodes to.
type captured struct {
	family flannel.Family
	by     string
	text   string
	exprs  []byte
}

// readCaptured reads lines of family, writer, text and hexadecimal bytes, separated by tabs. The bytes are those of a
// machine of little byte order.
func readCaptured(t testing.TB) (all []captured) {
	t.Helper()
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the captured bytes are those of another byte order")
	}
	data, err := os.ReadFile(capturedFile)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		parts := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		var c captured
		if err := c.family.UnmarshalText([]byte(parts[0])); err != nil {
			t.Fatal(err)
		}
		c.by, c.text = parts[1], parts[2]
		if c.exprs, err = hex.DecodeString(parts[3]); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

func TestCapturedRulesDecodeAsBefore(t *testing.T) {
	if *update {
		capture(t)
	}
	for _, c := range readCaptured(t) {
		r, consumed := wire.DecodeCounting(c.family, c.exprs)
		if got := r.String(); got != c.text {
			t.Errorf("%s by %s:\n got %s\nwant %s", c.family, c.by, got, c.text)
		}
		if s, err := wire.ScanRule(c.exprs); err != nil || s.Exprs != consumed {
			t.Errorf("%s by %s: %s: %d expressions decoded, %d there (%v)", c.family, c.by, c.text, consumed, s.Exprs, err)
		}
	}
}

// capture lets every version of iptables, and nft, write the rules of both families and keeps what the kernel holds.
func capture(t *testing.T) {
	page, err := os.ReadFile("testdata/foreign.rules")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	seen := map[string]bool{}
	keep := func(k *kernel, by string, c flannel.ChainID) {
		for _, e := range k.dump(c) {
			if key := c.Family.String() + string(e.exprs); !seen[key] {
				seen[key] = true
				fmt.Fprintf(&out, "%s\t%s\t%s\t%x\n", c.Family, by, wire.Decode(c.Family, e.exprs), e.exprs)
			}
		}
	}
	node := nodes["odd networks"]
	o := flannel.Options{RandomFully: true, Forward: true, Masq: true}
	for _, v := range versions(t) {
		k := newKernel(t)
		for _, f := range flannel.Families {
			for _, w := range flannel.Expected(node.networks, node.subnets, flannel.GenV0210, o, flannel.IptablesNft, f) {
				k.restore(v, f, script(w.ID, w.Rules)+script(w.HookChain, []flannel.Rule{w.Hook}))
				keep(k, v.name, w.ID)
				keep(k, v.name, w.HookChain)
			}
		}
		k = newKernel(t)
		k.restore(v, flannel.IPv4, string(page))
		for _, c := range chainsOf(string(page)) {
			keep(k, v.name, c)
		}
	}
	k := newKernel(t)
	k.Feed(nativeScript(node.networks, node.subnets), "nft", "-f", "-")
	for _, f := range flannel.Families {
		keep(k, "nft", flannel.MasqChain(flannel.Nftables, f))
		keep(k, "nft", flannel.ForwardChain(flannel.Nftables, f))
	}
	k.Feed(foreignNative, "nft", "-f", "-")
	keep(k, "nft", flannel.ChainID{Backend: flannel.Nftables, Family: flannel.IPv4, Table: "other", Name: "c"})
	if err := os.WriteFile(capturedFile, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, c := range readCaptured(f) {
		f.Add(c.family == flannel.IPv6, c.exprs)
	}
	f.Add(false, []byte{})
	f.Add(false, []byte{0, 0, 1, 0})                                // an attribute shorter than its header
	f.Add(false, []byte{3, 0, 1, 0})                                //
	f.Add(true, []byte{0xff, 0xff, 1, 0})                           // longer than the list
	f.Add(true, []byte{8, 0, 1, 0, 4, 0, 1, 0})                     // an expression without a name
	f.Add(true, []byte{4, 0, 1, 0, 4, 0, 1, 0, 4, 0, 1, 0, 1})      // a rest shorter than a header
	f.Add(false, []byte{12, 0, 1, 0, 8, 0, 1, 0, 'c', 'm', 'p', 0}) // no data
	f.Fuzz(func(t *testing.T, v6 bool, exprs []byte) {
		family := flannel.IPv4
		if v6 {
			family = flannel.IPv6
		}
		before := bytes.Clone(exprs)
		s, err := wire.ScanRule(exprs)
		r, consumed := wire.DecodeCounting(family, exprs)
		if !bytes.Equal(before, exprs) {
			t.Fatal("the input was changed")
		}
		if err != nil && !r.Opaque() {
			t.Fatalf("scan: %v, but the rule looks understood: %s", err, r)
		}
		if err == nil && consumed != s.Exprs {
			t.Fatalf("%d of %d expressions are in %s", consumed, s.Exprs, r)
		}
		if r.Opaque() {
			return
		}
		// What is understood can be written again, or is refused, and then says the same.
		for _, b := range []flannel.Backend{flannel.IptablesNft, flannel.Nftables} {
			again, err := wire.Encode(flannel.ChainID{Backend: b, Family: family, Table: "t", Name: "c"}, r)
			if err != nil {
				continue
			}
			if back := wire.Decode(family, again); !back.Equal(r) {
				t.Fatalf("decoded %s, then %s", r, back)
			}
		}
	})
}
