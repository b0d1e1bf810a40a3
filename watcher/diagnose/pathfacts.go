package diagnose

import (
	"slices"

	"flanwatch/flannel"
	"flanwatch/flannel/path"
)

// Paths is what becomes of typical packets here, by the rules of every owner.
type Paths struct {
	Facts    []path.Facts // one for each family: what the packets were made of
	Verdicts []path.Verdict
}

// SameFacts tells whether typical packets are made of the same.
func SameFacts(a, b []path.Facts) bool { return slices.EqualFunc(a, b, path.Facts.Equal) }

// SamePaths tells whether two readings differ in nothing but counters and time.
func SamePaths(a, b flannel.Reading[Paths]) bool {
	return a.State == b.State && a.Why == b.Why && SameFacts(a.Value.Facts, b.Value.Facts) &&
		slices.EqualFunc(a.Value.Verdicts, b.Value.Verdicts, path.Verdict.Equal)
}
