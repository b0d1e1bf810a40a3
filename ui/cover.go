package ui

import (
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// Bounds of a dialog's width.
const (
	leastDialog = 56
	mostDialog  = 116
)

// cover lays the dialog over the lines of a page, in the middle.
func (s *screen) cover(page []string) []string {
	w := s.dialogWidth()
	d := s.narrow(w)
	b := d.dialogBox(len(page) - 2)
	lines := d.frame(b, len(b.lines), true, false)
	x, y := (s.width-w)/2, max((len(page)-len(lines))/2, 0)
	out := append([]string(nil), page...)
	for i, l := range lines {
		if y+i < len(out) {
			out[y+i] = beside(out[y+i], l, x, w)
		}
	}
	return out
}

// dialogWidth leaves some of the page in sight beside the dialog.
func (s *screen) dialogWidth() int {
	w := min(max(s.width*86/100, 76), mostDialog, s.width-4)
	if w < leastDialog {
		return s.width
	}
	return w
}

// beside puts text of a width into a line, over what stands there.
func beside(line, text string, x, w int) string {
	var b strings.Builder
	b.WriteString(ansi.Truncate(line, x, ""))
	b.WriteString("\x1b[m")
	b.WriteString(text)
	b.WriteString(ansi.TruncateLeft(line, x+w, ""))
	b.WriteString("\x1b[m")
	return b.String()
}
