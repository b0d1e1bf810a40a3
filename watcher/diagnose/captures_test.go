package diagnose

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"flanwatch/flannel"
)

var update = flag.Bool("update", false, "write the golden file anew")

// capture is what a real flanneld of some version left in the kernel at one moment of its life. Equal pictures of several
// moments are kept once.
type capture struct {
	names    []string
	sections map[string]string
}

func captures(t *testing.T) []capture {
	t.Helper()
	data, err := os.ReadFile("testdata/captures.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out []capture
	section := ""
	for line := range strings.Lines(string(data)) {
		switch {
		case strings.HasPrefix(line, "== "):
			out = append(out, capture{strings.Fields(line[3:]), map[string]string{}})
		case strings.HasPrefix(line, "-- "):
			section = strings.Trim(line, "- \n")
			out[len(out)-1].sections[section] = ""
		default:
			out[len(out)-1].sections[section] += line
		}
	}
	return out
}

// facts gives the node as it was, with a flanneld of a good age.
func (c capture) facts(t *testing.T) Facts {
	t.Helper()
	env, problems := flannel.ParseSubnetEnv([]byte(c.sections["subnet.env"]), "subnet.env")
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	f := facts(env.Networks, env.Subnets)
	for _, b := range []flannel.Backend{flannel.IptablesNft, flannel.IptablesLegacy} {
		rs := flannel.Ruleset{Backend: b}
		for _, family := range flannel.Families {
			one, err := flannel.ParseSave(c.sections[b.String()+" "+family.String()], b, family)
			if err != nil {
				t.Fatalf("%s: %v", c.names[0], err)
			}
			rs.Chains = append(rs.Chains, one.Chains...)
			rs.Tables = append(rs.Tables, one.Tables...)
		}
		slices.SortFunc(rs.Chains, func(a, b flannel.Chain) int { return a.ID.Compare(b.ID) })
		f.set(b, rs)
	}
	f.set(flannel.Nftables, native(t, c.sections["nftables"], f.Node))
	return f
}

// native reads the listing of Flannel's own tables; each line must be one that Flannel writes for the node, or for the
// network before.
func native(t *testing.T, listing string, n flannel.Node) flannel.Ruleset {
	t.Helper()
	rs := ruleset(flannel.Nftables)
	known := map[string]flannel.Rule{}
	bases := map[string]*flannel.BaseChain{}
	for _, f := range flannel.Families {
		for _, w := range flannel.Expected(n.Networks.Value, n.Subnets.Value, flannel.GenV0250, usual, flannel.Nftables, f) {
			bases[w.ID.Name] = w.Base
			for _, r := range w.Rules {
				known[r.Nft(f)] = r
			}
		}
	}
	var chain *flannel.Chain
	var table flannel.TableID
	for line := range strings.Lines(listing) {
		words := strings.Fields(line)
		switch {
		case words[0] == "table":
			table = flannel.TableID{Backend: flannel.Nftables, Family: flannel.IPv4, Name: words[2]}
			if words[1] == "ip6" {
				table.Family = flannel.IPv6
			}
			rs.Tables = append(rs.Tables, table)
		case words[0] == "chain":
			chain = rs.Chain(flannel.ChainID{Backend: table.Backend, Family: table.Family, Table: table.Name, Name: words[1]})
			chain.Present = true
		case words[0] == "type":
			chain.Base = bases[chain.ID.Name]
		case words[0] != "}":
			rule, ok := known[strings.TrimSpace(line)]
			if !ok {
				t.Fatalf("unknown native rule %q", line)
			}
			chain.Entries = append(chain.Entries, flannel.Entry{Rule: rule})
		}
	}
	return rs
}

// TestCapturesOfRealFlanneld judges every picture with flanneld running, gone and hidden, and with and without knowing
// what net-conf.json asks for.
func TestCapturesOfRealFlanneld(t *testing.T) {
	var b strings.Builder
	for _, c := range captures(t) {
		fmt.Fprintf(&b, "== %s\n", strings.Join(c.names, " "))
		f := c.facts(t)
		fmt.Fprintf(&b, "running: %s", told(Assess(f, History{})))
		f.Node.NFTables = flannel.Know(c.sections["net-conf"] != "", "net-conf.json", now)
		fmt.Fprintf(&b, "running, net-conf.json known: %s", told(Assess(f, History{})))
		fmt.Fprintf(&b, "gone: %s", told(Assess(f.without(), History{})))
	}
	golden(t, "testdata/captures.golden", b.String())
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got == string(want) {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			t.Fatalf("%s differs at line %d:\n got %s\nwant %s\n(-update writes it anew)", path, i+1, g[i], w[i])
		}
	}
	t.Fatalf("%s: %d lines, want %d (-update writes it anew)", path, len(g), len(w))
}

func BenchmarkAssess(b *testing.B) {
	f, _ := today()
	b.ReportAllocs()
	for b.Loop() {
		Assess(f, History{})
	}
}
