package ui

import "strings"

// box is a panel before it gets its border: a title on the left, something to know on the right, and its lines, each as
// wide as the inside of the box.
type box struct {
	number  string // the key that shows and hides it
	title   string
	info    string
	lines   []string
	focused bool
}

// inner is the width inside a border.
func (s *screen) inner() int { return s.width - 2 }

func (s *screen) innerLine(g ground) *line { return &line{pal: s.pal, max: s.inner(), ground: g} }

// frame puts a border around a box of so many rows:
//
//	╭─ ¹Chains 4 ───────────── sort severity ↓ ─╮
//	│ …                                         │
//	╰───────────────────────────────────────────╯
//
// Joined panels share a border; the one below the last is drawn by bottom.
func (s *screen) frame(b box, rows int, first, joined bool) []string {
	lead, end := "╭─ ", "─╮"
	if joined && !first {
		lead, end = "├─ ", "─┤"
	}
	out := []string{s.border(lead, b, end)}
	edge := s.pal[roleFrame][groundPlain] + "│"
	for i := range rows {
		body := strings.Repeat(" ", s.inner())
		if i < len(b.lines) {
			body = b.lines[i]
		}
		out = append(out, edge+"\x1b[m"+body+edge+"\x1b[m")
	}
	if !joined {
		out = append(out, s.line().put(roleFrame, "╰"+strings.Repeat("─", s.inner())+"╯").full())
	}
	return out
}

func (s *screen) border(lead string, b box, end string) string {
	title := roleStrong
	if b.focused {
		title = roleFocus
	}
	l := s.line().put(roleFrame, lead).put(roleKey, b.number)
	room := s.width - l.w - width(end) - 3
	text := cut(b.title, room)
	info := b.info
	if width(text)+width(info)+3 > room {
		info = ""
	}
	l.put(title, text).gap(1)
	tail := width(end) + width(info)
	if info != "" {
		tail += 2
	}
	l.put(roleFrame, strings.Repeat("─", max(s.width-l.w-tail, 0)))
	if info != "" {
		l.gap(1).put(roleDim, info).gap(1)
	}
	return l.put(roleFrame, end).full()
}

// bottom closes joined panels. It carries what has no line of its own at this height.
func (s *screen) bottom() string {
	l := s.line().put(roleFrame, "╰─")
	if text := cut(s.status, s.width-8); text != "" {
		l.gap(1).put(roleDim, text).gap(1)
	}
	return l.put(roleFrame, strings.Repeat("─", s.width-l.w-1)+"╯").full()
}

// text draws a page of plain lines inside one border, from the first line that scrolling has brought up.
func (s *screen) text(b box, body int) []string {
	rows := body - 2
	last := max(len(b.lines)-rows, 0)
	if last > 0 {
		b.info = strings.TrimSpace(b.info + "  ↑↓ scroll")
	}
	b.lines = b.lines[min(s.scroll, last):]
	return s.frame(b, rows, true, false)
}
