package proc

import (
	"bufio"
	"bytes"
	"strings"
)

// Package databases in which a container's iptables is looked up, relative to its root.
const (
	apkInstalled = "lib/apk/db/installed"
	dpkgStatus   = "var/lib/dpkg/status"
)

// packageVersion finds the version of a package in a database whose records are lines of "key: value" (dpkg) or "key:value"
// (apk) with an empty line after each.
func packageVersion(db []byte, nameKey, versionKey, name string) string {
	found, version := false, ""
	scan := bufio.NewScanner(bytes.NewReader(db))
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		line := scan.Text()
		if line == "" {
			if found && version != "" {
				return version
			}
			found, version = false, ""
			continue
		}
		key, value, _ := strings.Cut(line, ":")
		switch key {
		case nameKey:
			found = strings.TrimSpace(value) == name
		case versionKey:
			version = strings.TrimSpace(value)
		}
	}
	if found {
		return version
	}
	return ""
}

// parseToolVersion reads "iptables v1.8.9 (nf_tables)".
func parseToolVersion(output string) string {
	line, _, _ := strings.Cut(output, "\n")
	line = strings.TrimSpace(line)
	if rest, ok := strings.CutPrefix(line, "iptables v"); ok && len(rest) < 64 {
		return rest
	}
	return ""
}
