package flannel

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable makes text from the kernel, a file or a process safe for a terminal: control bytes (C0, DEL, C1), invalid
// UTF-8, bidirectional controls, zero-width and other invisible runes become visible as \xNN (bytes) or \u{N} (runes).
// Everything else is unchanged, backslashes included, so that Printable is idempotent; it is for eyes and cannot be
// reversed. Clean text is returned as it is, without an allocation.
func Printable(s string) string {
	i := firstUnprintable(s)
	if i < 0 {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 16)
	for i >= 0 {
		b.WriteString(s[:i])
		r, size := utf8.DecodeRuneInString(s[i:])
		if r < utf8.RuneSelf || r == utf8.RuneError && size == 1 {
			fmt.Fprintf(&b, `\x%02x`, s[i])
		} else {
			fmt.Fprintf(&b, `\u{%x}`, r)
		}
		s = s[i+size:]
		i = firstUnprintable(s)
	}
	b.WriteString(s)
	return b.String()
}

// firstUnprintable is the offset of the first rune that must not reach a terminal, -1 if there is none.
func firstUnprintable(s string) int {
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf {
			if c < ' ' || c == 0x7f {
				return i
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 || !visible(r) {
			return i
		}
		i += size
	}
	return -1
}

// visible tells whether a rune beyond ASCII shows as itself. IsPrint already refuses controls, format characters (bidi,
// zero-width) and every space but the common one; the two tables hold letters and marks that show as nothing.
func visible(r rune) bool {
	return unicode.IsPrint(r) && !unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}
