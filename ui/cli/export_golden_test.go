package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flanwatch/watcher/journal"
)

// TestTheReportOfATeardownIsAsItWas compares the report on the recorded teardown of flanneld v0.26.5 with one that a person
// has read. FLANWATCH_UPDATE=1 writes it anew.
func TestTheReportOfATeardownIsAsItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "teardown"+journal.Suffix)
	if err := unpackRecording("teardown", path); err != nil {
		t.Fatal(err)
	}
	rec, err := journal.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := export{}.text(rec, false)
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "teardown.md")
	if os.Getenv("FLANWATCH_UPDATE") == "1" {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("-as it was +now\n%s", diff)
	}
	first := strings.SplitN(got, "\n", 6)
	for i, want := range []string{"# Incident 1: teardown of ", "* When: ", "* How long: ", "* Who: iptables-restor", "* Effect on pods: v4 masquerading"} {
		if !strings.HasPrefix(first[i], want) {
			t.Errorf("line %d is %q, want %q…", i+1, first[i], want)
		}
	}
	masked, err := export{mask: true}.text(rec, false)
	if err != nil || strings.Contains(masked, "10.244.") || strings.Contains(masked, "fd00:244") || strings.Contains(masked, "worker-1") {
		t.Errorf("masked, %v:\n%.600s", err, masked)
	}
}
