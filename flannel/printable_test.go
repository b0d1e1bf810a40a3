package flannel

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestPrintableShowsWhatATerminalWouldObey(t *testing.T) {
	for in, want := range map[string]string{
		"":                                   "",
		`plain text, "quotes" and \x1b`:      `plain text, "quotes" and \x1b`,
		"Grüße 世界 é ½ 🐢":                     "Grüße 世界 é ½ 🐢",
		"\x1b[31mred\x1b[0m":                 `\x1b[31mred\x1b[0m`,
		"a\nb\tc\rd\x00e\x7ff":               `a\x0ab\x09c\x0dd\x00e\x7ff`,
		"\u009b31m":                          `\u{9b}31m`,
		"\x9b31m":                            `\x9b31m`,
		"cut \xe4\xb8":                       `cut \xe4\xb8`,
		"\u202eevil\u202c":                   `\u{202e}evil\u{202c}`,
		"\u2066x\u2069\u200e\u200f\u061c":    `\u{2066}x\u{2069}\u{200e}\u{200f}\u{61c}`,
		"ze\u200bro\u200c\u200d\u2060\ufeff": `ze\u{200b}ro\u{200c}\u{200d}\u{2060}\u{feff}`,
		"soft\u00adhyphen":                   `soft\u{ad}hyphen`,
		"no\u00a0break\u2028line":            `no\u{a0}break\u{2028}line`,
		"\u3164\u034f\ufe0f\U000e0041":       `\u{3164}\u{34f}\u{fe0f}\u{e0041}`,
		"replacement \ufffd":                 "replacement \ufffd",
	} {
		if got := Printable(in); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}

func TestCleanTextCostsNoAllocation(t *testing.T) {
	for _, s := range []string{strings.Repeat("-s 10.244.0.0/16 ", 20), "Grüße 世界"} {
		if n := testing.AllocsPerRun(100, func() { Printable(s) }); n != 0 {
			t.Errorf("%q: %v allocations", s, n)
		}
	}
}

func FuzzPrintable(f *testing.F) {
	for _, s := range []string{"plain", "\x1b]0;x\x07", "\xff\xfe", "\u202e", "a\u0300", "\u009b", "\ufffd", "\U000e0001"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Printable(s)
		if !utf8.ValidString(got) {
			t.Fatalf("%q: %q is no UTF-8", s, got)
		}
		for _, r := range got {
			if unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Cf, unicode.Zl, unicode.Zp) {
				t.Fatalf("%q: %q holds %U", s, got, r)
			}
		}
		if again := Printable(got); again != got {
			t.Fatalf("%q: %q becomes %q", s, got, again)
		}
		if got == s != (firstUnprintable(s) < 0) {
			t.Fatalf("%q: changed without need", s)
		}
	})
}

func BenchmarkPrintable(b *testing.B) {
	s := `-s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully`
	b.ReportAllocs()
	for b.Loop() {
		Printable(s)
	}
}
