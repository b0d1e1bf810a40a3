package flannel

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

func mustRule(t testing.TB, text string) Rule {
	t.Helper()
	r, err := ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, prefix(s))
	}
	return out
}

// savedRules are the rules of a dump, in the words of iptables-save.
func savedRules(t testing.TB, file string) []string {
	t.Helper()
	text := readFile(t, file)
	var rules []string
	for text != "" {
		var line string
		line, text = cutLine(text)
		if _, rule, ok := strings.Cut(line, "] -A "); ok {
			_, rule, _ = strings.Cut(rule, " ")
			rules = append(rules, rule)
		}
	}
	return rules
}

func readFile(t testing.TB, file string) string {
	t.Helper()
	data, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestTextIsThatOfIptablesSave(t *testing.T) {
	for _, file := range []string{
		"save/odd.nft.ip.txt", "save/odd.legacy.ip.txt", "save/foreign.nft.ip.txt", "save/foreign.legacy.ip.txt",
		"save/v0.28.10-running.nft.ip.txt", "save/v0.28.10-dual-running.nft.ip6.txt",
	} {
		for _, text := range savedRules(t, file) {
			if got := mustRule(t, text).String(); got != text {
				t.Errorf("%s:\n got %s\nwant %s", file, got, text)
			}
		}
	}
}

func TestParseRuleUnderstands(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want Rule
	}{
		"source and destination": {
			"-s 10.244.1.0/24 -d 10.244.0.0/16 -j RETURN", NewRule(returns, from(prefix("10.244.1.0/24")), to(prefix("10.244.0.0/16"))),
		},
		"negation before": {"! -s 10.0.0.0/8 -j ACCEPT", NewRule(Target{Kind: TargetAccept}, not(from(prefix("10.0.0.0/8"))))},
		"negation in the old place": {
			"-s ! 10.0.0.0/8 -j ACCEPT", NewRule(Target{Kind: TargetAccept}, not(from(prefix("10.0.0.0/8")))),
		},
		"an address alone":         {"-d 10.0.0.1 -j DROP", NewRule(Target{Kind: TargetDrop}, to(prefix("10.0.0.1/32")))},
		"host bits":                {"-d 10.0.0.1/8 -j DROP", NewRule(Target{Kind: TargetDrop}, to(prefix("10.0.0.0/8")))},
		"a netmask":                {"-d 10.0.0.0/255.240.0.0 -j DROP", NewRule(Target{Kind: TargetDrop}, to(prefix("10.0.0.0/12")))},
		"an IPv6 netmask":          {"-d fd00::/ffff:: -j DROP", NewRule(Target{Kind: TargetDrop}, to(prefix("fd00::/16")))},
		"every address is nothing": {"-s 0.0.0.0/0 -d ::/0 -p all -i + -j RETURN", NewRule(returns)},
		"no address at all":        {"! -s 0.0.0.0/0 -j RETURN", NewRule(returns, not(from(prefix("0.0.0.0/0"))))},
		"any order": {
			`-m comment --comment "a b" -o eth0 -p 17 -d 10.0.0.0/8 -i lo -s 10.1.0.0/16 -g X`,
			NewRule(Target{Kind: TargetGoto, Chain: "X"}, from(prefix("10.1.0.0/16")), to(prefix("10.0.0.0/8")),
				Match{Kind: MatchIn, Text: "lo"}, Match{Kind: MatchOut, Text: "eth0"}, Match{Kind: MatchProtocol, Text: "udp"},
				Match{Kind: MatchComment, Text: "a b"}),
		},
		"target before matches": {"-j RETURN -s 10.0.0.0/8", NewRule(returns, from(prefix("10.0.0.0/8")))},
		"long options": {
			"--source 10.0.0.0/8 --jump ACCEPT", NewRule(Target{Kind: TargetAccept}, from(prefix("10.0.0.0/8"))),
		},
		"mark with mask": {
			"-m mark --mark 0x4000/0x4000", NewRule(Target{Kind: TargetNone}, Match{Kind: MatchMark, Value: 0x4000, Mask: 0x4000}),
		},
		"mark without mask": {
			"-m mark --mark 16384", NewRule(Target{Kind: TargetNone}, Match{Kind: MatchMark, Value: 0x4000, Mask: allOnes}),
		},
		"mark negated": {
			"-m mark ! --mark 1/0xff", NewRule(Target{Kind: TargetNone}, Match{Kind: MatchMark, Not: true, Value: 1, Mask: 0xff}),
		},
		"masquerade": {"-j MASQUERADE --random-fully", NewRule(Target{Kind: TargetMasquerade, RandomFully: true})},
		"masquerade with both": {
			"-j MASQUERADE --random --random-fully", NewRule(Target{Kind: TargetMasquerade, Random: true, RandomFully: true}),
		},
		"a comment with escapes": {
			`-m comment --comment "a \" \\ \' b"`, NewRule(Target{Kind: TargetNone}, Match{Kind: MatchComment, Text: `a " \ ' b`}),
		},
		"a comment like an option": {
			`-m comment --comment -j -j X`, NewRule(Target{Kind: TargetJump, Chain: "X"}, Match{Kind: MatchComment, Text: "-j"}),
		},
		"a chain named like a target": {`-j "LOG"`, NewRule(Target{Kind: TargetJump, Chain: "LOG"})},
		"ICMPv6 by either name": {
			"-p icmpv6 -j DROP", NewRule(Target{Kind: TargetDrop}, Match{Kind: MatchProtocol, Text: "ipv6-icmp"}),
		},
		"nothing": {"", NewRule(Target{Kind: TargetNone})},
	} {
		if got := mustRule(t, c.text); !got.Equal(c.want) {
			t.Errorf("%s: %s\n got %#v\nwant %#v", name, c.text, got, c.want)
		}
	}
}

