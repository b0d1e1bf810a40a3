package host

import (
	"context"
	"os"
	"os/exec"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// toolFolders are where programs are looked for, whatever PATH says, and where k3s keeps those it brings along.
var toolFolders = []string{
	"/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/local/bin", "/var/lib/rancher/k3s/data/current/bin/aux",
}

// toolNames are the programs by which a person looks at the packet filter, in the order in which they are shown.
var toolNames = []string{
	"iptables", "iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy", "nft", "conntrack", "ip", "ethtool", "ipset",
}

// ToolNames gives the programs that are looked for.
func ToolNames() []string { return append([]string(nil), toolNames...) }

// Tools finds the node's programs without running any.
func Tools(files *Files, now flannel.Time) flannel.Reading[map[string]diagnose.Tool] {
	found := map[string]diagnose.Tool{}
	for _, name := range toolNames {
		for _, folder := range toolFolders {
			file := path.Join(folder, name)
			if st, err := files.stat(file); err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0 {
				found[name] = diagnose.Tool{Path: file}
				break
			}
		}
	}
	return flannel.Know(found, strings.Join(toolFolders, ":"), now)
}

// AskVersions runs each program with the option that makes it print its version, which reads and locks nothing. It is for
// when somebody asks, and only for programs that are our own node's.
func AskVersions(ctx context.Context, tools map[string]diagnose.Tool) {
	for name, t := range tools {
		option := "--version"
		if name == "ip" {
			option = "-V"
		}
		if out := ask(ctx, t.Path, option); out != "" {
			t.Version = out
			tools[name] = t
		}
	}
}

// ask gives the first line that a program prints.
func ask(ctx context.Context, name, option string) string {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, option)
	cmd.Env = []string{"PATH=" + strings.Join(toolFolders, ":"), "LC_ALL=C", "HOME=" + os.TempDir()}
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return flannel.Printable(line[:min(len(line), 100)])
}
