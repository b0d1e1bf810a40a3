package flannel

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// String gives the canonical text, byte for byte as iptables-save prints the rule after "-A CHAIN ". Bytes of comments
// are raw: pass the text through Printable before it reaches a terminal. Every rule of understood parts comes back from
// ParseRule as it was, and so does an opaque one.
func (r Rule) String() string {
	text := r.text(func(s string) string { return s })
	if !r.Opaque() {
		return text
	}
	// Words that nobody understands can run into each other. Where they would, they are wrapped.
	if back, err := ParseRule(text); err == nil && back.identical(r) {
		return text
	}
	return r.text(wrap)
}

// wrap marks opaque words whose bounds the bare text would not tell.
func wrap(s string) string { return opaqueOption + " " + inQuotes(s) }

// opaqueOption is no option of iptables.
const opaqueOption = "--opaque"

func (r Rule) text(opaque func(string) string) string {
	parts := make([]string, 0, len(r.Matches)+1)
	for _, m := range r.Matches {
		if m.Kind == MatchOpaque {
			parts = append(parts, opaque(m.Text))
			continue
		}
		parts = append(parts, m.text())
	}
	switch r.Target.Kind {
	case TargetNone:
	case TargetOpaque:
		if t := opaque(r.Target.Text); t == r.Target.Text {
			parts = append(parts, t)
		} else {
			parts = append(parts, "-j "+t)
		}
	default:
		parts = append(parts, r.Target.text())
	}
	return strings.Join(parts, " ")
}

func (m Match) text() string {
	not := ""
	if m.Not {
		not = "! "
	}
	switch m.Kind {
	case MatchSource:
		return not + "-s " + m.Prefix.String()
	case MatchDestination:
		return not + "-d " + m.Prefix.String()
	case MatchIn:
		return not + "-i " + bare(m.Text)
	case MatchOut:
		return not + "-o " + bare(m.Text)
	case MatchProtocol:
		return not + "-p " + bare(m.Text)
	case MatchMark:
		if m.Mask == allOnes {
			return fmt.Sprintf("-m mark %s--mark 0x%x", not, m.Value)
		}
		return fmt.Sprintf("-m mark %s--mark 0x%x/0x%x", not, m.Value, m.Mask)
	case MatchComment:
		return "-m comment --comment " + quote(m.Text)
	}
	return m.Text
}

const allOnes = ^uint32(0)

func (t Target) text() string {
	switch t.Kind {
	case TargetAccept:
		return "-j ACCEPT"
	case TargetDrop:
		return "-j DROP"
	case TargetReturn:
		return "-j RETURN"
	case TargetJump:
		return "-j " + chainName(t.Chain)
	case TargetGoto:
		return "-g " + bare(t.Chain)
	case TargetMasquerade:
		return "-j MASQUERADE" + flag(t.Random, " --random") + flag(t.RandomFully, " --random-fully")
	}
	return t.Text
}

// chainName quotes the name of a chain that a reader would take for something else; iptables itself refuses to make one.
func chainName(s string) string {
	if _, verdict := verdicts[s]; verdict || s == "MASQUERADE" || s == opaqueOption || slices.Contains(extensions, s) {
		return inQuotes(s)
	}
	return bare(s)
}

func flag(on bool, text string) string {
	if on {
		return text
	}
	return ""
}

// Text gives the rule in the language of the backend: nft's for native tables, iptables' for the others.
func (r Rule) Text(b Backend, f Family) string {
	if b == Nftables {
		return r.Nft(f)
	}
	return r.String()
}

// Nft gives the rule as `nft list` prints it.
func (r Rule) Nft(f Family) string {
	var parts []string
	comment := ""
	for _, m := range r.Matches {
		if m.Kind == MatchComment {
			comment = m.Text
			continue
		}
		parts = append(parts, m.nft(f))
	}
	if t := r.Target.nft(); t != "" {
		parts = append(parts, t)
	}
	if comment != "" {
		parts = append(parts, `comment "`+comment+`"`)
	}
	return strings.Join(parts, " ")
}

func (m Match) nft(f Family) string {
	not := ""
	if m.Not {
		not = "!= "
	}
	switch m.Kind {
	case MatchSource:
		return f.String() + " saddr " + not + nftPrefix(m.Prefix)
	case MatchDestination:
		return f.String() + " daddr " + not + nftPrefix(m.Prefix)
	case MatchIn:
		return "iifname " + not + nftInterface(m.Text)
	case MatchOut:
		return "oifname " + not + nftInterface(m.Text)
	case MatchProtocol:
		return "meta l4proto " + not + m.Text
	case MatchMark:
		return m.nftMark(not)
	}
	return m.Text
}

func (m Match) nftMark(not string) string {
	if m.Mask == allOnes {
		return fmt.Sprintf("meta mark %s0x%08x", not, m.Value)
	}
	if not == "" {
		not = "== "
	}
	return fmt.Sprintf("meta mark & 0x%08x %s0x%08x", m.Mask, not, m.Value)
}

// nftPrefix leaves out the length of a single address, as nft does.
func nftPrefix(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func nftInterface(name string) string {
	if base, wild := strings.CutSuffix(name, "+"); wild {
		name = base + "*"
	}
	return `"` + name + `"`
}

func (t Target) nft() string {
	switch t.Kind {
	case TargetAccept:
		return "accept"
	case TargetDrop:
		return "drop"
	case TargetReturn:
		return "return"
	case TargetJump:
		return "jump " + t.Chain
	case TargetGoto:
		return "goto " + t.Chain
	case TargetMasquerade:
		return "masquerade" + t.nftFlags()
	}
	return t.Text
}

func (t Target) nftFlags() string {
	switch {
	case t.Random && t.RandomFully:
		return " random,fully-random"
	case t.Random:
		return " random"
	case t.RandomFully:
		return " fully-random"
	}
	return ""
}

// MarshalText writes the canonical text. JSON cannot hold bytes that are no UTF-8: a text with such bytes is written as a
// Go string literal.
func (r Rule) MarshalText() ([]byte, error) {
	s := r.String()
	if !utf8.ValidString(s) || strings.HasPrefix(s, `"`) {
		s = strconv.Quote(s)
	}
	return []byte(s), nil
}

// UnmarshalText reads what MarshalText wrote.
func (r *Rule) UnmarshalText(text []byte) error {
	s := string(text)
	if strings.HasPrefix(s, `"`) {
		unquoted, err := strconv.Unquote(s)
		if err != nil {
			return fmt.Errorf("unmarshal rule %s: %w", shown(s), err)
		}
		s = unquoted
	}
	rule, err := ParseRule(s)
	if err != nil {
		return err
	}
	*r = rule
	return nil
}
