package proc

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"flanwatch/flannel"
)

// toolPath is where iptables is looked for, whatever PATH says.
var toolPath = []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"}

// IptablesHost runs the host's iptables with --version, which reads and locks nothing, and gives "1.8.9 (nf_tables)". It
// is for when somebody asks, never for the poll path.
func IptablesHost(ctx context.Context, now flannel.Time) flannel.Reading[string] {
	for _, dir := range toolPath {
		name := dir + "/iptables"
		if _, err := os.Stat(name); err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, name, "--version")
		cmd.Env = []string{"PATH=" + strings.Join(toolPath, ":"), "LC_ALL=C"}
		cmd.WaitDelay = time.Second
		out, err := cmd.Output()
		if err != nil {
			return flannel.Miss[string](flannel.Unreadable, fmt.Sprintf("run it: %v", err), name, now)
		}
		if v := parseToolVersion(string(out)); v != "" {
			return flannel.Know(v, name, now)
		}
		return flannel.Miss[string](flannel.Unreadable, "its answer is not understood", name, now)
	}
	return flannel.Miss[string](flannel.Absent, "no such program", strings.Join(toolPath, ":"), now)
}

// FileReader reads a file of at most max bytes inside some root.
type FileReader interface {
	ReadFile(name string, max int64) ([]byte, time.Time, error)
}

// IptablesIn looks the version of iptables up in the package database of a container's root file system. Nothing of the
// container is executed.
func IptablesIn(root FileReader, now flannel.Time) flannel.Reading[string] {
	const max = 16 << 20
	for _, db := range []struct{ file, name, version string }{
		{apkInstalled, "P", "V"}, {dpkgStatus, "Package", "Version"},
	} {
		data, _, err := root.ReadFile(db.file, max)
		if err != nil {
			continue
		}
		if v := packageVersion(data, db.name, db.version, "iptables"); v != "" {
			return flannel.Know(v, db.file, now)
		}
		return flannel.Miss[string](flannel.Absent, "no package iptables", db.file, now)
	}
	return flannel.Miss[string](flannel.Unreadable, "no package database that is understood", apkInstalled, now)
}
