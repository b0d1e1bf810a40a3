package flannel

import "testing"

func checkDiff(t *testing.T, rs *Ruleset, w Wanted, d ChainDiff) {
	t.Helper()
}
