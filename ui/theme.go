package ui

import (
	"fmt"
	"strings"

	"github.com/charmbracelet/colorprofile"
)

// role is what a piece of text is, rather than how it looks. No other file names a colour.
type role uint8

// The twelve roles.
const (
	roleText   role = iota // plain text, in the terminal's own colour
	roleStrong             // names, values that matter
	roleDim                // headings, units, what can be skipped
	roleFrame              // borders
	roleFocus              // title of the panel that has the keys
	roleKey                // keys to press
	roleGood               // as Flannel wants it
	roleWarn               // wrong, and pods still work
	roleBad                // wrong, and pods suffer
	roleGraph              // sparklines
	roleWho                // programs and people
	roleSelect             // ground of the selected row
	roles
)

// ground is what stands behind a piece of text.
type ground uint8

const (
	groundPlain  ground = iota
	groundSelect        // the selected row
	groundAlert         // inverse, for the one word that must be seen
	grounds
)

// Theme names a set of colours.
type Theme string

// The themes, in the order in which the key walks through them. Auto is dark or light by the terminal's background.
const (
	ThemeAuto  Theme = "auto"
	ThemeDark  Theme = "dark"
	ThemeLight Theme = "light"
	ThemeMono  Theme = "mono"
)

// Themes lists every theme.
var Themes = []Theme{ThemeAuto, ThemeDark, ThemeLight, ThemeMono}

// ink is one role in full colour, among 256 colours and among sixteen. Each is chosen by eye: the nearest of few colours
// is often one of another hue.
type ink struct {
	rgb  uint32 // 0xrrggbb
	cube uint8  // 16–255
	base int    // 0–15, or -1 for the terminal's own colour
	bold bool
	dim  bool // where there is no colour
}

const own = -1

var darkInks = [roles]ink{
	roleText:   {base: own},
	roleStrong: {base: own, bold: true},
	roleDim:    {rgb: 0x8b93a1, cube: 245, base: 8, dim: true},
	roleFrame:  {rgb: 0x4b5263, cube: 240, base: 8, dim: true},
	roleFocus:  {rgb: 0x82aaff, cube: 111, base: 14, bold: true},
	roleKey:    {rgb: 0x7fd6e8, cube: 116, base: 14, bold: true},
	roleGood:   {rgb: 0x7ec699, cube: 114, base: 10},
	roleWarn:   {rgb: 0xf0c674, cube: 221, base: 11, bold: true},
	roleBad:    {rgb: 0xff6b70, cube: 203, base: 9, bold: true},
	roleGraph:  {rgb: 0x5fa8d3, cube: 74, base: 6},
	roleWho:    {rgb: 0xd3a4f9, cube: 177, base: 13},
	roleSelect: {rgb: 0x2b3348, cube: 236, base: own},
}

var lightInks = [roles]ink{
	roleText:   {base: own},
	roleStrong: {base: own, bold: true},
	roleDim:    {rgb: 0x646b78, cube: 242, base: 8, dim: true},
	roleFrame:  {rgb: 0xb4bac6, cube: 250, base: 7, dim: true},
	roleFocus:  {rgb: 0x1f4fbf, cube: 26, base: 4, bold: true},
	roleKey:    {rgb: 0x00708a, cube: 30, base: 6, bold: true},
	roleGood:   {rgb: 0x1a7f37, cube: 28, base: 2},
	roleWarn:   {rgb: 0x8f5b00, cube: 94, base: 3, bold: true},
	roleBad:    {rgb: 0xc4141f, cube: 160, base: 1, bold: true},
	roleGraph:  {rgb: 0x2a75ad, cube: 32, base: 4},
	roleWho:    {rgb: 0x7a3fc0, cube: 97, base: 5},
	roleSelect: {rgb: 0xdce5f7, cube: 254, base: own},
}

// palette holds, for each role and ground, the escape sequence that switches to it from any state.
type palette [roles][grounds]string

// newPalette makes the sequences of a theme for what the terminal can show. Auto must have been resolved before.
func newPalette(t Theme, profile colorprofile.Profile) *palette {
	inks := darkInks
	if t == ThemeLight {
		inks = lightInks
	}
	if t == ThemeMono {
		profile = min(profile, colorprofile.ASCII)
	}
	var p palette
	for r := range inks {
		for g := range grounds {
			p[r][g] = sequence(inks[r], inks[roleSelect], g, profile)
		}
	}
	return &p
}

// sequence always starts with a reset, so that no piece depends on the one before. With few colours or none the selected
// row is inverse in one colour: a coloured word on an inverse ground is hard to read, and its symbol still tells the state.
func sequence(k, sel ink, g ground, profile colorprofile.Profile) string {
	codes := []string{"0"}
	if k.bold || g == groundAlert {
		codes = append(codes, "1")
	}
	rich := profile >= colorprofile.ANSI256
	switch {
	case g == groundSelect && !rich:
		return sgr(append(codes, "7"))
	case profile <= colorprofile.ASCII && k.dim:
		codes = append(codes, "2")
	case rich && k.base != own:
		codes = append(codes, k.rich("38", profile))
	case profile == colorprofile.ANSI && k.base != own:
		codes = append(codes, baseCode(k.base))
	}
	switch g {
	case groundSelect:
		codes = append(codes, sel.rich("48", profile))
	case groundAlert:
		codes = append(codes, "7")
	}
	return sgr(codes)
}

func sgr(codes []string) string { return "\x1b[" + strings.Join(codes, ";") + "m" }

// baseCode names one of the sixteen colours as foreground.
func baseCode(n int) string {
	if n < 8 {
		return fmt.Sprint(30 + n)
	}
	return fmt.Sprint(90 + n - 8)
}

// rich names the colour as foreground (38) or background (48) where there are at least 256.
func (k ink) rich(layer string, profile colorprofile.Profile) string {
	if profile == colorprofile.TrueColor {
		return fmt.Sprintf("%s;2;%d;%d;%d", layer, k.rgb>>16, k.rgb>>8&0xff, k.rgb&0xff)
	}
	return fmt.Sprintf("%s;5;%d", layer, k.cube)
}
