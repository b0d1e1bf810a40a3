package ui

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"flanwatch/flannel"
)

// header says where one is and how fresh the picture is:
//
//	flanwatch  worker-3 · 10.244.0.0/16 · 10.244.3.0/24 · iptables-nft   ● LIVE 1 s  gen 4812  12:04:31 CET
//
// What is on the right stays; places on the left are left out from the end of the list when there is less room.
func (s *screen) header() string {
	fresh := s.freshness()
	place := s.place()
	l := s.line().put(roleFocus, " flanwatch").gap(2)
	room := s.width - l.w - columns(fresh) - 3
	for len(place) > 1 && width(joined(place)) > room {
		place = place[:len(place)-1]
	}
	if len(place) > 0 {
		l.put(roleStrong, cut(place[0], room))
		if rest := joined(place)[len(place[0]):]; rest != "" {
			l.put(roleText, rest)
		}
	}
	return l.to(s.width - columns(fresh) - 1).pieces(fresh...).full()
}

func joined(parts []string) string { return strings.Join(parts, " · ") }

// place lists what names this node, most telling first.
func (s *screen) place() []string {
	if s.view == nil {
		return nil
	}
	var parts []string
	add := func(text string) {
		if text != "" {
			parts = append(parts, clean(text))
		}
	}
	n := &s.view.Node
	add(n.Name)
	if i := s.opened(); i != nil {
		add(fmt.Sprintf("incident %d of %d", i.Number, s.view.Incidents[len(s.view.Incidents)-1].Number))
	}
	if s.readOnly {
		add("read-only")
	}
	for _, f := range flannel.Families {
		for _, r := range []flannel.Reading[[]netip.Prefix]{n.Networks, n.Subnets} {
			if list := flannel.Of(f, r.Value); len(list) > 0 && r.State == flannel.Known {
				add(list[0].String())
			}
		}
		if f == flannel.IPv4 {
			add(s.backends())
		}
	}
	return parts
}

// backends names those that hold Flannel's chains.
func (s *screen) backends() string {
	list := s.view.Flannel.Backends
	if len(list) == 1 {
		return list[0].String()
	}
	var names []string
	for _, b := range list {
		names = append(names, backendShort[b])
	}
	return strings.Join(names, " + ")
}

// freshness tells how the picture came about and how old it is.
func (s *screen) freshness() []piece {
	var ps []piece
	every := ""
	if s.interval > 0 {
		every = " " + period(s.interval)
	}
	switch {
	case s.paused:
		ps = append(ps, piece{roleWarn, signPaused + " PAUSED"}, piece{roleText, " " + seconds1(s.behind) + " behind"})
	case s.view == nil:
		ps = append(ps, piece{roleDim, signNone + " " + string(s.mode)})
	case s.stale():
		ps = append(ps, piece{roleBad, signBad + " STALE " + seconds1(s.old)})
	case s.mode == ModeReplay:
		ps = append(ps, piece{roleKey, signNone + " " + string(s.mode)}, piece{roleText, lead(clean(s.detail))})
	default:
		ps = append(ps, piece{roleGood, signGood + " " + string(s.mode)}, piece{roleText, lead(cut(clean(s.detail), 24)) + every})
	}
	if s.view == nil {
		return ps
	}
	if g := s.generation(); g > 0 && s.width >= 110 {
		ps = append(ps, piece{roleDim, "  gen "}, piece{roleText, fmt.Sprint(g)})
	}
	return append(ps, piece{roleText, "  " + s.clock(s.view.Now.Wall.Add(s.extra()))})
}

func lead(s string) string {
	if s == "" {
		return ""
	}
	return " " + s
}

// generation is nf_tables' number of the ruleset on screen, 0 where there is none.
func (s *screen) generation() uint32 {
	for _, b := range s.view.Backends {
		if b.Generation > 0 {
			return b.Generation
		}
	}
	return 0
}

// clock writes the time of day, with its zone where there is room.
func (s *screen) clock(t time.Time) string {
	if s.width >= 100 {
		return t.In(s.loc).Format("15:04:05 MST")
	}
	return t.In(s.loc).Format("15:04:05")
}

// seconds1 counts in whole seconds up to two minutes, so that a number that counts up is steady to the eye.
func seconds1(d time.Duration) string {
	if d < 2*time.Minute {
		return fmt.Sprintf("%d s", int(d.Seconds()))
	}
	return span(d)
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }
