package ui

import (
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
)

// Player plays a recording into the mailbox. Its methods must not wait; what they lead to comes as a view.
type Player interface {
	Toggle()              // play, or hold still
	Step(n int)           // by so many observations, back if negative
	Jump(n int)           // to the next incident, or to the one before
	Seek(d time.Duration) // by a span of recorded time
	GoTo(t time.Time)     // to a moment of recorded time
	Speed(n int)          // by so many notches, slower if negative
}

// play lets the player move; it gives back false for other actions.
func (m *model) play(a action) bool {
	p := m.opt.Player
	if p == nil || a < actPlay || a > actGoTo {
		return false
	}
	switch a {
	case actPlay:
		p.Toggle()
	case actReplayBack:
		p.Step(-1)
	case actReplayOn:
		p.Step(1)
	case actTenBack:
		p.Seek(-10 * time.Second)
	case actTenOn:
		p.Seek(10 * time.Second)
	case actMinuteBack:
		p.Seek(-time.Minute)
	case actMinuteOn:
		p.Seek(time.Minute)
	case actReplayNext:
		p.Jump(1)
	case actReplayPrev:
		p.Jump(-1)
	case actPlayFaster:
		p.Speed(1)
	case actPlaySlower:
		p.Speed(-1)
	case actGoTo:
		m.prompt = new(string)
	}
	return true
}

// pressPrompt lets the time that is typed take a key.
func (m *model) pressPrompt(key, text string) tea.Cmd {
	p := m.prompt
	switch key {
	case "esc", "ctrl+c":
		m.prompt = nil
	case "enter":
		m.goTo(*p)
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(*p)
		*p = (*p)[:len(*p)-n]
	case "ctrl+u":
		*p = ""
	case "ctrl+l":
		return tea.ClearScreen
	default:
		if len(*p) < len("2006-01-02 15:04:05.000000") {
			*p += text
		}
	}
	return nil
}

// goTo moves to what was typed. A time that cannot be read stays to be put right.
func (m *model) goTo(text string) {
	if m.view == nil || strings.TrimSpace(text) == "" {
		m.prompt = nil
		return
	}
	t, err := momentOf(text, m.view.Now.Wall.In(m.loc))
	if err != nil {
		m.say(err.Error())
		return
	}
	m.prompt = nil
	m.opt.Player.GoTo(t)
}

var errMoment = errors.New("want a time such as 12:04:27, 2026-11-30 12:04, or a span such as -30s")

// momentOf reads a time of now's day, a day and time, or how far from now; in now's time zone.
func momentOf(text string, now time.Time) (time.Time, error) {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "+") || strings.HasPrefix(text, "-") {
		d, err := time.ParseDuration(text)
		if err != nil {
			return now, errMoment
		}
		return now.Add(d), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t, nil
	}
	for _, form := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04", "15:04:05", "15:04"} {
		t, err := time.ParseInLocation(form, text, now.Location())
		if err != nil {
			continue
		}
		if form[0] == '2' {
			return t, nil
		}
		y, month, d := now.Date()
		return time.Date(y, month, d, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), now.Location()), nil
	}
	return now, errMoment
}

// promptLine is where the time is typed, in place of the keys.
func (s *screen) promptLine() string {
	hint := "12:04:27, 2026-11-30 12:04, -30s  enter go  esc leave"
	if s.flash != "" && s.height < roomy {
		hint = cut(s.flash, s.width/2)
	}
	l := s.line().gap(1).put(roleKey, "go to ").put(roleStrong, tail(clean(*s.prompt), s.width/3)).put(roleKey, "▌")
	return l.to(s.width-width(hint)-1).put(roleDim, hint).full()
}
