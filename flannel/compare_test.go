package flannel

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	everything = Options{RandomFully: true, Forward: true, Masq: true}
	nets       = prefixes("10.244.0.0/16", "fd00:244::/48")
	subs       = prefixes("10.244.1.0/24", "fd00:244:0:1::/64")
)

func masqWanted(g Generation) Wanted {
	b := IptablesNft
	if g == GenV0250 {
		b = Nftables
	}
	return Expected(nets, subs, g, everything, b, IPv4)[0]
}

// built is a ruleset that holds the wanted chain with these rules, and its base chain with these.
func built(w Wanted, rules, base []Rule) *Ruleset {
	rs := &Ruleset{Backend: w.ID.Backend}
	rs.Chains = append(rs.Chains, Chain{ID: w.ID, Present: true, Base: w.Base, Entries: entries(rules)})
	if hooked(w) {
		rs.Chains = append(rs.Chains, Chain{ID: w.HookChain, Present: true, Entries: entries(base)})
	}
	slices.SortFunc(rs.Chains, func(a, b Chain) int { return a.ID.Compare(b.ID) })
	return rs
}

func entries(rules []Rule) []Entry {
	out := make([]Entry, len(rules))
	for i, r := range rules {
		out[i].Rule = r
	}
	return out
}

// outline gives one word a line: status, place wanted, place found, copies.
func outline(d ChainDiff) string {
	var out []string
	for _, l := range d.Rules {
		s := fmt.Sprintf("%s %d<-%d", l.Status, l.Want, l.Found)
		if l.Times > 1 {
			s += fmt.Sprintf(" x%d", l.Times)
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func pick(rules []Rule, order ...int) []Rule {
	var out []Rule
	for _, i := range order {
		out = append(out, rules[i-1])
	}
	return out
}

func TestCompareTellsEachRule(t *testing.T) {
	w := masqWanted(GenV0210)
	r := w.Rules
	foreign := NewRule(Target{Kind: TargetAccept}, from(prefix("192.168.0.0/16")))
	opaque := NewRule(Target{Kind: TargetAccept}, Match{Text: "-m conntrack --ctstate NEW"})
	plain := r[4]
	plain.Target.RandomFully = false
	for name, c := range map[string]struct {
		have  []Rule
		state ChainState
		want  string
	}{
		"as written": {r, ChainOK, "ok 1<-1, ok 2<-2, ok 3<-3, ok 4<-4, ok 5<-5, ok 6<-6"},
		"one missing": {
			pick(r, 1, 2, 4, 5, 6), ChainPartial, "ok 1<-1, ok 2<-2, missing 3<-0, ok 4<-3, ok 5<-4, ok 6<-5",
		},
		"nothing there": {
			nil, ChainEmpty, "missing 1<-0, missing 2<-0, missing 3<-0, missing 4<-0, missing 5<-0, missing 6<-0",
		},
		"the last moved to the front": {
			pick(r, 6, 1, 2, 3, 4, 5), ChainDiffers, "ok 1<-2, ok 2<-3, ok 3<-4, ok 4<-5, ok 5<-6, misplaced 6<-1",
		},
		"the first moved to the end": {
			pick(r, 2, 3, 4, 5, 6, 1), ChainDiffers, "misplaced 1<-6, ok 2<-1, ok 3<-2, ok 4<-3, ok 5<-4, ok 6<-5",
		},
		"one repeated": {
			pick(r, 1, 2, 3, 4, 5, 6, 2, 2), ChainDiffers,
			"ok 1<-1, ok 2<-2, ok 3<-3, ok 4<-4, ok 5<-5, ok 6<-6, duplicate 0<-7 x2",
		},
		"a foreign rule between": {
			[]Rule{r[0], r[1], foreign, r[2], r[3], r[4], r[5], foreign},
			ChainDiffers,
			"ok 1<-1, ok 2<-2, extra 0<-3 x2, ok 3<-4, ok 4<-5, ok 5<-6, ok 6<-7",
		},
		"a rule not understood in front": {
			append([]Rule{opaque}, r...), ChainDiffers, "opaque 0<-1, ok 1<-2, ok 2<-3, ok 3<-4, ok 4<-5, ok 5<-6, ok 6<-7",
		},
		"rules not understood, alike": {
			append(slices.Clone(r), opaque, opaque), ChainDiffers,
			"ok 1<-1, ok 2<-2, ok 3<-3, ok 4<-4, ok 5<-5, ok 6<-6, opaque 0<-7 x2",
		},
		"foreign rules alone": {
			[]Rule{foreign},
			ChainPartial,
			"extra 0<-1, missing 1<-0, missing 2<-0, missing 3<-0, missing 4<-0, missing 5<-0, missing 6<-0",
		},
		"without --random-fully": {
			[]Rule{r[0], r[1], r[2], r[3], plain, r[5]}, ChainDiffers, "ok 1<-1, ok 2<-2, ok 3<-3, ok 4<-4, variant 5<-5, ok 6<-6",
		},
		"with and without --random-fully": {
			[]Rule{r[0], r[1], r[2], r[3], plain, r[4], r[5]},
			ChainDiffers,
			"ok 1<-1, ok 2<-2, ok 3<-3, ok 4<-4, variant 0<-5, ok 5<-6, ok 6<-7",
		},
		"every rule twice": {
			append(slices.Clone(r), r...), ChainDiffers, "ok 1<-1, ok 2<-2, ok 3<-3, ok 4<-4, ok 5<-5, ok 6<-6, " +
				"duplicate 0<-7, duplicate 0<-8, duplicate 0<-9, duplicate 0<-10, duplicate 0<-11, duplicate 0<-12",
		},
	} {
		rs := built(w, c.have, []Rule{w.Hook})
		d := Compare(rs, w)
		if got := outline(d); got != c.want || d.State != c.state {
			t.Errorf("%s: %s\n got %s\nwant %s", name, d.State, got, c.want)
		}
		checkDiff(t, rs, w, d)
	}
}

func TestCompareTellsTheHook(t *testing.T) {
	w := masqWanted(GenV0210)
	kube := NewRule(Target{Kind: TargetJump, Chain: "KUBE-POSTROUTING"})
	bare := NewRule(Target{Kind: TargetJump, Chain: ChainMasq})
	narrow := NewRule(Target{Kind: TargetJump, Chain: ChainMasq}, from(prefix("10.0.0.0/8")))
	for name, c := range map[string]struct {
		base  []Rule
		rules []Rule
		state ChainState
		want  Hook
	}{
		"last":                      {[]Rule{kube, w.Hook}, w.Rules, ChainOK, Hook{Position: 2, Of: 2, Copies: 1}},
		"first":                     {[]Rule{w.Hook, kube}, w.Rules, ChainOK, Hook{Position: 1, Of: 2, Copies: 1}},
		"without its comment":       {[]Rule{bare}, w.Rules, ChainOK, Hook{Position: 1, Of: 1, Copies: 1}},
		"twice":                     {[]Rule{kube, w.Hook, w.Hook}, w.Rules, ChainDiffers, Hook{Position: 2, Of: 3, Copies: 2}},
		"gone":                      {[]Rule{kube}, w.Rules, ChainUnreferenced, Hook{Of: 1}},
		"for some packets only":     {[]Rule{kube, narrow}, w.Rules, ChainDiffers, Hook{Of: 2}},
		"gone, and a rule too":      {nil, w.Rules[1:], ChainUnreferenced, Hook{}},
		"gone, and the chain empty": {nil, nil, ChainEmpty, Hook{}},
	} {
		rs := built(w, c.rules, c.base)
		d := Compare(rs, w)
		entry := d.Hook.Entry
		d.Hook.Entry = Entry{}
		c.want.Chain = ChainPostrouting
		if d.State != c.state || fmt.Sprint(d.Hook) != fmt.Sprint(c.want) {
			t.Errorf("%s: %s %+v, want %s %+v", name, d.State, d.Hook, c.state, c.want)
		}
		if d.Hook.Position > 0 && !leadsTo(entry.Rule, ChainMasq) {
			t.Errorf("%s: entry %v", name, entry.Rule)
		}
	}
}

func TestCompareTellsAbsentFromUnread(t *testing.T) {
	w := masqWanted(GenV0210)
	for name, c := range map[string]struct {
		rs   *Ruleset
		want ChainState
	}{
		"no ruleset":          {nil, ChainUnreadable},
		"chain not looked at": {&Ruleset{}, ChainUnreadable},
		"chain absent":        {&Ruleset{Chains: []Chain{{ID: w.ID}}}, ChainAbsent},
		"base chain not read": {&Ruleset{Chains: []Chain{{ID: w.ID, Present: true, Entries: entries(w.Rules)}}}, ChainUnreadable},
	} {
		if d := Compare(c.rs, w); d.State != c.want || d.Wanted != 6 || d.ID != w.ID {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestCompareHoldsNativeChainsToTheirPlace(t *testing.T) {
	w := masqWanted(GenV0250)
	rs := built(w, w.Rules, nil)
	for name, c := range map[string]struct {
		base *BaseChain
		want ChainState
	}{
		"as Flannel makes it":    {w.Base, ChainOK},
		"not called":             {nil, ChainUnreferenced},
		"at another priority":    {&BaseChain{"nat", "postrouting", 99, "accept"}, ChainDiffers},
		"with a policy of drop":  {&BaseChain{"nat", "postrouting", 100, "drop"}, ChainDiffers},
		"at another hook":        {&BaseChain{"nat", "input", 100, "accept"}, ChainDiffers},
		"of another type, alike": {&BaseChain{"filter", "postrouting", 100, "accept"}, ChainDiffers},
	} {
		rs.Chains[0].Base = c.base
		if d := Compare(rs, w); d.State != c.want || d.Hook.Chain != "" {
			t.Errorf("%s: %s %+v", name, d.State, d.Hook)
		}
	}
}

func TestCompareLooksAtFlannelsRulesAloneInASharedChain(t *testing.T) {
	w := masqWanted(GenV0162)
	bare := masqWanted(GenV0110)
	kube := NewRule(Target{Kind: TargetJump, Chain: "KUBE-POSTROUTING"})
	jump := NewRule(Target{Kind: TargetJump, Chain: ChainMasq}, Match{Kind: MatchComment, Text: CommentMasq})
	docker := NewRule(Target{Kind: TargetMasquerade}, from(prefix("172.17.0.0/16")))
	old := NewRule(returns, from(prefix("10.9.0.0/16")), to(prefix("10.9.0.0/16")), Match{Kind: MatchComment, Text: CommentMasq})
	typo := w.Rules[1]
	typo.Matches = slices.Clone(typo.Matches)
	typo.Matches[2].Text = CommentMasqTypo
	for name, c := range map[string]struct {
		w     Wanted
		have  []Rule
		state ChainState
		want  string
	}{
		"among others": {
			w, slices.Concat([]Rule{kube}, w.Rules[:2], []Rule{docker}, w.Rules[2:], []Rule{jump}), ChainOK,
			"ok 1<-2, ok 2<-3, ok 3<-5, ok 4<-6",
		},
		"misspelt":       {w, []Rule{w.Rules[0], typo, w.Rules[2], w.Rules[3]}, ChainOK, "ok 1<-1, ok 2<-2, ok 3<-3, ok 4<-4"},
		"none":           {w, []Rule{kube, jump, docker}, ChainEmpty, "missing 1<-0, missing 2<-0, missing 3<-0, missing 4<-0"},
		"an older one":   {w, append([]Rule{old}, w.Rules...), ChainDiffers, "extra 0<-1, ok 1<-2, ok 2<-3, ok 3<-4, ok 4<-5"},
		"one lost":       {w, pick(w.Rules, 1, 2, 4), ChainPartial, "ok 1<-1, ok 2<-2, missing 3<-0, ok 4<-3"},
		"without a word": {bare, slices.Concat(w.Rules, []Rule{kube}, bare.Rules), ChainOK, "ok 1<-6, ok 2<-7, ok 3<-8, ok 4<-9"},
	} {
		rs := built(c.w, c.have, nil)
		d := Compare(rs, c.w)
		if got := outline(d); got != c.want || d.State != c.state {
			t.Errorf("%s: %s\n got %s\nwant %s", name, d.State, got, c.want)
		}
		if name == "misspelt" && d.Rules[1].Rule.Comment() != CommentMasqTypo {
			t.Errorf("the rule is shown as it should be, not as it is: %s", d.Rules[1].Rule)
		}
		checkDiff(t, rs, c.w, d)
	}
}

func TestASubnetAsLargeAsTheNetworkWantsEqualRules(t *testing.T) {
	one := prefixes("10.244.0.0/24")
	w := Expected(one, one, GenV0210, everything, IptablesNft, IPv4)[0]
	if !w.Rules[1].Equal(w.Rules[2]) {
		t.Fatal("the two exemptions differ")
	}
	rs := built(w, w.Rules, []Rule{w.Hook})
	if d := Compare(rs, w); d.State != ChainOK {
		t.Errorf("%s: %s", d.State, outline(d))
	}
	d := Compare(built(w, append(w.Rules[:2:2], w.Rules[3:]...), []Rule{w.Hook}), w)
	if got := outline(d); d.State != ChainPartial || d.Found != 5 {
		t.Errorf("%s: %s", d.State, got)
	}
	if traces := Infer(rs, nil, nil); len(traces) != 1 || !slices.Equal(traces[0].Subnets, one) {
		t.Errorf("%+v", traces)
	}
}

// checkDiff holds what must be true of every comparison.
func checkDiff(t *testing.T, rs *Ruleset, w Wanted, d ChainDiff) {
	t.Helper()
	copies, wants, found, last, ok := 0, 0, 0, 0, true
	for _, l := range d.Rules {
		if l.Found > 0 {
			copies += l.Times
		}
		if l.Want > 0 {
			if wants++; l.Want != wants {
				t.Fatalf("wanted rules out of order: %s", outline(d))
			}
			if l.Found > 0 {
				found++
			}
		}
		if l.Status == RuleOK {
			if l.Found <= last {
				t.Fatalf("ok, but out of order: %s", outline(d))
			}
			last = l.Found
		}
		if l.Times < 1 || (l.Status == RuleMissing) != (l.Found == 0) || l.Status == RuleOpaque != l.Rule.Opaque() {
			t.Fatalf("line %+v", l)
		}
		ok = ok && l.Status == RuleOK
	}
	if wants != len(w.Rules) && len(d.Rules) > 0 || found != d.Found || d.Wanted != len(w.Rules) {
		t.Fatalf("%d of %d wanted rules: %s", wants, len(w.Rules), outline(d))
	}
	if c := rs.Chain(w.ID); !w.Shared && copies != len(c.Entries) {
		t.Fatalf("%d of %d rules told: %s", copies, len(c.Entries), outline(d))
	}
	if d.State == ChainOK && !ok {
		t.Fatalf("ok: %s", outline(d))
	}
}

func TestEveryShuffleOfAChainIsToldInFullAndAtItsShortest(t *testing.T) {
	w := Expected(prefixes("10.1.0.0/16", "10.2.0.0/16"), prefixes("10.1.1.0/24"), GenV0210, everything, IptablesNft, IPv4)[0]
	foreign := NewRule(Target{Kind: TargetAccept}, from(prefix("192.168.0.0/16")))
	pool := append(slices.Clone(w.Rules), foreign, NewRule(Target{}, Match{Text: "-f"}))
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		have := make([]Rule, rnd.IntN(2*len(pool)))
		for i := range have {
			have[i] = pool[rnd.IntN(len(pool))]
		}
		rs := built(w, have, []Rule{w.Hook})
		d := Compare(rs, w)
		checkDiff(t, rs, w, d)
		ok := 0
		for _, l := range d.Rules {
			if l.Status == RuleOK {
				ok++
			}
		}
		if want := longestCommon(w.Rules, have); ok != want {
			t.Fatalf("%d rules in order, there are %d: %s", ok, want, outline(d))
		}
	}
}

// longestCommon is the length of the longest common subsequence, by the book.
func longestCommon(a, b []Rule) int {
	table := make([][]int, len(a)+1)
	table[0] = make([]int, len(b)+1)
	for i := range a {
		table[i+1] = make([]int, len(b)+1)
		for j := range b {
			table[i+1][j+1] = max(table[i][j+1], table[i+1][j])
			if a[i].Equal(b[j]) {
				table[i+1][j+1] = table[i][j] + 1
			}
		}
	}
	return table[len(a)][len(b)]
}

func duplicates(n int) (*Ruleset, Wanted) {
	w := masqWanted(GenV0210)
	have := slices.Clone(w.Rules)
	for range n {
		have = append(have, w.Rules[4])
	}
	return built(w, have, slices.Repeat([]Rule{w.Hook}, n)), w
}

func TestTwoThousandDuplicatesAreOneLineAndQuick(t *testing.T) {
	rs, w := duplicates(2000)
	start := time.Now()
	d := Compare(rs, w)
	if took := time.Since(start); took > 100*time.Millisecond {
		t.Errorf("took %s", took)
	}
	if len(d.Rules) != 7 || d.Rules[6].Times != 2000 || d.Rules[6].Status != RuleDuplicate || d.Hook.Copies != 2000 {
		t.Errorf("%s, hook %+v", outline(d), d.Hook)
	}
}

func BenchmarkCompareSixRules(b *testing.B) {
	rs, w := duplicates(0)
	rs.Chains[1].Entries = entries([]Rule{w.Hook})
	b.ReportAllocs()
	for b.Loop() {
		Compare(rs, w)
	}
}

func BenchmarkCompareTwoThousandDuplicates(b *testing.B) {
	rs, w := duplicates(2000)
	b.ReportAllocs()
	for b.Loop() {
		Compare(rs, w)
	}
}

func BenchmarkCompareTwoThousandForeignRules(b *testing.B) {
	w := masqWanted(GenV0210)
	have := slices.Clone(w.Rules)
	for i := range 2000 {
		have = append(have, NewRule(returns, from(netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i)}), 32))))
	}
	rs := built(w, have, []Rule{w.Hook})
	b.ReportAllocs()
	for b.Loop() {
		Compare(rs, w)
	}
}
