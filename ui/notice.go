package ui

import (
	"strings"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// blind tells whether nothing can be shown because nothing could be read.
func (s *screen) blind() bool {
	if s.view == nil || len(s.view.Chains) > 0 || len(s.view.Backends) == 0 {
		return false
	}
	for _, b := range s.view.Backends {
		if b.State == flannel.Known {
			return false
		}
	}
	return s.trouble() != ""
}

// noFlannel tells whether everything was looked at and nothing of Flannel is there.
func (s *screen) noFlannel() bool {
	return s.view != nil && len(s.view.Chains) == 0 && s.view.Flannel.State == diagnose.FlannelAbsent
}

// notice is the page that stands in for the dashboard where there is nothing to draw: it says why, what was looked at,
// and what to do.
func (s *screen) notice() box {
	switch {
	case s.view == nil:
		return s.page1("Reading", "The first reading of the packet filter is under way.")
	case s.blind():
		b := s.page1("Cannot read the packet filter",
			"flanwatch cannot see the rules of this node. That says nothing about whether they are right.")
		s.readers(&b)
		s.say(&b, "", "It needs root, or the capability CAP_NET_ADMIN in this network namespace (and CAP_NET_RAW for iptables-legacy):", roleText)
		s.say(&b, "", "    sudo flanwatch", roleKey)
		return b
	}
	b := s.page1("No Flannel here", "Nothing of Flannel was found in this network namespace: no chain, no table, no process.")
	s.readers(&b)
	for i, e := range s.view.Flannel.Evidence {
		s.say(&b, first(i, "evidence"), clean(e), roleText)
	}
	s.say(&b, "", "", roleText)
	s.say(&b, "", "flanwatch keeps looking, and shows the chains as soon as there are any.", roleText)
	s.say(&b, "", "Another network namespace is watched with --netns NAME. To see Flannel's chains on a throwaway node:", roleText)
	s.say(&b, "", "    flanwatch demo", roleKey)
	return b
}

func (s *screen) page1(title, sentence string) box {
	b := box{title: title}
	s.say(&b, "", "", roleText)
	s.say(&b, "", sentence, roleStrong)
	s.say(&b, "", "", roleText)
	return b
}

// say adds a labelled text to a page, wrapped.
func (s *screen) say(b *box, label, text string, as role) {
	indent := on(label != "" || as == roleText && strings.HasPrefix(text, "\t"), 14)
	for _, part := range wrap(strings.TrimPrefix(text, "\t"), s.inner()-4-indent) {
		b.lines = append(b.lines, s.innerLine(groundPlain).gap(2).put(roleDim, left(label, indent)).put(as, part).full())
		label = ""
	}
}

// readers lists what each reader found or why it could not.
func (s *screen) readers(b *box) {
	for i, r := range s.view.Backends {
		label := first(i, "looked at")
		name := left(r.Backend.String(), 16)
		switch r.State {
		case flannel.Known:
			s.say(b, label, name+"read, nothing of Flannel in it", roleText)
		case flannel.Absent:
			s.say(b, label, name+"not present: "+clean(r.Why), roleText)
		default:
			s.say(b, label, name+clean(r.Why), roleBad)
		}
	}
	for _, f := range s.view.Faults {
		s.say(b, "trouble", clean(f.Reader)+": "+clean(f.Why), roleBad)
	}
	s.say(b, "", "", roleText)
}

func first(i int, label string) string {
	if i == 0 {
		return label
	}
	return " "
}
