package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// allowed says what each folder may import of ours: only what stands below it. A folder that is missing here fails the
// test, so that a new one gets its place when it is made.
var allowed = map[string][]string{
	"assets":           {},
	"flannel":          {},
	"flannel/wire":     {"flannel"},
	"flannel/path":     {"flannel"},
	"conntrack":        {"flannel"},
	"conntrack/nfnl":   {},
	"conntrack/ctnl":   {"conntrack", "conntrack/nfnl", "flannel"},
	"watcher/diagnose": {"flannel", "flannel/path", "conntrack"},
	"watcher/incident": {"flannel", "flannel/path", "conntrack", "watcher/diagnose"},
	"watcher/journal":  {"flannel", "flannel/path", "conntrack", "watcher/diagnose", "watcher/incident"},
	"remediate":        {"flannel", "conntrack", "watcher/diagnose"},
	"remediate/apply":  {"remediate", "flannel", "flannel/wire", "conntrack", "conntrack/ctnl", "watcher/diagnose"},
	"watcher/nft":      {"conntrack/nfnl", "flannel", "flannel/path", "flannel/wire", "conntrack", "watcher/diagnose", "watcher/incident"},
	"watcher/legacy":   {"flannel", "flannel/path", "flannel/wire", "conntrack", "watcher/diagnose", "watcher/incident"},
	"watcher/proc":     {"flannel", "conntrack", "watcher/diagnose", "watcher/incident"},
	"watcher/host":     {"flannel", "conntrack", "watcher/diagnose", "watcher/incident"},
	"watcher/reach":    {"flannel", "flannel/path", "conntrack/nfnl", "watcher/nft", "watcher/legacy"},
	"watcher/probe":    {},
	"watcher/metrics":  {"flannel", "conntrack", "watcher/diagnose", "watcher/incident"},
	"watcher": {
		"flannel", "flannel/path", "conntrack", "conntrack/ctnl", "watcher/diagnose", "watcher/incident", "watcher/journal",
		"watcher/nft", "watcher/legacy", "watcher/reach", "watcher/proc", "watcher/host", "watcher/probe",
	},
	"watcher/lab":         {"flannel", "flannel/wire", "assets"},
	"watcher/lab/labtest": {"flannel", "watcher/lab"},
	"ui":                  {"watcher/incident", "watcher/diagnose", "remediate", "flannel", "flannel/path", "conntrack", "assets"},
}

// unbound folders may import everything: they wire the parts.
var unbound = []string{"", "ui/cli"}

func TestImportsGoDown(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "./...").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		from := ours(fields[0])
		if slices.Contains(unbound, from) {
			continue
		}
		may, listed := allowed[from]
		if !listed {
			t.Errorf("%s has no place in the table of layers", from)
			continue
		}
		for _, imp := range fields[1:] {
			if !strings.HasPrefix(imp, "flanwatch/") {
				continue
			}
			if to := ours(imp); !slices.Contains(may, to) {
				t.Errorf("%s imports %s, which stands beside or above it", from, to)
			}
		}
	}
}

func ours(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, "flanwatch"), "/")
}
