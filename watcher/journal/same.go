package journal

import (
	"slices"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// sameBut tells whether two readings of a backend differ in nothing but counters, generation and time.
func sameBut(a, b *incident.RulesRead) bool {
	x, y := &a.Ruleset, &b.Ruleset
	return a.Backend == b.Backend && x.State == y.State && x.Why == y.Why && x.Source == y.Source &&
		sameRuleset(&x.Value, &y.Value)
}

func sameRuleset(a, b *flannel.Ruleset) bool {
	if a.Backend != b.Backend || a.Revision != b.Revision || !slices.Equal(a.Tables, b.Tables) || len(a.Chains) != len(b.Chains) {
		return false
	}
	for i := range a.Chains {
		if !sameChain(&a.Chains[i], &b.Chains[i]) {
			return false
		}
	}
	return slices.Equal(a.Others, b.Others) && (a.Others == nil) == (b.Others == nil) && (a.Tables == nil) == (b.Tables == nil) && (a.Chains == nil) == (b.Chains == nil)
}

func sameChain(a, b *flannel.Chain) bool {
	if a.ID != b.ID || a.Present != b.Present || len(a.Entries) != len(b.Entries) || (a.Entries == nil) != (b.Entries == nil) {
		return false
	}
	if (a.Base == nil) != (b.Base == nil) || a.Base != nil && *a.Base != *b.Base {
		return false
	}
	for i := range a.Entries {
		x, y := &a.Entries[i], &b.Entries[i]
		if x.Handle != y.Handle || x.Body != y.Body || x.Counted != y.Counted || !sameRule(&x.Rule, &y.Rule) {
			return false
		}
	}
	return true
}
