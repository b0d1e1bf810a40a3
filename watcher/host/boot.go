package host

import (
	"path"
	"slices"
	"strings"

	"flanwatch/watcher/diagnose"
)

// sysctlFolders are read at boot by systemd-sysctl, an earlier one hiding files of the same name in a later one; all files
// together are taken in the order of their names, wherever they lie.
var sysctlFolders = []string{"/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d"}

// sysctlLast is read behind them by sysctl --system; systemd knows it through a link in /etc/sysctl.d.
const sysctlLast = "/etc/sysctl.conf"

// atBoot are the switches without which pods reach nothing.
var atBoot = []string{
	"net.ipv4.ip_forward", "net.ipv4.conf.all.forwarding", "net.ipv6.conf.all.forwarding", "net.bridge.bridge-nf-call-iptables",
	"net.bridge.bridge-nf-call-ip6tables",
}

// bootFiles gives the files of the folders in the order in which they are taken, list gives a folder's names.
func bootFiles(list func(folder string) []string) []string {
	where := map[string]string{}
	for _, folder := range sysctlFolders {
		for _, name := range list(folder) {
			if _, hidden := where[name]; !hidden && strings.HasSuffix(name, ".conf") {
				where[name] = path.Join(folder, name)
			}
		}
	}
	names := make([]string, 0, len(where))
	for name := range where {
		names = append(names, name)
	}
	slices.Sort(names)
	out := make([]string, 0, len(names)+1)
	for _, name := range names {
		out = append(out, where[name])
	}
	return append(out, sysctlLast)
}

// parseSysctl finds the switches in one file; a later line replaces what is known of one.
func parseSysctl(file, text string, known []diagnose.BootSetting) []diagnose.BootSetting {
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "-"), "=")
		name = strings.ReplaceAll(strings.TrimSpace(name), "/", ".")
		if !ok || !slices.Contains(atBoot, name) {
			continue
		}
		if name == "net.ipv4.conf.all.forwarding" {
			name = "net.ipv4.ip_forward" // the same switch
		}
		known = slices.DeleteFunc(known, func(b diagnose.BootSetting) bool { return b.Name == name })
		known = append(known, diagnose.BootSetting{Name: name, Value: strings.TrimSpace(value), Path: file, Line: n})
	}
	return known
}
