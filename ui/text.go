package ui

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"flanwatch/flannel"

	"github.com/charmbracelet/x/ansi"
)

// clean makes text from the kernel, a file or a process safe to draw: nothing in it can move the cursor, and each of its
// runes takes one column on every terminal. Wide, joining and combining runes are shown by number, since terminals
// disagree about their width.
func clean(s string) string {
	s = flannel.Printable(s)
	if isASCII(s) || ansi.StringWidth(s) == utf8.RuneCountInString(s) && singles(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\u{%x}`, r)
		}
	}
	return b.String()
}

func singles(s string) bool {
	for _, r := range s {
		if r >= utf8.RuneSelf && ansi.StringWidth(string(r)) != 1 {
			return false
		}
	}
	return true
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// width is the number of columns of text that went through clean, or is our own.
func width(s string) int {
	if isASCII(s) {
		return len(s)
	}
	return utf8.RuneCountInString(s)
}

// cut shortens text to at most w columns and marks that it did.
func cut(s string, w int) string {
	if width(s) <= w {
		return s
	}
	if w <= 0 {
		return ""
	}
	n := 0
	for i := range s {
		if n == w-1 {
			return s[:i] + "…"
		}
		n++
	}
	return s
}

// left fills or shortens text to exactly w columns.
func left(s string, w int) string {
	s = cut(s, w)
	return s + strings.Repeat(" ", max(w-width(s), 0))
}

// right is left, aligned to the other side.
func right(s string, w int) string {
	s = cut(s, w)
	return strings.Repeat(" ", max(w-width(s), 0)) + s
}

// wrap breaks text into lines of at most w columns, at spaces where there are any.
func wrap(s string, w int) []string {
	if w <= 0 {
		return nil
	}
	var out []string
	for width(s) > w {
		head := string([]rune(s)[:w])
		if i := strings.LastIndexByte(head, ' '); i > w/3 {
			head = head[:i]
		}
		out = append(out, head)
		s = strings.TrimPrefix(s[len(head):], " ")
	}
	return append(out, s)
}

// line builds one line of the screen from pieces of text, each with its role, and knows how many columns it has.
type line struct {
	b      strings.Builder
	pal    *palette
	ground ground
	w      int
	max    int // pieces beyond it are shortened
}

// put adds a piece.
func (l *line) put(r role, s string) *line {
	s = cut(s, l.max-l.w)
	if s == "" {
		return l
	}
	l.b.WriteString(l.pal[r][l.ground])
	l.b.WriteString(s)
	l.w += width(s)
	return l
}

// to fills with spaces up to column w.
func (l *line) to(w int) *line { return l.put(roleText, strings.Repeat(" ", max(w-l.w, 0))) }

// gap adds n spaces.
func (l *line) gap(n int) *line { return l.to(l.w + n) }

// full gives the line filled to its width, with the terminal back in its plain state.
func (l *line) full() string {
	l.to(l.max)
	return l.b.String() + "\x1b[m"
}

// piece is text with its role, for lists of which some may not fit.
type piece struct {
	role role
	text string
}

func (l *line) pieces(ps ...piece) *line {
	for _, p := range ps {
		l.put(p.role, p.text)
	}
	return l
}

func columns(ps []piece) int {
	n := 0
	for _, p := range ps {
		n += width(p.text)
	}
	return n
}
