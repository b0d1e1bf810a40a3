package wire_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
	"flanwatch/watcher/lab/labtest"
)

// tools are the iptables of one Debian release.
type tools struct{ name, prefix string }

// versions are this machine's iptables, 1.8.9 on Debian 12, and, in roots of their own, an older and a newer one.
func versions(t *testing.T) []tools {
	labtest.RequireTools(t, "iptables-nft", "ip6tables-nft", "iptables-nft-restore", "nft")
	return []tools{
		{"installed", ""},
		{"1.8.7", "chroot " + labtest.IptablesRoot(t, "bullseye") + " "},
		{"1.8.11", "chroot " + labtest.IptablesRoot(t, "trixie") + " "},
	}
}

// program gives the command line of iptables-nft with a suffix such as "-restore".
func (v tools) program(f flannel.Family, suffix string) string {
	if f == flannel.IPv6 {
		return v.prefix + "ip6tables-nft" + suffix
	}
	return v.prefix + "iptables-nft" + suffix
}

// restore feeds text to iptables-nft-restore.
func (k *kernel) restore(v tools, f flannel.Family, text string) {
	k.t.Helper()
	words := strings.Fields(v.program(f, "-restore"))
	k.Feed(text, words[0], append(words[1:], "--noflush")...)
}

// listed gives what iptables-nft -S prints of a table's rules, by chain and without "-A CHAIN".
func (k *kernel) listed(v tools, t flannel.TableID) map[string][]string {
	k.t.Helper()
	rules := map[string][]string{}
	for line := range strings.Lines(k.Must(v.program(t.Family, " -t "+t.Name+" -S"))) {
		if rule, ok := strings.CutPrefix(line, "-A "); ok {
			chain, text, _ := strings.Cut(strings.TrimSpace(rule), " ")
			rules[chain] = append(rules[chain], strings.TrimSpace(text))
		}
	}
	return rules
}

// decoded gives the rules that the kernel holds in a chain, and checks that no expression got lost.
func (k *kernel) decoded(c flannel.ChainID) []flannel.Rule {
	k.t.Helper()
	var rules []flannel.Rule
	for _, e := range k.dump(c) {
		rules = append(rules, wire.Decode(c.Family, e.exprs))
		if _, err := wire.ScanRule(e.exprs); err != nil {
			k.t.Errorf("scan %x: %v", e.exprs, err)
		}
	}
	return rules
}

func texts(rules []flannel.Rule) []string {
	var out []string
	for _, r := range rules {
		out = append(out, r.String())
	}
	return out
}

