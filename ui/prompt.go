package ui

import (
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
)

// prompt is a line that is being typed in place of the keys.
type prompt struct {
	label string
	hint  string // what it wants, and its keys
	most  int    // bytes
	text  string
	enter func(string) // what cannot be read leaves the prompt open, to be put right
}

// pressPrompt lets the prompt take a key.
func (m *model) pressPrompt(key, text string) tea.Cmd {
	p := m.prompt
	switch key {
	case "esc", "ctrl+c":
		m.prompt = nil
	case "enter":
		p.enter(p.text)
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(p.text)
		p.text = p.text[:len(p.text)-n]
	case "ctrl+u":
		p.text = ""
	case "ctrl+l":
		return tea.ClearScreen
	default:
		if len(p.text)+len(text) <= p.most {
			p.text += text
		}
	}
	return nil
}

// promptLine is where it is typed.
func (s *screen) promptLine() string {
	p := s.prompt
	hint := p.hint
	if s.flash != "" && s.height < roomy {
		hint = s.flash
	}
	hint = cut(hint, s.width*2/3)
	l := s.line().gap(1).put(roleKey, p.label)
	l.put(roleStrong, tail(clean(p.text), s.width-l.w-width(hint)-3)).put(roleKey, "▌")
	return l.to(s.width-width(hint)-1).put(roleDim, hint).full()
}

// askProbe asks for a connection to try from inside a pod.
func (m *model) askProbe() {
	if m.opt.Probe == nil {
		m.say("no connections can be tried here")
		return
	}
	m.prompt = &prompt{
		label: "try ", hint: "tcp://ADDRESS:PORT POD  enter tries  esc leaves", most: 200, text: m.tried, enter: m.tryProbe,
	}
}

// tryProbe hands over what was typed.
func (m *model) tryProbe(text string) {
	if err := m.opt.Probe(text); err != nil {
		m.say(err.Error())
		return
	}
	m.prompt, m.tried = nil, text
	m.trying, m.attempts = true, 0
	if m.view != nil && m.view.Probe != nil {
		m.attempts = m.view.Probe.Attempts
	}
	m.say("one connection is being tried")
}

// tellProbe says how an attempt ended that was asked for.
func (m *model) tellProbe() {
	p := m.view.Probe
	if !m.trying || p == nil || p.Attempts == m.attempts {
		return
	}
	m.trying = false
	last := p.Recent[len(p.Recent)-1]
	from := p.From + " to " + p.Target
	if last.OK {
		m.say("connected from " + from + " in " + span(last.Took))
		return
	}
	m.say("no connection from " + from + ": " + p.Why)
}
