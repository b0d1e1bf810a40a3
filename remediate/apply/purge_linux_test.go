package apply

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"flanwatch/remediate"
)

var savedLine = regexp.MustCompile(`^(\*\S+ )(\[\d+:\d+\] )?(-A .*)$`)

// withoutFlannel leaves Flannel's lines and chains out of a listing. What remains must be the same before and after.
func withoutFlannel(listing string, ours map[string]bool) []string {
	var out []string
	native := false
	for line := range strings.Lines(listing) {
		line = strings.TrimRight(line, "\n")
		if m := savedLine.FindStringSubmatch(line); m != nil && ours[m[3]] {
			continue
		}
		if strings.HasPrefix(line, "table ip flannel") || strings.HasPrefix(line, "table ip6 flannel") {
			native = true
		}
		if !native && !strings.Contains(line, "FLANNEL-") && line != "" {
			out = append(out, line)
		}
		native = native && line != "}"
	}
	return out
}

func wantSame(t *testing.T, what string, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.Fatalf("%s: line %d is missing: %s", what, i+1, want[i])
		case i >= len(want):
			t.Fatalf("%s: line %d is new: %s", what, i+1, got[i])
		case got[i] != want[i]:
			t.Fatalf("%s: line %d is\n%s\nwant\n%s", what, i+1, got[i], want[i])
		}
	}
}

func lines(s string) []string { return strings.Split(strings.TrimRight(s, "\n"), "\n") }

// nftForeign is the listing of nft with handles, without chains and rules of Flannel.
func nftForeign(n *node, ours map[string]bool) []string {
	var out []string
	skip := false
	for line := range strings.Lines(n.Must("nft -a list ruleset")) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "table ip flannel"), strings.HasPrefix(line, "table ip6 flannel"):
			skip = true
		case strings.Contains(line, "chain FLANNEL-"):
			skip = true
		}
		if !skip && line != "" {
			out = append(out, line)
		}
		if line == "}" || line == "\t}" {
			skip = false
		}
	}
	return out
}

func TestPurgeLeavesEveryForeignRuleAsItWas(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			n := newNode(t)
			ours := n.arrange(arrangement{rand.New(rand.NewPCG(seed, 1)), 1000}, true)
			start, exact, handles := n.save(false), n.save(true), nftForeign(n, ours)
			generation := n.generation()

			r := n.must(purge)
			if got := n.generation(); got != generation+1 {
				t.Errorf("%d generations", got-generation)
			}
			after := n.save(true)
			wantSame(t, "save with counters", withoutFlannel(after, ours), withoutFlannel(exact, ours))
			kept := map[string]bool{}
			for _, l := range nftForeign(n, ours) {
				kept[l] = true
			}
			var lost []string
			for _, l := range handles {
				if !kept[l] && strings.Contains(l, "counter packets") {
					lost = append(lost, l)
				}
			}
			removed := 0
			for _, e := range r.Edits {
				if e.Chain.Backend == 1 && e.Shared {
					removed += e.Count(remediate.Remove)
				}
			}
			if len(lost) != removed {
				t.Errorf("%d were removed, and of nft's lines with handles these are gone: %s", removed, strings.Join(lost, "\n"))
			}
			for l := range strings.Lines(after) {
				if strings.Contains(strings.ToLower(l), "flannel") || strings.Contains(l, "10.244.") || strings.Contains(l, "fd00:244:") {
					t.Errorf("left: %s", l)
				}
			}
			if p := n.plan(purge); !p.Empty() {
				t.Errorf("a second purge would do: %s", p.Title)
			}

			n.must(undoOf(r))
			wantSame(t, "after undo", lines(n.save(false)), lines(start))
			if back, err := n.applier.Store.Get(r.ID); err != nil || back.Result != remediate.ResultUndone {
				t.Errorf("receipt %s, %v", back.Result, err)
			}
		})
	}
}

func TestUndoBringsRandomArrangementsBackByteForByte(t *testing.T) {
	for seed := range uint64(*arrangements) {
		n := newNode(t)
		n.arrange(arrangement{rand.New(rand.NewPCG(seed, 2)), 8 + int(seed)*3}, seed%2 == 0)
		start := n.save(false)
		r := n.must(purge)
		n.must(undoOf(r))
		wantSame(t, fmt.Sprintf("seed %d", seed), lines(n.save(false)), lines(start))
	}
}
