package cli

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"sync"
)

// pattern is a regular expression that is made when it is first needed: most commands do without.
func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// redacted stands for a secret.
const redacted = "[redacted]"

var (
	secretName = pattern(`(?i)(token|passw(or)?d|passphrase|secret|api-?_?key|private-?_?key|credential|authorization|auth-?key)`)
	bearer     = pattern(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]+`)
	inURL      = pattern(`(://[^/@\s:]*):[^/@\s]+@`)
	jwt        = pattern(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*`)
	assignment = pattern(`(?i)((token|passw(or)?d|passphrase|secret|api-?_?key|private-?_?key|credential|authorization|auth-?key)[A-Za-z0-9_-]*\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s&,;]+)`)
)

// redact takes secrets out of a command line: values of options that are named like one, in the same word or the next,
// passwords in URLs, bearer tokens and JSON Web Tokens.
func redact(words []string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		if i > 0 && strings.HasPrefix(words[i-1], "-") && !strings.Contains(words[i-1], "=") && secretName().MatchString(words[i-1]) {
			out[i] = redacted
			continue
		}
		name, _, assigned := strings.Cut(w, "=")
		if assigned && !strings.ContainsAny(name, " \t") && secretName().MatchString(name) {
			out[i] = name + "=" + redacted
			continue
		}
		w = bearer().ReplaceAllString(w, "$1 "+redacted)
		w = assignment().ReplaceAllString(w, "${1}"+redacted)
		w = inURL().ReplaceAllString(w, "$1:"+redacted+"@")
		out[i] = jwt().ReplaceAllString(w, redacted)
	}
	return out
}

// mask puts placeholders for addresses and host names, always the same for the same one.
type mask struct {
	hosts     []string
	addresses map[netip.Addr]string
	names     map[string]string
	count     map[string]int
}

func newMask(hosts ...string) *mask {
	return &mask{hosts: hosts, addresses: map[netip.Addr]string{}, names: map[string]string{}, count: map[string]int{}}
}

var (
	addressLike = pattern(`[0-9A-Fa-f:.]*[0-9A-Fa-f:][0-9A-Fa-f:.]*[0-9A-Fa-f:]`)
	urlHost     = pattern(`(://(?:[^/@\s]*@)?)([A-Za-z][A-Za-z0-9.-]*)`)
)

func (m *mask) apply(text string) string {
	for _, h := range m.hosts {
		if h != "" {
			text = regexp.MustCompile(`(?i)\b`+regexp.QuoteMeta(h)+`\b`).ReplaceAllString(text, m.name(strings.ToLower(h)))
		}
	}
	text = urlHost().ReplaceAllStringFunc(text, func(s string) string {
		part := urlHost().FindStringSubmatch(s)
		return part[1] + m.name(strings.ToLower(part[2]))
	})
	return addressLike().ReplaceAllStringFunc(text, m.address)
}

func (m *mask) name(host string) string {
	if s, ok := m.names[host]; ok {
		return s
	}
	m.count["host"]++
	m.names[host] = fmt.Sprintf("host-%d", m.count["host"])
	return m.names[host]
}

// address masks what is an address. Those that say nothing of a cluster stay: unspecified, loopback, multicast.
func (m *mask) address(s string) string {
	a, err := netip.ParseAddr(s)
	if err != nil { // an address and its port
		if p, err := netip.ParseAddrPort(s); err == nil {
			return m.address(p.Addr().String()) + fmt.Sprintf(":%d", p.Port())
		}
		return s
	}
	if a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() {
		return s
	}
	if known, ok := m.addresses[a]; ok {
		return known
	}
	kind := "ipv4"
	if a.Is6() {
		kind = "ipv6"
	}
	m.count[kind]++
	m.addresses[a] = fmt.Sprintf("%s-%d", kind, m.count[kind])
	return m.addresses[a]
}
