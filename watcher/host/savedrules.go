package host

import (
	"net/netip"
	"strings"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// firewallFiles are loaded into the packet filter at boot by the packages of one distribution or another. Names may hold "*".
var firewallFiles = []string{
	"/etc/iptables/rules.v4", "/etc/iptables/rules.v6", "/etc/iptables/iptables.rules", "/etc/iptables/ip6tables.rules",
	"/etc/sysconfig/iptables", "/etc/sysconfig/ip6tables", "/etc/iptables.rules", "/etc/iptables.up.rules",
	"/var/lib/iptables/rules-save", "/var/lib/ip6tables/rules-save",
	"/etc/nftables.conf", "/etc/sysconfig/nftables.conf", "/etc/nftables/*.nft", "/etc/nftables.d/*.nft", "/var/lib/nftables/*",
	"/etc/firewalld/direct.xml", "/etc/ufw/before.rules", "/etc/ufw/before6.rules", "/etc/ufw/after.rules", "/etc/ufw/user.rules",
}

// flannelWords are what Flannel's rules are known by in any of the forms: chains, comments, native tables.
var flannelWords = []string{
	flannel.ChainMasq, flannel.ChainFwd, "flanneld masq", "flanneld forward", "flannel masq", "flannel-ipv4", "flannel-ipv6",
}

// savedRules finds lines of Flannel in a file. Rules of versions without comments are known by the network that they
// masquerade.
func savedRules(file, text string, networks []netip.Prefix) (diagnose.SavedRules, bool) {
	out := diagnose.SavedRules{Path: file}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || !ofFlannel(line, networks) {
			continue
		}
		if out.First == "" {
			out.First = line[:min(len(line), 200)]
		}
		out.Lines = append(out.Lines, n)
	}
	return out, len(out.Lines) > 0
}

func ofFlannel(line string, networks []netip.Prefix) bool {
	for _, w := range flannelWords {
		if strings.Contains(line, w) {
			return true
		}
	}
	for _, n := range networks {
		if strings.Contains(line, "-s "+n.String()+" ! -d 224.0.0.0/4 -j MASQUERADE") {
			return true
		}
	}
	return false
}
