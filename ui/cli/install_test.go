package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flanwatch/ui/cli"
)

func TestInstallSelfCopiesTheProgramAndLeavesNothingElse(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "flanwatch")
	if err := os.WriteFile(old, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	run := func(args ...string) int {
		out.Reset()
		errs.Reset()
		return cli.Main(t.Context(), append([]string{"install-self"}, args...), cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	}
	if code := run(dir); code != cli.ExitOK || strings.TrimSpace(out.String()) != old {
		t.Fatalf("exit code %d, %q, %q", code, out.String(), errs.String())
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want, errWant := os.ReadFile(self)
	got, errGot := os.ReadFile(old)
	if errWant != nil || errGot != nil || !bytes.Equal(got, want) {
		t.Errorf("the copy differs: %v, %v", errWant, errGot)
	}
	info, err := os.Stat(old)
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left %v", entries)
	}
	if code := run(filepath.Join(dir, "nowhere")); code != cli.ExitRefused || !strings.Contains(errs.String(), "no such file") {
		t.Errorf("into a folder that is not there: %d, %q", code, errs.String())
	}
	if code := run(); code != cli.ExitUsage {
		t.Errorf("without a folder: %d", code)
	}
}