func TestWordsNotUnderstoodStayAndMakeTheRuleOpaque(t *testing.T) {
	for _, text := range []string{
		"-s 10.0.0.0/255.0.255.0 -j RETURN",
		"-s 10.0.0.0/33 -j RETURN",
		"-d 10.0.0.0/ffff:: -j RETURN",
		"-s host.example -j RETURN",
		"! -p all -j RETURN",
		"-m mark --mark x -j RETURN",
		"-m mark --mark 0x1/y -j RETURN",
		"-m mark --mark 0x1ffffffff -j RETURN",
		"-m tcp --dport http -j ACCEPT",
		"-m tcp --dport 80 --tcp-option 4 -j ACCEPT",
		"-m conntrack --ctorigdst 10.0.0.1 -j ACCEPT",
		"-m conntrack --ctstate NEW --ctdir ORIGINAL -j ACCEPT",
		"-m limit --limit 3/min -j ACCEPT",
		"-m addrtype -j ACCEPT",
		"-f -j ACCEPT",
		"-j MASQUERADE --to-ports x",
		"-j DNAT --to-destination host",
		"-j SNAT",
		"-j MARK --set-mark 1",
		"-j TPROXY --on-port 1",
		"-j ACCEPT --what",
		"-j",
		"!",
		"-s",
		"-m",
		"-m comment",
		"! -j RETURN",
		"-j RETURN -j ACCEPT",
	} {
		r := mustRule(t, text)
		if !r.Opaque() {
			t.Errorf("%s: understood as %#v", text, r)
		}
		if r.Equal(r) {
			t.Errorf("%s: an opaque rule equals itself", text)
		}
		if back := mustRule(t, r.String()); !back.identical(r) {
			t.Errorf("%s: came back from %s as %#v, was %#v", text, r, back, r)
		}
	}
}

func TestRulesOfOthersAreUnderstoodInFullOrOpaque(t *testing.T) {
	beyond := regexp.MustCompile(`-m (icmp|limit) `)
	for _, text := range savedRules(t, "save/foreign.nft.ip.txt") {
		if r := mustRule(t, text); r.Opaque() != beyond.MatchString(text) {
			t.Errorf("opaque is %t: %s", r.Opaque(), text)
		}
	}
}

