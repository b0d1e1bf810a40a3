package flannel

import (
	"net/netip"
	"slices"
	"strings"
)

// MatchKind is the sort of a condition. The zero value is "not understood", so that nothing is taken for understood by
// omission.
type MatchKind uint8

// The conditions that flanwatch understands. Everything else is MatchOpaque and keeps its text.
const (
	MatchOpaque      MatchKind = iota // Text holds the words as written, "-m" included; the rule's meaning is unknown
	MatchSource                       // Prefix
	MatchDestination                  // Prefix
	MatchIn                           // Text: interface name, "+" at the end as wildcard
	MatchOut                          // Text
	MatchProtocol                     // Text: "tcp", "udp", … or the number
	MatchMark                         // Value and Mask
	MatchComment                      // Text
	MatchExtension                    // Text: name and options as iptables-save prints them after "-m"; see Extension and Options
)

// Match is one condition of a rule. It is comparable.
type Match struct {
	Kind   MatchKind
	Not    bool
	Prefix netip.Prefix // masked
	Value  uint32
	Mask   uint32 // all ones where the rule compares the whole word
	Text   string
}

// Doing marks, within the brackets of an opaque part, an expression of nf_tables that may change the packet and not only look
// at it.
const Doing = "do "

// Acts tells whether an opaque part may change the packet, so that nothing that was known of its mark is known behind it.
func (m Match) Acts() bool {
	return m.Kind == MatchOpaque && strings.Contains(m.Text, "["+Doing)
}

// TargetKind is what a rule does. The zero value is "not understood".
type TargetKind uint8

// The targets that flanwatch understands.
const (
	TargetOpaque     TargetKind = iota // Text holds the words as written, "-j" included
	TargetNone                         // the rule only counts
	TargetAccept                       //
	TargetDrop                         //
	TargetReturn                       //
	TargetJump                         // Chain
	TargetGoto                         // Chain
	TargetMasquerade                   // Random, RandomFully; Text: what else is said, such as "--to-ports 1024-65535"
	TargetReject                       // of this kind and those below Text is what iptables-save prints after "-j"; see Options
	TargetSNAT                         //
	TargetDNAT                         //
	TargetRedirect                     // translates to the node's own address
	TargetMark                         // sets bits of the packet's mark
	TargetConnmark                     // copies between the marks of packet and connection
	TargetNotrack                      // takes the packet out of connection tracking, and with that out of translation
	TargetTTL                          // TTL or HL: sets how many hops are left
	TargetMap                          // nftables: the verdict stands in a map, under a key made of parts of the packet
	TargetPass                         // LOG and others after which the packet goes on as it was
)

// Target is the action of a rule. It is comparable.
type Target struct {
	Kind        TargetKind
	Chain       string
	Random      bool
	RandomFully bool
	Text        string
}

// Rule is one rule: all matches must hold for the target to act. Matches stand in canonical order: source, destination,
// interfaces, protocol, then the rest as written, which is how iptables-save prints them whatever the order of writing.
type Rule struct {
	Matches []Match
	Target  Target
}

// NewRule puts the matches in canonical order.
func NewRule(target Target, matches ...Match) Rule {
	ms := slices.Clone(matches)
	slices.SortStableFunc(ms, func(a, b Match) int { return rank(a.Kind) - rank(b.Kind) })
	return Rule{Matches: ms, Target: target}
}

func rank(k MatchKind) int {
	switch k {
	case MatchSource, MatchDestination, MatchIn, MatchOut, MatchProtocol:
		return int(k)
	}
	return int(MatchProtocol) + 1
}

// Opaque tells whether any part of the rule was not understood. An opaque rule equals nothing, itself included: two rules
// of which a part is unknown cannot be told to do the same.
func (r Rule) Opaque() bool {
	return r.Target.Kind == TargetOpaque || slices.ContainsFunc(r.Matches, func(m Match) bool { return m.Kind == MatchOpaque })
}

// Equal tells whether both rules say the same, comments included.
func (r Rule) Equal(s Rule) bool {
	return !r.Opaque() && !s.Opaque() && r.Target == s.Target && slices.Equal(r.Matches, s.Matches)
}

// Comment is the text of the first comment match, or "".
func (r Rule) Comment() string {
	for _, m := range r.Matches {
		if m.Kind == MatchComment {
			return m.Text
		}
	}
	return ""
}
