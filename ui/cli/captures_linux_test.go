package cli_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"flanwatch/watcher/lab/labtest"
)

var update = flag.Bool("update", false, "write the goldens anew")

// whole names the states of a capture in which Flannel ran and had its rules as it wants them.
var whole = []string{
	"01-running", "03-after-sigterm-restart", "04-after-sigkill-restarts", "05-resync-end", "1-running", "running",
	"1-iptables", "1-old-network", "2-new-network", "2-after",
}

// TestCapturesOfRealFlanneld brings a namespace into each state that was captured on nodes with six versions of Flannel, in
// both iptables backends and natively, and holds what check says of it against a golden. Where Flannel ran and was well,
// nothing may be found; what it left behind when it was stopped, or switched to the other dialect, must be told.
func TestCapturesOfRealFlanneld(t *testing.T) {
	files, err := filepath.Glob("testdata/captures/*.txt")
	if err != nil || len(files) < 160 {
		t.Fatalf("%d captures, %v", len(files), err)
	}
	var got strings.Builder
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) {
			n := labtest.New(t)
			n.Load(unpack(t, file))
			state := name[strings.LastIndex(name, ".")+1:]
			if !strings.Contains(state, "stopped") && !strings.HasSuffix(state, "after-sigterm") {
				n.Flanneld(flagsOf(name)...)
			}
			c, code := check(t, n)
			got.WriteString(name + ": " + picture(c) + "\n")
			if slices.Contains(whole, state) {
				wantWell(t, c, code)
			}
		})
	}
	golden(t, "testdata/captures.golden", got.String())
}

// flagsOf gives the flags that flanneld ran with. With subnet.env in the container it was a Canal node's.
func flagsOf(capture string) []string {
	flags := []string{"--ip-masq", "--kube-subnet-mgr"}
	if strings.Contains(capture, "lostenv") {
		flags = append(flags, "--iptables-forward-rules=false")
	}
	return flags
}

// unpack writes the parts of a capture file, each behind a line "-- NAME --", into a folder.
func unpack(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, part := range strings.Split("\n"+string(text), "\n-- ")[1:] {
		name, body, _ := strings.Cut(part, " --\n")
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// picture tells a report in one line. The stand-in for flanneld is young, so that its state may still be "starting".
func picture(c checked) string {
	var words []string
	for _, chain := range c.Chains {
		words = append(words, fmt.Sprintf("%s %s %s %s", chain.Backend, chain.Family, chain.Name, chain.State))
	}
	for _, f := range c.Findings {
		words = append(words, fmt.Sprintf("%s (%s) %s", f.ID, f.Severity, f.Object))
	}
	return fmt.Sprintf("%s, %s, %s; %s", strings.Replace(c.Flannel.State, "starting", "live", 1), c.Flannel.Dialect,
		c.Flannel.Generation, strings.Join(words, "; "))
}

func wantWell(t *testing.T, c checked, code int) {
	t.Helper()
	if code != 0 || len(c.Chains) == 0 {
		t.Errorf("exit code %d with %d chains", code, len(c.Chains))
	}
	for _, chain := range c.Chains {
		if chain.State != "ok" {
			t.Errorf("%s %s %s is %s", chain.Backend, chain.Family, chain.Name, chain.State)
		}
	}
	for _, f := range c.Findings {
		if f.Severity != "info" {
			t.Errorf("%s (%s): %s", f.ID, f.Severity, f.Summary)
		}
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		g, w := at(gotLines, i), at(wantLines, i)
		if g != w {
			t.Errorf("line %d\n got %s\nwant %s", i+1, g, w)
		}
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(nothing)"
}