func TestExtensionsAreTakenInWhole(t *testing.T) {
	for text, want := range map[string]string{
		"-p tcp -m tcp --sport 1:5 ! --dport 80:90 --tcp-flags SYN,ACK SYN -j DROP": "tcp [--sport 1:5] [! --dport 80:90] [--tcp-flags SYN,ACK SYN]",
		"-m conntrack ! --ctstate RELATED,ESTABLISHED -j ACCEPT":                    "conntrack [! --ctstate RELATED,ESTABLISHED]",
		"-m set ! --match-set cali40s:abc src,dst -j DROP":                          "set [! --match-set cali40s:abc src,dst]",
		"-m physdev --physdev-is-bridged -j ACCEPT":                                 "physdev [--physdev-is-bridged]",
		"-m addrtype --dst-type LOCAL --limit-iface-in -j X":                        "addrtype [--dst-type LOCAL] [--limit-iface-in]",
		"-p udp -m udp -j DROP":                                                     "udp",
	} {
		r := mustRule(t, text)
		m := r.Matches[len(r.Matches)-1]
		got := m.Extension()
		for o := range m.Options() {
			got += " [" + flag(o.Not, "! ") + strings.TrimSpace(o.Name+" "+o.Value) + "]"
		}
		if m.Kind != MatchExtension || got != want || r.String() != text || !r.Equal(r) {
			t.Errorf("%s:\n got %s\nwant %s", r, got, want)
		}
	}
}

func TestTargetsOfOthers(t *testing.T) {
	for text, want := range map[string]Target{
		"REJECT --reject-with tcp-reset":                    {Kind: TargetReject},
		"SNAT --to-source 192.0.2.1-192.0.2.9:1024-65535":   {Kind: TargetSNAT},
		"DNAT --to-destination [fd00::1]:80 --persistent":   {Kind: TargetDNAT},
		"REDIRECT --to-ports 3128":                          {Kind: TargetRedirect},
		"MARK --set-xmark 0x4000/0x4000":                    {Kind: TargetMark},
		"CONNMARK --restore-mark --nfmask 0x1 --ctmask 0x1": {Kind: TargetConnmark},
		"CT --notrack":            {Kind: TargetNotrack},
		"CT --zone 5":             {Kind: TargetPass},
		"NOTRACK":                 {Kind: TargetNotrack},
		"HL --hl-set 1":           {Kind: TargetTTL},
		`LOG --log-prefix "a b "`: {Kind: TargetPass},
	} {
		want.Text = text
		if got := NewTarget(text); got != want {
			t.Errorf("got %#v, want %#v", got, want)
		}
		if r := mustRule(t, "-j "+text); r.Target != want || r.String() != "-j "+text {
			t.Errorf("-j %s came back as %s", text, r)
		}
	}
}

func TestForeignRulesInTheWordsOfNft(t *testing.T) {
	for text, want := range map[string]string{
		"-p tcp -m tcp --dport 1:5 -j REJECT --reject-with tcp-reset":                     "tcp dport 1-5 reject with tcp reset",
		"-m conntrack ! --ctstate NEW,INVALID -j DROP":                                    "ct state != invalid,new drop",
		"-m addrtype --dst-type LOCAL --limit-iface-in -j SNAT --to-source 192.0.2.1":     "fib daddr . iif type local snat to 192.0.2.1",
		"-m connmark --mark 0x1/0x3 -j MARK --set-xmark 0x1/0x1":                          "ct mark & 0x00000003 == 0x00000001 meta mark set meta mark | 0x00000001",
		"-m set ! --match-set @peers src -j MASQUERADE --to-ports 1-2":                    "ip saddr != @peers masquerade to :1-2",
		"-m statistic --mode random --probability 0.5 -j MARK --set-xmark 0x1/0xffffffff": "-m statistic --mode random --probability 0.5 meta mark set 0x00000001",
	} {
		if got := mustRule(t, text).Nft(IPv4); got != want {
			t.Errorf("%s:\n got %s\nwant %s", text, got, want)
		}
	}
}

