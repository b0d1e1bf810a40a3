package flannel

import (
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Option is one condition of an extension or one order to a target, such as `! --dport 80`.
type Option struct {
	Name  string // with its dashes
	Not   bool
	Value string // its values, parted by a blank; "" for an option that stands alone
}

// Extension is the name of the extension of a MatchExtension, "conntrack" for instance.
func (m Match) Extension() string { return firstWord(m.Text) }

// Options gives the conditions of a MatchExtension. All of them must hold.
func (m Match) Options() iter.Seq[Option] { return options(m.Text) }

// Extension is the name of the target as iptables has it, "DNAT" for instance, for kinds that keep a Text.
func (t Target) Extension() string { return firstWord(t.Text) }

// Options gives the options of a target that keeps a Text.
func (t Target) Options() iter.Seq[Option] { return options(t.Text) }

func firstWord(text string) string {
	name, _, _ := strings.Cut(text, " ")
	return name
}

// options reads a text that was checked before: options begin with "--", which no value does.
func options(text string) iter.Seq[Option] {
	return func(yield func(Option) bool) {
		_, rest, _ := strings.Cut(text, " ")
		for rest != "" {
			var o Option
			rest, o.Not = strings.CutPrefix(rest, "! ")
			end := len(rest)
			for _, sep := range []string{" --", " ! --"} {
				if i := strings.Index(rest, sep); i >= 0 && i < end {
					end = i
				}
			}
			o.Name, o.Value, _ = strings.Cut(rest[:end], " ")
			rest = strings.TrimPrefix(rest[end:], " ")
			if !yield(o) {
				return
			}
		}
	}
}

// NewExtension gives the match for words as iptables-save prints them after "-m", which is opaque where they are not
// understood.
func NewExtension(text string) Match {
	if words, err := splitWords("-m " + text); err == nil {
		if m, n := parseWords(words); n == len(words) {
			return m
		}
	}
	return Match{Kind: MatchOpaque, Text: "-m " + text}
}

// NewTarget gives the target for words as iptables-save prints them after "-j", which is opaque where they are not
// understood.
func NewTarget(text string) Target {
	if words, err := splitWords("-j " + text); err == nil && len(words) > 1 {
		if t := newTarget(words); t.Kind != TargetJump {
			return t
		}
	}
	return Target{Text: "-j " + text}
}

// check tells whether the values of an option, as many as there are checks, are in the form that iptables-save prints.
type check []func(string) bool

// extensionOptions lists the extensions that are understood with their options, and how many values each takes.
var extensionOptions = map[string]map[string]check{
	"tcp":       {"--sport": {isPorts}, "--dport": {isPorts}, "--tcp-flags": {isTCPFlags, isTCPFlags}},
	"udp":       {"--sport": {isPorts}, "--dport": {isPorts}},
	"multiport": {"--sports": {isPortList}, "--dports": {isPortList}, "--ports": {isPortList}},
	"conntrack": {"--ctstate": {isStates}, "--ctstatus": {isStatus}},
	"state":     {"--state": {isStates}},
	"addrtype":  {"--src-type": {isAddressTypes}, "--dst-type": {isAddressTypes}, "--limit-iface-in": {}, "--limit-iface-out": {}},
	"statistic": {"--mode": {listOf("random", "nth")}, "--probability": {isDecimal}, "--every": {isDecimal}, "--packet": {isDecimal}},
	"physdev": {
		"--physdev-in": {isName}, "--physdev-out": {isName}, "--physdev-is-in": {}, "--physdev-is-out": {}, "--physdev-is-bridged": {},
	},
	"set":      {"--match-set": {isName, isSetFields}},
	"rpfilter": {"--loose": {}, "--validmark": {}, "--accept-local": {}, "--invert": {}},
	"connmark": {"--mark": {isMasked}},
	"family":   {"--is": {listOf("ipv4", "ipv6")}}, // of native inet tables, no extension of iptables
}

var (
	isStates       = listOf("INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT")
	isStatus       = listOf("NONE", "EXPECTED", "SEEN_REPLY", "ASSURED", "CONFIRMED", "SNAT", "DNAT") // the last two in native rules
	isAddressTypes = listOf("UNSPEC", "UNICAST", "LOCAL", "BROADCAST", "ANYCAST", "MULTICAST", "BLACKHOLE", "UNREACHABLE",
		"PROHIBIT", "THROW", "NAT", "XRESOLVE")
	isTCPFlags  = listOf("NONE", "FIN", "SYN", "RST", "PSH", "ACK", "URG", "ALL")
	isSetFields = listOf("src", "dst", "sport", "dport", "proto", "in", "out", "mark", "state", "other")
)

// parseWords reads "-m NAME OPTIONS" and takes every option, so that none of a match is lost.
func parseWords(words []word) (Match, int) {
	if len(words) < 2 || words[1].quoted {
		return Match{}, 0
	}
	known, ok := extensionOptions[words[1].text]
	if !ok {
		return Match{}, 0
	}
	n, ok := takeOptions(words, 2, known)
	bare := words[1].is("tcp", "udp", "rpfilter") // which iptables-save names even where they set no condition
	if !ok || n == 2 && !bare {
		return Match{}, 0
	}
	return Match{Kind: MatchExtension, Text: joined(words[1:n])}, n
}

// takeOptions walks over options from words[n] on. It fails where one is not known or has no proper value: what follows
// may belong to it.
func takeOptions(words []word, n int, known map[string]check) (int, bool) {
	for n < len(words) {
		at := n
		if words[at].is("!") {
			at++
		}
		if at == len(words) || !strings.HasPrefix(words[at].text, "--") || topLevel(words[at]) {
			return n, true
		}
		checks, ok := known[words[at].text]
		if !ok || words[at].quoted || len(words) <= at+len(checks) {
			return n, false
		}
		for i, proper := range checks {
			if v := words[at+1+i]; v.quoted || !proper(v.text) {
				return n, false
			}
		}
		n = at + 1 + len(checks)
	}
	return n, true
}

// topLevel tells options that belong to no extension.
func topLevel(w word) bool {
	return w.is("--match", "--source", "--destination", "--in-interface", "--out-interface", "--protocol", "--jump", "--goto",
		opaqueOption)
}

func joined(words []word) string {
	raw := make([]string, len(words))
	for i, w := range words {
		raw[i] = w.raw
	}
	return strings.Join(raw, " ")
}

func listOf(names ...string) func(string) bool {
	return func(s string) bool {
		for one := range strings.SplitSeq(s, ",") {
			if !slices.Contains(names, one) {
				return false
			}
		}
		return true
	}
}

// isName refuses what could be taken for something else.
func isName(s string) bool { return s != "" && s[0] != '-' && s[0] != '!' && s[0] != '"' }

func isDecimal(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return err == nil && strings.Trim(s, "0123456789.") == ""
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && strconv.FormatUint(n, 10) == s
}

// isPorts reads "80" or "80:90".
func isPorts(s string) bool {
	from, to, ranged := strings.Cut(s, ":")
	return isPort(from) && (!ranged || isPort(to))
}

func isPortList(s string) bool {
	for one := range strings.SplitSeq(s, ",") {
		if !isPorts(one) {
			return false
		}
	}
	return true
}

// isMasked reads "0x1" or "0x1/0xff".
func isMasked(s string) bool {
	_, ok := parseMasked(s)
	return ok
}

// Masked is a value with the bits that count.
type Masked struct{ Value, Mask uint32 }

// ParseMasked reads a value of a MatchExtension or a Target such as "0x4000/0x4000"; ones everywhere stand for no mask.
func ParseMasked(s string) Masked {
	m, _ := parseMasked(s)
	return m
}

func parseMasked(s string) (Masked, bool) {
	value, mask, found := strings.Cut(s, "/")
	m := Masked{Mask: allOnes}
	v, err := strconv.ParseUint(value, 0, 32)
	if err != nil {
		return m, false
	}
	m.Value = uint32(v)
	if found {
		if v, err = strconv.ParseUint(mask, 0, 32); err != nil {
			return m, false
		}
		m.Mask = uint32(v)
	}
	return m, true
}

// isNatAddress reads "192.0.2.1", "192.0.2.1-192.0.2.9", "192.0.2.1:80", ":80-90" or "[fd00::1]:80".
func isNatAddress(s string) bool {
	_, ok := parseTranslation(s)
	return ok
}

// Translation is where SNAT or DNAT leads. From and To are zero where the address stays, the ports where they do.
type Translation struct {
	From, To         netip.Addr
	FromPort, ToPort uint16
}

// ParseTranslation reads the value of --to-source and --to-destination.
func ParseTranslation(s string) Translation {
	t, _ := parseTranslation(s)
	return t
}

func parseTranslation(s string) (Translation, bool) {
	var t Translation
	address, ports := s, ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 && (strings.HasPrefix(s, "[") && s[i-1] == ']' || strings.Count(s, ":") == 1) {
		address, ports = s[:i], s[i+1:]
	}
	ok := true
	if address != "" {
		first, last, ranged := strings.Cut(strings.Trim(address, "[]"), "-")
		var err, err2 error
		t.From, err = netip.ParseAddr(strings.Trim(first, "[]"))
		t.To = t.From
		if ranged {
			t.To, err2 = netip.ParseAddr(strings.Trim(last, "[]"))
		}
		ok = err == nil && err2 == nil
	}
	if ports != "" {
		first, last, ranged := strings.Cut(ports, "-")
		a, err := strconv.ParseUint(first, 10, 16)
		b, err2 := a, error(nil)
		if ranged {
			b, err2 = strconv.ParseUint(last, 10, 16)
		}
		t.FromPort, t.ToPort = uint16(a), uint16(b)
		ok = ok && err == nil && err2 == nil
	}
	return t, ok && address+ports != ""
}
