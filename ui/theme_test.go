package ui

import (
	"strings"
	"testing"

	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"
)

func TestAnyValueOfNoColorTurnsColoursOff(t *testing.T) {
	for _, value := range []string{"1", "yes", "0", "false"} {
		o := Options{Environ: []string{"TERM=xterm-256color", "COLORTERM=truecolor", "NO_COLOR=" + value}}
		if p := o.profile(); p > colorprofile.ASCII {
			t.Errorf("NO_COLOR=%s gives %v", value, p)
		}
	}
	if p := (Options{Environ: []string{"TERM=xterm-256color", "COLORTERM=truecolor", "NO_COLOR="}}).profile(); p != colorprofile.TrueColor {
		t.Errorf("an empty NO_COLOR gives %v", p)
	}
}

// Without colours, what tells good from bad must still be there: the same text, bold and inverse.
func TestColourIsNeverTheOnlySign(t *testing.T) {
	for _, sc := range scenes {
		coloured, bare := still(t, sc.view(), Options{Theme: ThemeDark}), still(t, sc.view(), Options{Theme: ThemeMono})
		if sc.set != nil {
			sc.set(coloured)
			sc.set(bare)
		}
		a, b := coloured.at(100, 30), bare.at(100, 30)
		if ansi.Strip(a) != ansi.Strip(b) {
			t.Errorf("%s: the words depend on colour", sc.name)
		}
		if strings.Contains(b, "\x1b[0;3") || strings.Contains(b, ";38;") || strings.Contains(b, ";48;") {
			t.Errorf("%s: colour in mono", sc.name)
		}
		if strings.Contains(a, "\x1b[5") || strings.Contains(a, ";5m") {
			t.Errorf("%s blinks", sc.name)
		}
	}
}

func TestSixteenColoursUseOnlyThose(t *testing.T) {
	m := still(t, emptied(), Options{Environ: []string{"TERM=linux"}})
	if picture := m.at(100, 30); strings.Contains(picture, "38;") || strings.Contains(picture, "48;") || !strings.Contains(picture, "\x1b[0;1;91m") {
		t.Errorf("palette of sixteen: %q", picture[:400])
	}
}