func wantTexts(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\ngot\n\t%s\nwant\n\t%s", what, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// Networks that end on a byte and between bytes; a second pair, as with several networks; subnets that are single addresses.
var nodes = map[string]struct{ networks, subnets []netip.Prefix }{
	"byte-aligned networks": {prefixes("10.244.0.0/16", "fd00:10:244::/48"), prefixes("10.244.1.0/24", "fd00:10:244:1::/64")},
	"odd networks":          {prefixes("172.16.0.0/12", "fd00::/45"), prefixes("172.16.5.128/25", "fd00::8000:0:0:0/67")},
	"several networks": {
		prefixes("10.42.0.0/16", "10.44.0.0/15", "fd42::/48", "fd44::/47"), prefixes("10.42.3.7/32", "fd42::7/128"),
	},
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// flannelSets calls f with every rule set that any generation of Flannel keeps in a backend.
func flannelSets(b flannel.Backend, do func(name string, f flannel.Family, w flannel.Wanted)) {
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		node := nodes[name]
		for _, gen := range flannel.Generations {
			for _, random := range []bool{false, true} {
				o := flannel.Options{RandomFully: random, Forward: true, Masq: true}
				for _, f := range flannel.Families {
					for _, w := range flannel.Expected(node.networks, node.subnets, gen, o, b, f) {
						do(fmt.Sprintf("%s %s random=%v %s", name, gen, random, w.ID), f, w)
					}
				}
			}
		}
	}
}

// script writes a chain in the syntax of iptables-restore.
func script(c flannel.ChainID, rules []flannel.Rule) string {
	var s strings.Builder
	fmt.Fprintf(&s, "*%s\n:%s - [0:0]\n", c.Table, c.Name)
	for _, r := range rules {
		fmt.Fprintf(&s, "-A %s %s\n", c.Name, r)
	}
	return s.String() + "COMMIT\n"
}

func TestRulesOfEveryIptablesDecodeToTheTextItPrints(t *testing.T) {
	scripts := map[flannel.Family]string{}
	sets := map[flannel.ChainID][]flannel.Rule{}
	add := func(c flannel.ChainID, rules []flannel.Rule) {
		c.Name = fmt.Sprintf("SET-%d", len(sets)) // so that sets stand side by side
		sets[c] = rules
		scripts[c.Family] += script(c, rules)
	}
	for _, f := range flannel.Families {
		scripts[f] = "*nat\n:FLANNEL-POSTRTG - [0:0]\nCOMMIT\n*filter\n:FLANNEL-FWD - [0:0]\nCOMMIT\n"
	}
	flannelSets(flannel.IptablesNft, func(_ string, _ flannel.Family, w flannel.Wanted) {
		add(w.ID, w.Rules)
		if w.HookChain.Name != "" {
			add(w.HookChain, []flannel.Rule{w.Hook})
		}
	})
	for _, v := range versions(t) {
		t.Run(v.name, func(t *testing.T) {
			k := newKernel(t)
			listed := map[flannel.TableID]map[string][]string{}
			for f, text := range scripts {
				k.restore(v, f, text)
				for _, name := range []string{"nat", "filter"} {
					id := flannel.TableID{Backend: flannel.IptablesNft, Family: f, Name: name}
					listed[id] = k.listed(v, id)
				}
			}
			for c, want := range sets {
				rules := k.decoded(c)
				wantTexts(t, c.String(), texts(rules), listed[c.TableID()][c.Name])
				if !slices.EqualFunc(rules, want, flannel.Rule.Equal) {
					t.Errorf("%s: decoded\n\t%v\nwant\n\t%v", c, rules, want)
				}
			}
		})
	}
}

// Rules of other programs need not be understood, but what is understood of them must be so, and what is not must show.
func TestForeignRulesAreUnderstoodOrOpaque(t *testing.T) {
	page, err := os.ReadFile("testdata/foreign.rules")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range versions(t) {
		t.Run(v.name, func(t *testing.T) {
			k := newKernel(t)
			k.restore(v, flannel.IPv4, string(page))
			understood := 0
			for _, c := range chainsOf(string(page)) {
				listed, rules := k.listed(v, c.TableID())[c.Name], k.decoded(c)
				if len(listed) != len(rules) {
					t.Errorf("%s: %d rules listed, %d decoded", c, len(listed), len(rules))
					continue
				}
				for i, r := range rules {
					if !r.Opaque() {
						understood++
					}
					if err := agree(listed[i], r); err != "" {
						t.Errorf("%s: %s:\niptables: %s\n decoded: %s", c, err, listed[i], r)
					}
				}
			}
			if understood < 25 {
				t.Errorf("only %d rules are understood", understood)
			}
		})
	}
}

// chainsOf lists the chains of an iptables-restore script that get rules.
func chainsOf(script string) (chains []flannel.ChainID) {
	table := ""
	for line := range strings.Lines(script) {
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = words[0][1:]
		case strings.HasPrefix(line, "-A "):
			c := flannel.ChainID{Backend: flannel.IptablesNft, Family: flannel.IPv4, Table: table, Name: words[1]}
			if !slices.Contains(chains, c) {
				chains = append(chains, c)
			}
		}
	}
	return chains
}

// agree compares a decoded rule with the text of iptables: same text, or both opaque and the same in what is understood.
func agree(text string, r flannel.Rule) string {
	want, err := flannel.ParseRule(text)
	if err != nil {
		return err.Error()
	}
	if !r.Opaque() && r.String() != text {
		return "the texts differ"
	}
	if r.Opaque() != want.Opaque() {
		return "one of them is opaque"
	}
	known := func(r flannel.Rule) []flannel.Match {
		return slices.DeleteFunc(slices.Clone(r.Matches), func(m flannel.Match) bool { return m.Kind == flannel.MatchOpaque })
	}
	if !slices.Equal(known(r), known(want)) {
		return "the conditions differ"
	}
	if r.Target.Kind != want.Target.Kind || r.Target.Kind != flannel.TargetOpaque && r.Target != want.Target {
		return "the targets differ"
	}
	return ""
}

