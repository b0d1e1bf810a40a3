package ui

import (
	"errors"
	"strings"
	"time"
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
		m.prompt = &prompt{label: "go to ", hint: "12:04:27, 2026-11-30 12:04, -30s  enter go  esc leave", most: 26, enter: m.goTo}
	}
	return true
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
