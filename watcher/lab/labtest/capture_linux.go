package labtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Capture files: what a node's programs printed at one moment. Those that are missing are passed over.
const (
	linksFile  = "ip-d-addr.txt"           // ip -d addr
	routesFile = "ip-route.txt"            // ip route show table all, both families
	nativeFile = "nft-na-list-ruleset.txt" // nft -na list ruleset, of which Flannel's own tables count
	subnetFile = "subnet.env"              // /run/flannel/subnet.env
	saves      = "%s-save-c.txt"           // iptables-nft-save -c and so on
)

// Load brings the namespace into the state of a capture: links with their addresses, routes, the rules of both iptables
// backends with their counters (ip6tables-nft-restore takes none), Flannel's native tables, and subnet.env; it forwards as
// those nodes did. Links are of the kind that they were where the kernel has it everywhere (bridge, vxlan), else bridges of
// that name.
func (n *Namespace) Load(folder string) {
	n.t.Helper()
	RequireTools(n.t, "ip", "nft", "iptables-nft-restore", "iptables-legacy-restore")
	n.Forward()
	if text := n.read(folder, linksFile); text != "" {
		n.Feed(linkCommands(text), "ip", "-batch", "-")
	}
	if text := n.read(folder, routesFile); text != "" {
		n.Feed(routeCommands(text), "ip", "-batch", "-")
	}
	for _, tool := range []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"} {
		if text := withRules(n.read(folder, fmt.Sprintf(saves, tool))); text != "" {
			n.Feed(text, tool+"-restore", "--counters")
		}
	}
	if tables := nativeTable.FindAllString(n.read(folder, nativeFile), -1); len(tables) > 0 {
		n.Feed(strings.Join(tables, "\n")+"\n", "nft", "-f", "-")
	}
	if text := n.read(folder, subnetFile); text != "" {
		n.Write("/run/flannel/subnet.env", text)
	}
}

// Forward switches on what every node with pods has switched on, where the kernel has it.
func (n *Namespace) Forward() {
	n.t.Helper()
	n.Shell(`
		for s in ipv4/ip_forward ipv6/conf/all/forwarding bridge/bridge-nf-call-iptables bridge/bridge-nf-call-ip6tables; do
			[ ! -e /proc/sys/net/$s ] || echo 1 >/proc/sys/net/$s
		done`)
}

func (n *Namespace) read(folder, name string) string {
	n.t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.t.Fatal(err)
	}
	return string(text)
}

// Write gives the namespace a file; its path lies below /run.
func (n *Namespace) Write(path, text string) {
	n.t.Helper()
	if err := n.Do(func() error {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, []byte(text), 0o644)
	}); err != nil {
		n.t.Fatal(err)
	}
}

// Flanneld starts a process that is called flanneld and does nothing, and gives its number. It lives until the end of the
// test. The test's TestMain must be Main.
func (n *Namespace) Flanneld(args ...string) int {
	n.t.Helper()
	return n.StandIn(append([]string{"/opt/bin/flanneld"}, args...)...)
}

// StandIn starts a process that looks like any program, as Flanneld does.
func (n *Namespace) StandIn(argv ...string) int {
	n.t.Helper()
	cmd, err := n.Namespace.StandIn(argv...)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := n.Start(cmd); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it may be gone
		cmd.Wait()         //nolint:errcheck // it was killed
	})
	return cmd.Process.Pid
}

var (
	linkLine  = regexp.MustCompile(`^[0-9]+: ([^:@ ]+)[^:]*: .* mtu ([0-9]+) `)
	vxlanLine = regexp.MustCompile(`^ +vxlan id ([0-9]+) local ([^ ]+) dev ([^ ]+) .*dstport ([0-9]+)`)
	addrLine  = regexp.MustCompile(`^ +inet6? ([^ ]+) .*scope (?:global|link)`)
)

// linkCommands turns ip's listing into commands for ip -batch.
func linkCommands(listing string) string {
	var b strings.Builder
	b.WriteString("link set lo up\n")
	var link, mtu, kind string
	var addrs []string
	flush := func() {
		if link != "" && link != "lo" {
			fmt.Fprintf(&b, "link add %s mtu %s type %s\nlink set %s up\n", link, mtu, kind, link)
			for _, a := range addrs {
				fmt.Fprintf(&b, "addr add %s dev %s%s\n", a, link, nodad(a))
			}
		}
		link, kind, addrs = "", "bridge", nil
	}
	flush()
	for line := range strings.Lines(listing) {
		if m := linkLine.FindStringSubmatch(line); m != nil {
			flush()
			link, mtu = m[1], m[2]
		} else if m := vxlanLine.FindStringSubmatch(line); m != nil {
			kind = fmt.Sprintf("vxlan id %s local %s dev %s dstport %s nolearning", m[1], m[2], m[3], m[4])
		} else if m := addrLine.FindStringSubmatch(line); m != nil && !strings.HasPrefix(m[1], "fe80:") {
			addrs = append(addrs, m[1])
		}
	}
	flush()
	return b.String()
}

// nodad makes an IPv6 address usable at once.
func nodad(addr string) string {
	if strings.Contains(addr, ":") {
		return " nodad"
	}
	return ""
}

// routeCommands turns ip's listing into commands for ip -batch, leaving out what the kernel makes by itself.
func routeCommands(listing string) string {
	var b strings.Builder
	for line := range strings.Lines(listing) {
		line = strings.TrimSpace(line)
		if line == "" || strings.Contains(line, "table local") || strings.Contains(line, "proto kernel") {
			continue
		}
		for _, state := range []string{" linkdown", " dead", " pref medium"} {
			line = strings.ReplaceAll(line, state, "")
		}
		fmt.Fprintf(&b, "route replace %s\n", line)
	}
	return b.String()
}

// withRules leaves out tables of iptables-save that hold nothing: a legacy table is made by merely asking for it, and an
// empty one says nothing of a node.
func withRules(save string) string {
	var b, table strings.Builder
	holds := false
	for line := range strings.Lines(save) {
		if strings.HasPrefix(line, "*") {
			table.Reset()
			holds = false
		}
		table.WriteString(line)
		holds = holds || strings.Contains(line, "-A ") || strings.HasPrefix(line, ":") && strings.Contains(line, " - [")
		if strings.HasPrefix(line, "COMMIT") && holds {
			b.WriteString(table.String())
		}
	}
	return b.String()
}

// nativeTable finds Flannel's own tables in nft's listing.
var nativeTable = regexp.MustCompile(`(?ms)^table ip6? flannel-ipv[46] \{.*?^\}$`)