// table makes a table as iptables-nft makes it, with the base chains that Flannel hooks into.
func table(t *testing.T, b *wire.Batch, f flannel.Family) {
	t.Helper()
	for c, base := range map[flannel.ChainID]flannel.BaseChain{
		{Backend: flannel.IptablesNft, Family: f, Table: "nat", Name: "POSTROUTING"}: {
			Type: "nat", Hook: "postrouting", Priority: 100, Policy: "accept",
		},
		{Backend: flannel.IptablesNft, Family: f, Table: "filter", Name: "FORWARD"}: {
			Type: "filter", Hook: "forward", Priority: 0, Policy: "accept",
		},
	} {
		b.AddTable(c.TableID())
		if err := b.AddBaseChain(c, base); err != nil {
			t.Fatal(err)
		}
	}
}

func encode(t testing.TB, c flannel.ChainID, r flannel.Rule) []byte {
	t.Helper()
	exprs, err := wire.Encode(c, r)
	if err != nil {
		t.Fatal(err)
	}
	return exprs
}

// written is a rule and where it was written.
type written struct {
	chain flannel.ChainID
	rule  flannel.Rule
}

// otherForms are rules that Flannel does not write and that are understood all the same.
var otherForms = []string{
	"-i eth0 -j ACCEPT", "-o cni+ -j RETURN", "! -i a23456789012345 -j RETURN", "! -o veth+ -j RETURN", "-p tcp -j RETURN",
	"! -p udp -j RETURN", "-p 253", "-m mark --mark 0x4000 -j RETURN", "-m mark ! --mark 0x80000000/0xc0000000 -j RETURN",
	"-m mark --mark 0x0/0x1 -j RETURN", "-m mark --mark 0x1/0x1 -m mark ! --mark 0x2/0x2 -j RETURN", "-g OTHER", "-j OTHER",
	"-m comment --comment word", `-m comment --comment "two \"words\" \\ and" -j RETURN`, "-j MASQUERADE --random",
	"-j MASQUERADE --random --random-fully", "-j MASQUERADE",
	"-m comment --comment \"" + strings.Repeat("é ", 85) + "\"",
}

// everyRule gives each rule of Flannel's once, and prefixes of many lengths, in chains by family and table.
func everyRule(t *testing.T) (all []written) {
	seen := map[string]bool{}
	add := func(c flannel.ChainID, r flannel.Rule) {
		if c.Name = "RULES"; !seen[c.String()+r.String()] {
			seen[c.String()+r.String()] = true
			all = append(all, written{c, r})
		}
	}
	flannelSets(flannel.IptablesNft, func(_ string, _ flannel.Family, w flannel.Wanted) {
		for _, r := range w.Rules {
			add(w.ID, r)
		}
		if w.HookChain.Name != "" {
			add(w.HookChain, w.Hook)
		}
	})
	random := rand.New(rand.NewPCG(1, 2))
	for _, f := range flannel.Families {
		c := flannel.ChainID{Backend: flannel.IptablesNft, Family: f, Table: "nat"}
		for _, text := range otherForms {
			r, err := flannel.ParseRule(text)
			if err != nil {
				t.Fatal(err)
			}
			add(c, r)
		}
		for bits := 1; bits <= f.Bits(); bits += f.Bits() / 32 {
			m := flannel.Match{Kind: flannel.MatchSource, Prefix: randomPrefix(random, f, bits), Not: bits%3 == 0}
			add(c, flannel.NewRule(flannel.Target{Kind: flannel.TargetReturn}, m))
		}
	}
	return all
}

