package flannel

import (
	"fmt"
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
	case MatchExtension:
		return "-m " + m.Text
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
		return "-j MASQUERADE" + flag(t.Text != "", " "+t.Text) + flag(t.Random, " --random") + flag(t.RandomFully, " --random-fully")
	case TargetOpaque:
		return t.Text
	}
	return "-j " + t.Text
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
