package wire_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
)

func TestEncodeRefusesWhatItCannotSay(t *testing.T) {
	prefix := func(s string) flannel.Match {
		return flannel.Match{Kind: flannel.MatchSource, Prefix: prefixes(s)[0]}
	}
	accept := flannel.Target{Kind: flannel.TargetAccept}
	comment := []flannel.Match{{Kind: flannel.MatchComment, Text: "a"}}
	native := flannel.MasqChain(flannel.Nftables, flannel.IPv4)
	legacy := flannel.MasqChain(flannel.IptablesLegacy, flannel.IPv4)
	for name, c := range map[string]struct {
		chain flannel.ChainID
		rule  flannel.Rule
		want  string
	}{
		"an opaque match":            {nat, flannel.NewRule(accept, flannel.Match{Text: "-m set"}), `match "-m set" is not understood`},
		"an opaque target":           {nat, flannel.NewRule(flannel.Target{Text: "-j LOG"}), `target "-j LOG" is not understood`},
		"a prefix of the other kind": {nat, flannel.NewRule(accept, prefix("fd00::/8")), "no masked ip prefix"},
		"a prefix with host bits":    {nat, flannel.NewRule(accept, prefix("10.0.0.1/8")), "no masked ip prefix"},
		"no prefix":                  {nat, flannel.NewRule(accept, flannel.Match{Kind: flannel.MatchSource}), "no masked ip prefix"},
		"a prefix of everything":     {nat, flannel.NewRule(accept, prefix("0.0.0.0/0")), "no condition"},
		"two sources":                {nat, flannel.NewRule(accept, prefix("10.0.0.0/8"), prefix("10.0.0.0/9")), "room for one"},
		"a mark that never matches": {
			nat, flannel.NewRule(accept, flannel.Match{Kind: flannel.MatchMark, Value: 3, Mask: 1}),
			"mark 0x3/0x1 matches nothing",
		},
		"any interface": {nat, flannel.NewRule(accept, flannel.Match{Kind: flannel.MatchIn, Text: "+"}), `"+" is no interface name`},
		"a long interface name": {
			nat, flannel.NewRule(accept, flannel.Match{Kind: flannel.MatchIn, Text: "a234567890123456"}),
			"no interface name",
		},
		"any protocol": {nat, flannel.NewRule(accept, flannel.Match{Kind: flannel.MatchProtocol, Text: "0"}), `"0" is no protocol`},
		"a protocol unheard of": {
			nat, flannel.NewRule(accept, flannel.Match{Kind: flannel.MatchProtocol, Text: "all"}),
			`"all" is no protocol`,
		},
		"a long comment": {
			nat, flannel.NewRule(accept, flannel.Match{Kind: flannel.MatchComment, Text: strings.Repeat("a", 256)}),
			"cannot be written",
		},
		"a comment with NUL": {
			nat, flannel.NewRule(accept, flannel.Match{Kind: flannel.MatchComment, Text: "a\x00b"}),
			"cannot be written",
		},
		"a native comment":  {native, flannel.NewRule(accept, flannel.Match{Kind: flannel.MatchComment, Text: "a"}), "no expressions"},
		"a jump to nowhere": {nat, flannel.NewRule(flannel.Target{Kind: flannel.TargetJump}), `"" is no chain`},
		"an unknown match":  {nat, flannel.NewRule(accept, flannel.Match{Kind: 99}), "unknown kind 99"},
		"a legacy chain":    {legacy, flannel.NewRule(accept), "iptables-legacy keeps no nf_tables rules"},
		"more than fits":    {nat, flannel.NewRule(accept, slices.Repeat(comment, 250)...), "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			exprs, err := wire.Encode(c.chain, c.rule)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.chain.String()) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if exprs != nil {
				t.Errorf("%d bytes beside an error", len(exprs))
			}
		})
	}
}

// randomRule makes a rule that the chain can hold.
func randomRule(r *rand.Rand, c flannel.ChainID) flannel.Rule {
	chance := func(n int) bool { return r.IntN(n) == 0 }
	var ms []flannel.Match
	for _, kind := range []flannel.MatchKind{flannel.MatchSource, flannel.MatchDestination} {
		if chance(2) {
			p := randomPrefix(r, c.Family, 1+r.IntN(c.Family.Bits()))
			ms = append(ms, flannel.Match{Kind: kind, Not: chance(3), Prefix: p})
		}
	}
	for _, kind := range []flannel.MatchKind{flannel.MatchIn, flannel.MatchOut} {
		if chance(4) {
			name := []string{"eth0", "cni+", "a", "123456789012345", "eth++", "é+"}[r.IntN(6)]
			ms = append(ms, flannel.Match{Kind: kind, Not: chance(3), Text: name})
		}
	}
	if chance(4) {
		name := flannel.ProtocolName(uint8(1 + r.IntN(255)))
		ms = append(ms, flannel.Match{Kind: flannel.MatchProtocol, Not: chance(3), Text: name})
	}
	for range r.IntN(3) {
		mask := r.Uint32()
		if chance(2) {
			mask = 1<<32 - 1
		}
		ms = append(ms, flannel.Match{Kind: flannel.MatchMark, Not: chance(3), Value: r.Uint32() & mask, Mask: mask})
		if c.Backend == flannel.IptablesNft {
			ms = append(ms, flannel.Match{Kind: flannel.MatchComment, Text: randomText(r)})
		}
	}
	return flannel.NewRule(randomTarget(r), ms...)
}

func randomText(r *rand.Rand) string {
	b := make([]byte, r.IntN(256))
	for i := range b {
		b[i] = byte(1 + r.IntN(255))
	}
	return string(b)
}

func randomTarget(r *rand.Rand) flannel.Target {
	t := flannel.Target{Kind: flannel.TargetNone + flannel.TargetKind(r.IntN(int(flannel.TargetMasquerade)))}
	switch t.Kind {
	case flannel.TargetJump, flannel.TargetGoto:
		t.Chain = []string{"FLANNEL-POSTRTG", "x", strings.Repeat("c", 28)}[r.IntN(3)]
	case flannel.TargetMasquerade:
		t.Random, t.RandomFully = r.IntN(2) == 0, r.IntN(2) == 0
	}
	return t
}

func FuzzEncode(f *testing.F) {
	for i := range uint64(64) {
		f.Add(i, i*i)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) {
		r := rand.New(rand.NewPCG(a, b))
		for _, backend := range []flannel.Backend{flannel.IptablesNft, flannel.Nftables} {
			c := flannel.ChainID{Backend: backend, Family: flannel.Families[r.IntN(2)], Table: "nat", Name: "c"}
			rule := randomRule(r, c)
			count := flannel.Counter{Packets: r.Uint64(), Bytes: r.Uint64()}
			exprs, err := wire.EncodeCounted(c, rule, count)
			if err != nil {
				t.Fatalf("%s: %v", rule, err)
			}
			back, consumed := wire.DecodeCounting(c.Family, exprs)
			if !back.Equal(rule) {
				t.Fatalf("%s: encoded %s, decoded %s", backend, rule, back)
			}
			s := scan(t, exprs)
			if s.Exprs != consumed {
				t.Fatalf("%s: %d of %d expressions decoded", rule, consumed, s.Exprs)
			}
			if s.Counted != (backend == flannel.IptablesNft) || s.Counted && s.Counter != count {
				t.Fatalf("%s: counted %+v, want %+v", rule, s, count)
			}
		}
	})
}