func TestAnOpenQuoteIsAnError(t *testing.T) {
	for _, text := range []string{`-m comment --comment "a`, `-m comment --comment "a\`, "\"\x1b"} {
		_, err := ParseRule(text)
		if err == nil || strings.ContainsRune(err.Error(), '\x1b') {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestOpaquePartsComeBackAsTheyWere(t *testing.T) {
	for name, r := range map[string]Rule{
		"two that would run together": NewRule(returns, Match{Text: "-m tcp --dport 80"}, Match{Text: "ct state new"}),
		"one like an option":          NewRule(returns, Match{Text: "-s 10.0.0.0/8"}),
		"an empty one":                NewRule(returns, Match{}),
		"spaces in a row":             NewRule(returns, Match{Text: " a  b "}),
		"an open quote":               NewRule(returns, Match{Text: `a "b`}),
		"a target in other words":     NewRule(Target{Text: "queue num 1"}, from(prefix("10.0.0.0/8"))),
		"an empty target":             NewRule(Target{}),
		"the escape itself":           NewRule(returns, Match{Text: `--opaque "x"`}),
		"bytes that are no text":      NewRule(returns, Match{Text: "\xff\x00 \x1b"}),
		"a quoted start":              NewRule(Target{Kind: TargetNone}, Match{Text: `"x"`}),
	} {
		back := mustRule(t, r.String())
		if !back.identical(r) {
			t.Errorf("%s: %s\n got %#v\nwant %#v", name, r, back, r)
		}
		checkJSON(t, r)
	}
}

func checkJSON(t *testing.T, r Rule) {
	t.Helper()
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatalf("%#v: %v", r, err)
	}
	var back Rule
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	if !back.identical(r) {
		t.Errorf("through JSON %s\n got %#v\nwant %#v", data, back, r)
	}
}

func TestBrokenRuleJSONIsRefused(t *testing.T) {
	for _, data := range []string{`"\"open"`, `"-m comment --comment \"open"`} {
		var r Rule
		if err := json.Unmarshal([]byte(data), &r); err == nil {
			t.Errorf("%s gave %s", data, r)
		}
	}
}

// understood makes a rule of understood parts in canonical form.
func understood(rnd *rand.Rand) Rule {
	word := func() string {
		letters := []rune("ab-_ \"'\\\n!éz0.+/\x1b\xff")
		s := make([]rune, rnd.IntN(6))
		for i := range s {
			s[i] = letters[rnd.IntN(len(letters))]
		}
		return string(s)
	}
	name := func() string { return "n" + word() }
	some := func() bool { return rnd.IntN(2) == 0 }
	address := func(kind MatchKind) Match {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rnd.Int()), byte(rnd.Int()), 7}), 1+rnd.IntN(32))
		if some() {
			p = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, byte(rnd.Int()), 15: byte(rnd.Int())}), 1+rnd.IntN(128))
		}
		return Match{Kind: kind, Not: some(), Prefix: p.Masked()}
	}
	makers := []func() Match{
		func() Match { return address(MatchSource) },
		func() Match { return address(MatchDestination) },
		func() Match { return Match{Kind: MatchIn, Not: some(), Text: name()} },
		func() Match { return Match{Kind: MatchOut, Not: some(), Text: name()} },
		func() Match {
			return Match{Kind: MatchProtocol, Not: some(), Text: ProtocolName(uint8(1 + rnd.IntN(255)))}
		},
		func() Match { return Match{Kind: MatchMark, Not: some(), Value: rnd.Uint32(), Mask: rnd.Uint32()} },
		func() Match { return Match{Kind: MatchMark, Not: some(), Value: rnd.Uint32(), Mask: allOnes} },
		func() Match { return Match{Kind: MatchComment, Text: word()} },
		func() Match { return NewExtension("tcp --sport 1:5 ! --dport 80") },
		func() Match { return NewExtension("conntrack ! --ctstate NEW") },
		func() Match { return NewExtension("set ! --match-set x src,dst") },
	}
	var ms []Match
	for range rnd.IntN(5) {
		ms = append(ms, makers[rnd.IntN(len(makers))]())
	}
	targets := []Target{
		{Kind: TargetNone},
		{Kind: TargetAccept},
		{Kind: TargetDrop},
		{Kind: TargetReturn},
		{Kind: TargetJump, Chain: name()},
		{Kind: TargetGoto, Chain: name()},
		{Kind: TargetMasquerade, Random: some(), RandomFully: some()},
		NewTarget("REJECT --reject-with tcp-reset"),
		NewTarget(`LOG --log-prefix "-m x"`),
		NewTarget("MASQUERADE --to-ports 1-2 --random"),
		{Kind: TargetJump, Chain: []string{"ACCEPT", "LOG", "MASQUERADE", "!", "", "--opaque", "-s", "-m"}[rnd.IntN(8)]},
	}
	return NewRule(targets[rnd.IntN(len(targets))], ms...)
}

