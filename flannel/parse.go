package flannel

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ParseRule reads a rule in the syntax of iptables-save, without "-A CHAIN": the inverse of Rule.String. The old place of
// the negation ("-s ! 10.0.0.0/8") is understood too. Words that are not understood are kept as written in opaque parts;
// the only error is a quote that is not closed.
func ParseRule(text string) (Rule, error) {
	words, err := splitWords(text)
	if err != nil {
		return Rule{}, fmt.Errorf("parse rule %s: %w", shown(text), err)
	}
	p := ruleParser{words: words, target: Target{Kind: TargetNone}}
	for len(p.words) > 0 {
		p.next()
	}
	p.close()
	return NewRule(p.target, p.matches...), nil
}

// ruleParser takes a rule's words from the front, one option at a time.
type ruleParser struct {
	words   []word
	matches []Match
	target  Target
	open    []string // words not understood so far, of which further ones make one opaque part
}

func (p *ruleParser) next() {
	negated := len(p.words) > 1 && p.words[0].is("!")
	rest := p.words
	if negated {
		rest = rest[1:]
	}
	m, n := parseMatch(rest, negated)
	if n == 0 && !negated && p.target.Kind == TargetNone {
		if n = p.parseTarget(rest); n > 0 {
			p.close()
			p.words = rest[n:]
			return
		}
	}
	if n == 0 {
		p.opaque()
		return
	}
	p.close()
	p.words = rest[n:]
	if m.Kind != matchAll {
		p.matches = append(p.matches, m)
	}
}

// opaque takes one word that is not understood. "-m" opens a part of its own.
func (p *ruleParser) opaque() {
	if p.words[0].is("-m") {
		p.close()
	}
	p.open = append(p.open, p.words[0].raw)
	p.words = p.words[1:]
}

// close makes an opaque part of the words that were not understood.
func (p *ruleParser) close() {
	if len(p.open) > 0 {
		p.matches = append(p.matches, Match{Kind: MatchOpaque, Text: strings.Join(p.open, " ")})
		p.open = nil
	}
}

// matchAll stands for a condition that holds for every packet and is left out of the rule.
const matchAll MatchKind = 255

// parseMatch reads one condition and tells how many words it took: 0 if it is not understood.
func parseMatch(words []word, not bool) (Match, int) {
	if len(words) < 2 {
		return Match{}, 0
	}
	option, value, n := words[0], words[1], 2
	if option.is("-m", "--match") && len(words) >= 4 {
		if m, n := parseExtension(words, not); n > 0 || not {
			return m, n
		}
	}
	if option.is("-m") && !not {
		return parseWords(words)
	}
	if value.is("!") && !not && len(words) >= 3 {
		value, not, n = words[2], true, 3
	}
	switch {
	case option.is("-s", "--source"):
		return prefixMatch(MatchSource, value, not, n)
	case option.is("-d", "--destination"):
		return prefixMatch(MatchDestination, value, not, n)
	case option.is("-i", "--in-interface"):
		return interfaceMatch(MatchIn, value, not, n)
	case option.is("-o", "--out-interface"):
		return interfaceMatch(MatchOut, value, not, n)
	case option.is("-p", "--protocol"):
		return protocolMatch(value, not, n)
	case option.is(opaqueOption) && value.quoted && !not:
		return Match{Kind: MatchOpaque, Text: value.text}, n
	}
	return Match{}, 0
}

// parseExtension reads "-m mark [!] --mark V[/M]" and "-m comment --comment TEXT".
func parseExtension(words []word, not bool) (Match, int) {
	name, rest := words[1], words[2:]
	switch {
	case not:
	case name.is("comment") && rest[0].is("--comment"):
		return Match{Kind: MatchComment, Text: rest[1].text}, 4
	case name.is("mark") && rest[0].is("--mark"):
		return markMatch(rest[1], false, 4)
	case name.is("mark") && rest[0].is("!") && len(rest) >= 3 && rest[1].is("--mark"):
		return markMatch(rest[2], true, 5)
	}
	return Match{}, 0
}

func markMatch(w word, not bool, n int) (Match, int) {
	m, ok := parseMasked(w.text)
	if !ok {
		return Match{}, 0
	}
	return Match{Kind: MatchMark, Not: not, Value: m.Value, Mask: m.Mask}, n
}

func prefixMatch(kind MatchKind, w word, not bool, n int) (Match, int) {
	p, ok := parsePrefix(w.text)
	if !ok {
		return Match{}, 0
	}
	if p.Bits() == 0 && !not {
		return Match{Kind: matchAll}, n
	}
	return Match{Kind: kind, Not: not, Prefix: p}, n
}

// parsePrefix reads an address with or without a length or a netmask, and masks it.
func parsePrefix(s string) (netip.Prefix, bool) {
	address, length, found := strings.Cut(s, "/")
	a, err := netip.ParseAddr(address)
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, false
	}
	if !found {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	if mask, err := netip.ParseAddr(length); err == nil {
		n, ok := maskBits(mask, a.BitLen())
		return netip.PrefixFrom(a, n).Masked(), ok
	}
	n, err := strconv.ParseUint(length, 10, 8)
	if err != nil || int(n) > a.BitLen() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a, int(n)).Masked(), true
}

