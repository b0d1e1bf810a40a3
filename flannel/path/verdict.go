package path

import (
	"net/netip"

	"flanwatch/flannel"
)

// Kind is what happens to a packet; the words are part of the JSON contract.
type Kind string

// The verdicts.
const (
	Masqueraded Kind = "masqueraded" // goes on with another source address
	Unchanged   Kind = "unchanged"   // goes on with its own
	Dropped     Kind = "dropped"
	May         Kind = "may"     // depends on something that is not understood, which is named
	Unknown     Kind = "unknown" // a part of the rules could not be read
)

// By is a rule, or with Position 0 the policy of a chain.
type By struct {
	Backend  flannel.Backend `json:"backend"`
	Table    string          `json:"table"`
	Chain    string          `json:"chain"`
	Position int             `json:"position"` // from 1
	Text     string          `json:"text"`
	Owner    string          `json:"owner"`
}

// Step is a rule that was looked at and matched, or may have.
type Step struct {
	By      By
	Hook    string
	Sure    bool // it matched
	Unknown []string
	Counter flannel.Counter
	Counted bool

	at     ref
	target flannel.TargetKind
}

// Verdict says what happens to a packet, and why.
type Verdict struct {
	Packet      Packet
	Kind        Kind
	By          *By        // the rule without which it would be otherwise; nil where no rule decides
	Others      []By       // where the verdict is may: the other rules that may decide
	Unknown     []string   // where the verdict is may or unknown: what was not understood or not read
	Source      netip.Addr // the address that the receiver sees, if that can be told
	Destination netip.Addr // the address that the packet goes to, if that can be told
	Local       bool       // it ends on this node, since its destination was translated to one of its addresses
	Trail       []Step     // in the order of the walk
}
