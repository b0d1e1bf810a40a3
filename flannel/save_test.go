package flannel

import (
	"net/netip"
	"strings"
	"testing"
)

// loadSave reads a dump from testdata; its name tells backend and family.
func loadSave(t testing.TB, name string) *Ruleset {
	t.Helper()
	b, f := IptablesNft, IPv4
	if strings.Contains(name, ".legacy.") {
		b = IptablesLegacy
	}
	if strings.HasSuffix(name, ".ip6.txt") {
		f = IPv6
	}
	return parseSave(t, readFile(t, "save/"+name), b, f)
}

func parseSave(t testing.TB, text string, b Backend, f Family) *Ruleset {
	t.Helper()
	rs, err := ParseSave(text, b, f)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func TestParseSaveReadsTablesChainsAndCounters(t *testing.T) {
	rs := loadSave(t, "v0.28.10-dual-running.nft.ip6.txt")
	if len(rs.Tables) != 2 || !rs.HasTable(TableID{IptablesNft, IPv6, "nat"}) || rs.HasTable(TableID{IptablesNft, IPv6, "raw"}) {
		t.Errorf("tables %v", rs.Tables)
	}
	c := rs.Chain(ChainID{IptablesNft, IPv6, "nat", "FLANNEL-POSTRTG"})
	if c == nil || !c.Present || c.Base != nil || len(c.Entries) != 6 || !c.Entries[0].Counted {
		t.Fatalf("%+v", c)
	}
	base := rs.Chain(ChainID{IptablesNft, IPv6, "nat", "POSTROUTING"})
	if want := (BaseChain{"nat", "postrouting", 100, "accept"}); base == nil || base.Base == nil || *base.Base != want {
		t.Errorf("%+v", base)
	}
}

const small = "" +
	"*nat\n:PREROUTING ACCEPT [1:2]\n:POSTROUTING DROP [0:0]\n:X - [0:0]\n[3:4] -A X -s 10.0.0.0/8 -j RETURN\n-A X\nCOMMIT\n" +
	"# a \"comment\n*mangle\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n" +
	"*raw\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n*security\n:INPUT ACCEPT\nCOMMIT\n"

func TestParseSaveKnowsBuiltInChains(t *testing.T) {
	rs := parseSave(t, small, IptablesLegacy, IPv4)
	for name, want := range map[ChainID]BaseChain{
		{IptablesLegacy, IPv4, "nat", "PREROUTING"}:  {"nat", "prerouting", -100, "accept"},
		{IptablesLegacy, IPv4, "nat", "POSTROUTING"}: {"nat", "postrouting", 100, "drop"},
		{IptablesLegacy, IPv4, "mangle", "OUTPUT"}:   {"route", "output", -150, "accept"},
		{IptablesLegacy, IPv4, "raw", "PREROUTING"}:  {"filter", "prerouting", -300, "accept"},
		{IptablesLegacy, IPv4, "security", "INPUT"}:  {"filter", "input", 50, "accept"},
	} {
		if c := rs.Chain(name); c == nil || c.Base == nil || *c.Base != want {
			t.Errorf("%s: %+v", name, c)
		}
	}
	x := rs.Chain(ChainID{IptablesLegacy, IPv4, "nat", "X"}).Entries
	if len(x) != 2 || x[0].Counter != (Counter{3, 4}) || !x[0].Counted || x[1].Counted || x[1].Rule.Target.Kind != TargetNone {
		t.Errorf("%+v", x)
	}
}

func TestParseSaveToleratesCarriageReturns(t *testing.T) {
	rs := parseSave(t, strings.ReplaceAll(small, "\n", "\r\n"), IptablesNft, IPv4)
	if x := rs.Chain(ChainID{IptablesNft, IPv4, "nat", "X"}); len(x.Entries) != 2 || x.Entries[0].Rule.Opaque() {
		t.Errorf("%+v", x)
	}
}

func TestParseSaveNotesFlannelsChainsAsAbsent(t *testing.T) {
	rs := parseSave(t, small, IptablesNft, IPv4)
	if c := rs.Chain(MasqChain(IptablesNft, IPv4)); c == nil || c.Present {
		t.Errorf("%+v", c)
	}
	if c := rs.Chain(MasqChain(IptablesNft, IPv6)); c != nil {
		t.Errorf("a chain of the other family: %+v", c)
	}
}

func TestParseSaveKeepsANewlineInAComment(t *testing.T) {
	rs := loadSave(t, "odd.nft.ip.txt")
	rules := rs.Chain(ChainID{IptablesNft, IPv4, "nat", "PLAIN"}).Entries
	if last := rules[len(rules)-1].Rule; last.Comment() != "new\nline" {
		t.Errorf("%q", last)
	}
}

func TestParseSaveNamesTheLineOfAFault(t *testing.T) {
	for text, want := range map[string]string{
		"# x\n-A X -j RETURN\n":          `line 2: "-A X -j RETURN" stands outside of a table`,
		"*nat\n*filter\n":                "line 2: table filter begins before table nat ended",
		"*\n":                            "line 1: table without a name",
		"*nat\n:X\n":                     `line 2: chain "X" has no policy`,
		"*nat\n:X - [0]\n":               `line 2: "[0]" is no counter [packets:bytes]`,
		"*nat\n:X - [0:0]\n:X - [0:0]\n": "line 3: chain X is declared twice",
		"*nat\n-A Y -j RETURN\nCOMMIT\n": "line 2: chain Y is not declared",
		"*nat\n:X - [0:0]\n[1:x] -A X\n": `line 3: "[1:x]" is no counter [packets:bytes]`,
		"*nat\n:X - [0:0]\n-D X 1\n":     `line 3: "-D X 1" is no rule`,
		"*nat\n:X - [0:0]\n[0:0]\n":      `line 3: "" is no rule`,
		"*nat\n:X - [0:0]\n":             "line 3: table nat ends without COMMIT",
		"*nat\n:X - [0:0]\n-A X -m comment --comment \"a\nCOMMIT\n":  "line 3: parse rule",
		"*nat\n:X - [0:0]\n-A X --\x1b\n\x1b\n":                      `line 4: "\x1b" is no rule`,
		"*nat\n:X - [0:0]\n-A X -m comment --comment \"a\nb\"\nno\n": `line 5: "no" is no rule`,
	} {
		_, err := ParseSave(text, IptablesNft, IPv4)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q\n got %v\nwant %s", text, err, want)
		}
	}
}

func FuzzParseSave(f *testing.F) {
	f.Add(small)
	f.Add(readFile(f, "save/odd.nft.ip.txt"))
	f.Add(readFile(f, "save/v0.18.1-running.legacy.ip.txt"))
	networks, subnets := prefixes("10.244.0.0/16"), prefixes("10.244.1.0/24")
	f.Fuzz(func(t *testing.T, text string) {
		rs, err := ParseSave(text, IptablesNft, IPv4)
		if err != nil {
			if Printable(err.Error()) != err.Error() {
				t.Errorf("%q: error with unprintable bytes: %q", text, err)
			}
			return
		}
		checkInferredAndCompared(t, rs, networks, subnets)
	})
}

// checkInferredAndCompared holds what must be true of any ruleset.
func checkInferredAndCompared(t *testing.T, rs *Ruleset, networks, subnets []netip.Prefix) {
	t.Helper()
	all := Options{RandomFully: true, Forward: true, Masq: true}
	for _, trace := range Infer(rs, networks, subnets) {
		for _, g := range append([]Generation{trace.Generation}, Generations...) {
			for _, w := range Expected(networks, subnets, g, all, rs.Backend, trace.Family) {
				checkDiff(t, rs, w, Compare(rs, w))
			}
		}
	}
}