func TestEveryUnderstoodRuleComesBackFromItsText(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		r := understood(rnd)
		back, err := ParseRule(r.String())
		if err != nil {
			t.Fatalf("%#v: %v", r, err)
		}
		if !back.Equal(r) {
			t.Fatalf("%s\n got %#v\nwant %#v", r, back, r)
		}
		checkJSON(t, r)
	}
}

func FuzzParseRule(f *testing.F) {
	for _, text := range savedRules(f, "save/odd.nft.ip.txt") {
		f.Add(text)
	}
	f.Add(`--opaque "a" -j --opaque "b"`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRule(text)
		if err != nil {
			return
		}
		back, err := ParseRule(r.String())
		if err != nil || !back.identical(r) {
			t.Errorf("%q gave %#v, whose text %q gave %#v (%v)", text, r, r.String(), back, err)
		}
		checkJSON(t, r)
	})
}

func TestNftTextIsThatOfNftList(t *testing.T) {
	mark := Match{Kind: MatchMark, Value: 0x4000, Mask: allOnes}
	masked := Match{Kind: MatchMark, Value: 0x4000, Mask: 0xf000}
	eth, veth := Match{Kind: MatchIn, Text: "eth0"}, Match{Kind: MatchOut, Text: "veth+"}
	tcp := Match{Kind: MatchProtocol, Text: "tcp"}
	drop, accept := Target{Kind: TargetDrop}, Target{Kind: TargetAccept}
	random := Target{Kind: TargetMasquerade, Random: true}
	fully := Target{Kind: TargetMasquerade, RandomFully: true}
	both := Target{Kind: TargetMasquerade, Random: true, RandomFully: true}
	for want, r := range map[string]Rule{
		"meta mark 0x00004000 return":                      NewRule(returns, mark),
		"meta mark != 0x00004000 return":                   NewRule(returns, not(mark)),
		"meta mark & 0x0000f000 == 0x00004000 return":      NewRule(returns, masked),
		"meta mark & 0x0000f000 != 0x00004000 return":      NewRule(returns, not(masked)),
		"ip saddr 10.1.1.0/24 ip daddr 10.1.0.0/16 return": NewRule(returns, from(prefix("10.1.1.0/24")), to(prefix("10.1.0.0/16"))),
		"ip saddr != 10.0.0.1 drop":                        NewRule(drop, not(from(prefix("10.0.0.1/32")))),
		`iifname "eth0" oifname != "veth*" jump x`:         NewRule(Target{Kind: TargetJump, Chain: "x"}, eth, not(veth)),
		"meta l4proto != tcp goto x":                       NewRule(Target{Kind: TargetGoto, Chain: "x"}, not(tcp)),
		"masquerade":                                       NewRule(Target{Kind: TargetMasquerade}),
		"masquerade random":                                NewRule(random),
		"masquerade fully-random":                          NewRule(fully),
		"masquerade random,fully-random":                   NewRule(both),
		`accept comment "why"`:                             NewRule(accept, Match{Kind: MatchComment, Text: "why"}),
		"ct state new queue num 1":                         NewRule(Target{Text: "queue num 1"}, Match{Text: "ct state new"}),
		"":                                                 NewRule(Target{Kind: TargetNone}),
	} {
		if got := r.Nft(IPv4); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	r := NewRule(Target{Kind: TargetAccept}, from(prefix("fd00:244::/48")))
	if got := r.Text(Nftables, IPv6); got != "ip6 saddr fd00:244::/48 accept" {
		t.Error(got)
	}
	if got := r.Text(IptablesNft, IPv6); got != "-s fd00:244::/48 -j ACCEPT" {
		t.Error(got)
	}
}

func TestNewRuleLeavesItsArgumentsAlone(t *testing.T) {
	ms := []Match{{Kind: MatchComment, Text: "x"}, from(prefix("10.0.0.0/8"))}
	before := append([]Match(nil), ms...)
	r := NewRule(returns, ms...)
	if !reflect.DeepEqual(ms, before) || r.Matches[0].Kind != MatchSource || r.Comment() != "x" {
		t.Errorf("%#v %#v", ms, r)
	}
}

func BenchmarkString(b *testing.B) {
	r := mustRule(b, `-s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully`)
	b.ReportAllocs()
	for b.Loop() {
		_ = r.String()
	}
}

func BenchmarkParseRule(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		mustRule(b, `-s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully`)
	}
}