// maskBits is the length of a netmask of ones followed by zeros.
func maskBits(mask netip.Addr, size int) (int, bool) {
	if mask.BitLen() != size || mask.Zone() != "" {
		return 0, false
	}
	n, ended := 0, false
	for _, b := range mask.AsSlice() {
		ones := bits.LeadingZeros8(^b)
		if ended && b != 0 || b<<ones != 0 {
			return 0, false
		}
		n += ones
		ended = ended || ones < 8
	}
	return n, true
}

func interfaceMatch(kind MatchKind, w word, not bool, n int) (Match, int) {
	if w.text == "+" && !not {
		return Match{Kind: matchAll}, n
	}
	return Match{Kind: kind, Not: not, Text: w.text}, n
}

func protocolMatch(w word, not bool, n int) (Match, int) {
	name := w.text
	if number, err := strconv.ParseUint(name, 10, 8); err == nil {
		name = ProtocolName(uint8(number))
	}
	name = cmp.Or(protocolAliases[name], name)
	if name == "all" || name == "0" {
		if not {
			return Match{}, 0
		}
		return Match{Kind: matchAll}, n
	}
	return Match{Kind: MatchProtocol, Not: not, Text: name}, n
}

var protocolNames = map[uint8]string{
	1: "icmp", 2: "igmp", 4: "ipencap", 6: "tcp", 17: "udp", 41: "ipv6", 47: "gre", 50: "esp", 51: "ah", 58: "ipv6-icmp",
	89: "ospf", 103: "pim", 112: "vrrp", 132: "sctp", 135: "mobility-header", 136: "udplite",
}

// protocolAliases are names that iptables-save prints where /etc/protocols is missing.
var protocolAliases = map[string]string{"icmpv6": "ipv6-icmp", "mh": "mobility-header", "ipv6-mh": "mobility-header"}

// ProtocolName is the name that iptables-save prints for a protocol, or its number where there is none.
func ProtocolName(number uint8) string {
	if s, ok := protocolNames[number]; ok {
		return s
	}
	return strconv.Itoa(int(number))
}

// parseTarget reads "-j TARGET" with its options or "-g CHAIN".
func (p *ruleParser) parseTarget(words []word) int {
	if len(words) < 2 || !words[0].is("-j", "--jump", "-g", "--goto") {
		return 0
	}
	name := words[1]
	if words[0].is("-g", "--goto") {
		p.target = Target{Kind: TargetGoto, Chain: name.text}
		return 2
	}
	if name.is(opaqueOption) && len(words) >= 3 && words[2].quoted {
		p.target = Target{Text: words[2].text}
		return 3
	}
	n := 2
	for n < len(words) && !startsMatch(words[n:]) {
		n++
	}
	p.target = newTarget(words[:n])
	return n
}

// startsMatch tells whether a condition begins here; what else follows a target is the target's own option.
func startsMatch(words []word) bool {
	if words[0].is("!") && len(words) > 1 {
		words = words[1:]
	}
	return words[0].is("-m", "--match", "-s", "--source", "-d", "--destination", "-i", "--in-interface", "-o",
		"--out-interface", "-p", "--protocol", opaqueOption)
}

func newTarget(words []word) Target {
	name, options := words[1], words[2:]
	kind, verdict := verdicts[name.text]
	switch {
	case name.quoted && len(options) == 0:
		return Target{Kind: TargetJump, Chain: name.text}
	case verdict && len(options) == 0:
		return Target{Kind: kind}
	case name.text == "MASQUERADE":
		if t, ok := masquerade(options); ok {
			return t
		}
	case len(options) == 0 && !slices.Contains(extensions, name.text):
		return Target{Kind: TargetJump, Chain: name.text}
	}
	if t, ok := newAction(words); ok {
		return t
	}
	return Target{Text: joined(words)}
}

var verdicts = map[string]TargetKind{"ACCEPT": TargetAccept, "DROP": TargetDrop, "RETURN": TargetReturn}

// extensions are the targets of iptables that can stand without an option and are no chain.
var extensions = []string{
	"AUDIT", "CHECKSUM", "CLASSIFY", "CLUSTERIP", "CONNMARK", "CONNSECMARK", "CT", "DNAT", "DNPT", "DSCP", "ECN", "HL", "HMARK",
	"IDLETIMER", "LED", "LOG", "MARK", "NETMAP", "NFLOG", "NFQUEUE", "NOTRACK", "QUEUE", "RATEEST", "REDIRECT", "REJECT",
	"SECMARK", "SET", "SNAT", "SNPT", "SYNPROXY", "TCPMSS", "TCPOPTSTRIP", "TEE", "TOS", "TPROXY", "TRACE", "TTL", "ULOG",
}

func masquerade(options []word) (Target, bool) {
	t := Target{Kind: TargetMasquerade}
	for i := 0; i < len(options); i++ {
		switch o := options[i]; {
		case o.is("--random"):
			t.Random = true
		case o.is("--random-fully"):
			t.RandomFully = true
		case o.is("--to-ports") && t.Text == "" && i+1 < len(options) && isNatPorts(options[i+1].raw):
			i++
			t.Text = "--to-ports " + options[i].raw
		default:
			return Target{}, false
		}
	}
	return t, true
}

// identical tells whether both rules have the same parts, opaque ones compared by their words: the same writing, which for
// opaque rules does not mean the same effect.
func (r Rule) identical(s Rule) bool {
	return r.Target == s.Target && slices.Equal(r.Matches, s.Matches)
}