func TestEveryIptablesFindsWhatIsEncoded(t *testing.T) {
	all := everyRule(t)
	var b wire.Batch
	want := map[flannel.ChainID][]string{}
	for _, f := range flannel.Families {
		table(t, &b, f)
		b.AddChain(flannel.MasqChain(flannel.IptablesNft, f))
		b.AddChain(flannel.ForwardChain(flannel.IptablesNft, f))
		b.AddChain(flannel.ChainID{Backend: flannel.IptablesNft, Family: f, Table: "nat", Name: "OTHER"})
	}
	for _, w := range all {
		b.AddChain(w.chain)
		b.AppendRule(w.chain, encode(t, w.chain, w.rule))
		want[w.chain] = append(want[w.chain], w.rule.String())
	}
	for _, v := range versions(t) {
		t.Run(v.name, func(t *testing.T) {
			k := newKernel(t)
			k.commit(&b)
			for c := range want {
				wantTexts(t, c.String(), k.listed(v, c.TableID())[c.Name], want[c])
			}
			if missed := k.Feed(checks(v, all), "sh"); missed != "" {
				t.Errorf("not found:\n%s", missed)
			}
			// -D looks for a rule in the way of -C, and restore does it for all of them at once.
			for c, rules := range want {
				del := "-D " + c.Name + " "
				k.restore(v, c.Family, "*"+c.Table+"\n"+del+strings.Join(rules, "\n"+del)+"\nCOMMIT\n")
				if left := k.decoded(c); len(left) > 0 {
					t.Errorf("%s: not deleted: %v", c, left)
				}
			}
		})
	}
}

// checks is a shell script that looks for today's rules of Flannel with -C and prints the command of each that fails.
func checks(v tools, all []written) string {
	var s strings.Builder
	for _, w := range all {
		if !strings.HasPrefix(w.rule.Comment(), "flanneld") {
			continue
		}
		line := fmt.Sprintf("%s -t %s -C %s %s", v.program(w.chain.Family, ""), w.chain.Table, w.chain.Name, w.rule)
		fmt.Fprintf(&s, "%s >/dev/null 2>&1 || cat <<'END'\n%s\nEND\n", line, line)
	}
	return s.String()
}

func randomPrefix(r *rand.Rand, f flannel.Family, bits int) netip.Prefix {
	addr := make([]byte, f.Bits()/8)
	for i := range addr {
		addr[i] = byte(r.Uint32())
	}
	a, _ := netip.AddrFromSlice(addr)
	return netip.PrefixFrom(a, bits).Masked()
}

// What a Batch makes must look to iptables and nft as if iptables had made it.
func TestTablesLookAsIfIptablesHadMadeThem(t *testing.T) {
	theirs, ours := newKernel(t), newKernel(t)
	installed := tools{}
	var b wire.Batch
	for _, f := range flannel.Families {
		for _, w := range flannel.Expected(nodes["odd networks"].networks, nodes["odd networks"].subnets, flannel.GenV0210,
			flannel.Options{RandomFully: true, Forward: true, Masq: true}, flannel.IptablesNft, f) {
			theirs.restore(installed, f, script(w.ID, w.Rules)+script(w.HookChain, []flannel.Rule{w.Hook}))
			b.AddTable(w.ID.TableID())
			for _, base := range iptablesBases(w.ID.TableID()) {
				if err := b.AddBaseChain(base.id, base.base); err != nil {
					t.Fatal(err)
				}
			}
			b.AddChain(w.ID)
			for _, r := range w.Rules {
				b.AppendRule(w.ID, encode(t, w.ID, r))
			}
			b.AppendRule(w.HookChain, encode(t, w.HookChain, w.Hook))
		}
	}
	ours.commit(&b)
	for _, command := range []string{"iptables-nft-save -c", "ip6tables-nft-save -c"} {
		want, got := withoutRemarks(theirs.Must(command)), withoutRemarks(ours.Must(command))
		wantTexts(t, command, got, want)
	}
	listing := ours.Must("nft list ruleset")
	if strings.Count(listing, "is managed by iptables-nft, do not touch!") != 4 {
		t.Errorf("nft takes a table for one of its own:\n%s", listing)
	}
}

type baseChain struct {
	id   flannel.ChainID
	base flannel.BaseChain
}

// iptablesBases are the base chains that the restore program makes in a table that gets any.
func iptablesBases(t flannel.TableID) []baseChain {
	base := flannel.BaseChain{Type: "filter", Hook: "forward", Policy: "accept"}
	name := "FORWARD"
	if t.Name == "nat" {
		base = flannel.BaseChain{Type: "nat", Hook: "postrouting", Priority: 100, Policy: "accept"}
		name = "POSTROUTING"
	}
	return []baseChain{{flannel.ChainID{Backend: t.Backend, Family: t.Family, Table: t.Name, Name: name}, base}}
}

func withoutRemarks(s string) []string {
	return slices.DeleteFunc(strings.Split(s, "\n"), func(line string) bool { return strings.HasPrefix(line, "#") })
}
