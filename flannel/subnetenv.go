package flannel

import (
	"net/netip"
	"strconv"
	"strings"
)

// SubnetEnv is what a subnet.env tells: flanneld writes it when it has a lease, and the CNI plugin reads it.
type SubnetEnv struct {
	Networks    []netip.Prefix // masked, in the order of the file
	Subnets     []netip.Prefix // masked: the file holds the node's own address in the subnet
	MTU         int            // 0 if the file does not tell
	IPMasq      bool           // --ip-masq, meaningless unless IPMasqKnown
	IPMasqKnown bool
}

// ParseSubnetEnv reads a subnet.env. Every fault is a problem with its line, and values that are sound are kept. Of a last
// line that is not ended only true and false are taken: anything else may be a longer value cut short.
func ParseSubnetEnv(data []byte, file string) (SubnetEnv, []Problem) {
	p := envParser{problems: problems{file: file}, lines: map[string]int{}}
	text := string(data)
	if strings.TrimSpace(text) == "" {
		p.add(0, "file is empty")
		return p.env, p.all()
	}
	line := 0
	for text != "" {
		line++
		one, rest, ended := strings.Cut(text, "\n")
		p.line(line, one, ended)
		text = rest
	}
	p.whole()
	return p.env, p.all()
}

type envParser struct {
	problems
	env      SubnetEnv
	prefixes [4][]netip.Prefix // by index of prefixKeys
	lines    map[string]int    // where each key was set
	crlf     bool
}

// prefixKeys are the keys that hold prefixes.
var prefixKeys = [4]struct {
	name    string
	family  Family
	network bool
}{
	{"FLANNEL_NETWORK", IPv4, true},
	{"FLANNEL_SUBNET", IPv4, false},
	{"FLANNEL_IPV6_NETWORK", IPv6, true},
	{"FLANNEL_IPV6_SUBNET", IPv6, false},
}

func (p *envParser) line(n int, text string, ended bool) {
	if bare, cr := strings.CutSuffix(text, "\r"); cr {
		text = bare
		if !p.crlf {
			p.add(n, "lines end with a carriage return")
		}
		p.crlf = true
	}
	text = strings.TrimSpace(text)
	if text == "" || text[0] == '#' {
		return
	}
	key, value, ok := strings.Cut(text, "=")
	if !ok {
		p.add(n, "%s is not KEY=VALUE", shown(text))
		return
	}
	if before := p.lines[key]; before > 0 {
		p.add(n, "%s is set a second time, after line %d; the last one counts", shown(key), before)
	}
	if !ended {
		p.add(n, "file ends within a line: %s may be cut short", shown(key))
		if value != "true" && value != "false" {
			return
		}
	}
	p.lines[key] = n
	p.set(n, key, value)
}

func (p *envParser) set(n int, key, value string) {
	for i, k := range prefixKeys {
		if k.name == key {
			p.prefixes[i] = p.list(n, i, value)
			return
		}
	}
	switch key {
	case "FLANNEL_MTU":
		mtu, err := strconv.ParseUint(value, 10, 16)
		if err != nil || mtu == 0 {
			p.add(n, "%s=%s is no MTU", key, shown(value))
			return
		}
		p.env.MTU = int(mtu)
	case "FLANNEL_IPMASQ":
		if value != "true" && value != "false" {
			p.add(n, "%s=%s is neither true nor false", key, shown(value))
			return
		}
		p.env.IPMasq, p.env.IPMasqKnown = value == "true", true
	default:
		p.add(n, "key %s is not Flannel's", shown(key))
	}
}

// list reads a prefix, or for a network a list with commas (v0.21.0–v0.22.3 with --use-multi-cluster-cidr).
func (p *envParser) list(n, index int, value string) []netip.Prefix {
	key := prefixKeys[index]
	var out []netip.Prefix
	parts := []string{value}
	if key.network {
		parts = strings.Split(value, ",")
	}
	for _, part := range parts {
		prefix, err := netip.ParsePrefix(part)
		switch {
		case err != nil:
			p.add(n, "%s: %s is no network in CIDR form", key.name, shown(part))
			continue
		case prefix.Addr().Is4() != (key.family == IPv4):
			p.add(n, "%s: %s is of the other address family", key.name, prefix)
			continue
		case prefix.Bits() == 0:
			p.add(n, "%s: %s holds every address", key.name, prefix)
			continue
		case key.network && prefix != prefix.Masked():
			p.add(n, "%s: %s has host bits set, taken as %s", key.name, prefix, prefix.Masked())
		}
		out = appendNew(out, prefix.Masked())
	}
	return out
}

// whole takes the values together and looks at what only the file as a whole can tell.
func (p *envParser) whole() {
	for i, k := range prefixKeys {
		if k.network {
			p.env.Networks = append(p.env.Networks, p.prefixes[i]...)
		} else {
			p.env.Subnets = append(p.env.Subnets, p.prefixes[i]...)
		}
	}
	for i := 0; i < len(prefixKeys); i += 2 {
		for _, subnet := range p.prefixes[i+1] {
			p.checkSubnet(prefixKeys[i+1].name, prefixKeys[i].name, p.prefixes[i], subnet)
		}
	}
	if len(p.env.Networks) == 0 {
		p.add(0, "file names no network")
	}
	if len(p.env.Subnets) == 0 {
		p.add(0, "file names no subnet")
	}
}

func (p *envParser) checkSubnet(key, networkKey string, networks []netip.Prefix, subnet netip.Prefix) {
	for _, n := range networks {
		if contains(n, subnet) {
			return
		}
	}
	if len(networks) > 0 {
		p.add(p.lines[key], "%s: %s lies outside of %s", key, subnet, networkKey)
	}
}
