package ui

import (
	"fmt"
	"strings"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// leftoverKey tells things that are left over apart.
type leftoverKey struct {
	kind   diagnose.RemainKind
	object string
}

func leftoverKeys(list []diagnose.Remain) []leftoverKey {
	out := make([]leftoverKey, len(list))
	for i := range list {
		out[i] = leftoverKey{list[i].Kind, list[i].Object}
	}
	return out
}

// leftoverRows gives what is left over, sort by sort.
func (s *screen) leftoverRows() []diagnose.Remain {
	if s.view == nil {
		return nil
	}
	var out []diagnose.Remain
	for _, k := range diagnose.RemainKinds {
		for _, r := range s.view.Leftovers {
			if r.Kind == k {
				out = append(out, r)
			}
		}
	}
	return out
}

// column is a place where rules can lie.
type column struct {
	backend flannel.Backend
	family  flannel.Family
}

func leftoverColumns() []column {
	var out []column
	for _, b := range flannel.Backends {
		for _, f := range flannel.Families {
			out = append(out, column{b, f})
		}
	}
	return out
}

const (
	kindWidth = 14
	maxCell   = 11
)

// cell is the width of a column of the table.
func (s *screen) cell() int { return min(maxCell, (s.inner()-1-kindWidth)/len(leftoverColumns())) }

// elsewhereWords name in a line what is no rule.
var elsewhereWords = map[diagnose.RemainKind]string{
	diagnose.RemainConnections: "connections", diagnose.RemainLink: "links", diagnose.RemainRoute: "routes",
	diagnose.RemainConfig: "CNI", diagnose.RemainPool: "IPAM", diagnose.RemainFile: "files", diagnose.RemainSaved: "saved",
}

// leftoversPage shows what Flannel left, as a table of where rules are and a list of everything with why it is known to be in
// force or not:
//
//	╭─ Leftovers ────────────────────────────────────────────── 6 things, 2 in force ─╮
//	│               nft v4     nft v6     legacy v4  legacy v6  native v4  native v6  │
//	│ chains        ✗ 2        0          0          0          ·          ·          │
//	│ tables        ·          ·          ·          ·          ✗ 1        0          │
//	│ links 2 · files 1 · saved rules ✗ 1                                             │
//	│                                                                                 │
//	│▸ ✗ chain  iptables-nft ip nat FLANNEL-POSTRTG                                   │
//	│    evidence   v4 nat FLANNEL-POSTRTG: 6 rules, 1 jump                           │
//	│    at boot    nothing that was found brings it back                             │
func (s *screen) leftoversPage(body int) []string {
	list := s.leftoverRows()
	inForce := 0
	for i := range list {
		inForce += on(list[i].Active, 1)
	}
	b := box{title: "Leftovers", info: fmt.Sprintf("%s, %d in force", things(len(list)), inForce), focused: true}
	s.leftoverTable(&b)
	head, rows := len(b.lines), body-2
	if len(list) == 0 {
		s.noLeftovers(&b)
	}
	at := s.leftover.index(leftoverKeys(list))
	first, last := 0, 0
	var lines []string
	for i := range list {
		begin := len(lines)
		lines = append(lines, s.leftoverLines(&list[i], i == at)...)
		if i == at {
			first, last = begin, len(lines)
		}
	}
	if room := rows - head; len(lines) > room && room > 0 {
		lines = lines[scrolled(len(lines), room, first, last):]
	}
	b.lines = append(b.lines, lines...)
	return s.frame(b, rows, true, false)
}

func things(n int) string {
	if n == 1 {
		return "1 thing"
	}
	return fmt.Sprintf("%d things", n)
}

// leftoverTable is the table of rules, and a line on what lies elsewhere.
func (s *screen) leftoverTable(b *box) {
	head := s.innerLine(groundPlain).gap(1).put(roleDim, left("", kindWidth))
	for _, c := range leftoverColumns() {
		head.put(roleDim, left(backendShort[c.backend]+" "+c.family.Short(), s.cell()))
	}
	b.lines = append(b.lines, head.full())
	for _, row := range []struct {
		name string
		kind diagnose.RemainKind
	}{{"chains", diagnose.RemainChain}, {"bare rules", diagnose.RemainBare}, {"tables", diagnose.RemainTable}} {
		l := s.innerLine(groundPlain).gap(1).put(roleText, left(row.name, kindWidth))
		for _, c := range leftoverColumns() {
			as, text := s.leftoverCell(row.kind, c)
			l.put(as, left(text, s.cell()))
		}
		b.lines = append(b.lines, l.full())
	}
	s.leftoverElsewhere(b)
	b.lines = append(b.lines, s.innerLine(groundPlain).full())
}

// leftoverCell says how many things of a sort a backend holds in a family; "✗" stands before those in force.
func (s *screen) leftoverCell(kind diagnose.RemainKind, c column) (role, string) {
	if (kind == diagnose.RemainTable) != (c.backend == flannel.Nftables) {
		return roleDim, "·"
	}
	if !s.backendRead(c.backend) {
		return roleWarn, "–"
	}
	return s.leftoverCount(func(r *diagnose.Remain) bool {
		return r.Kind == kind && r.Backend == c.backend && r.Family == c.family
	})
}

func (s *screen) leftoverCount(of func(*diagnose.Remain) bool) (role, string) {
	n, active := 0, 0
	for i := range s.view.Leftovers {
		if r := &s.view.Leftovers[i]; of(r) {
			n++
			active += on(r.Active, 1)
		}
	}
	switch {
	case n == 0:
		return roleDim, "0"
	case active > 0:
		return roleBad, fmt.Sprintf("✗ %d", n)
	}
	return roleText, fmt.Sprint(n)
}

// backendRead tells whether what a backend holds is known.
func (s *screen) backendRead(b flannel.Backend) bool {
	for _, v := range s.view.Backends {
		if v.Backend == b {
			return v.State == flannel.Known || v.State == flannel.Absent
		}
	}
	return false
}

// leftoverElsewhere counts what is no rule.
func (s *screen) leftoverElsewhere(b *box) {
	l := s.innerLine(groundPlain).gap(1)
	for i, kind := range diagnose.RemainKinds[3:] {
		if i > 0 {
			l.put(roleDim, " · ")
		}
		l.put(roleText, elsewhereWords[kind]+" ")
		as, text := s.leftoverCount(func(r *diagnose.Remain) bool { return r.Kind == kind })
		if s.view.Hunted.State != flannel.Known && onDisk(kind) || kind == diagnose.RemainConnections && s.view.Table.Flows.State != flannel.Known {
			as, text = roleWarn, "–"
		}
		l.put(as, text)
	}
	b.lines = append(b.lines, l.full())
}

// onDisk tells whether a sort of thing lies in files, which are looked through on demand.
func onDisk(k diagnose.RemainKind) bool {
	switch k {
	case diagnose.RemainFile, diagnose.RemainConfig, diagnose.RemainPool, diagnose.RemainSaved:
		return true
	}
	return false
}

// noLeftovers says why there is nothing: Flannel runs, or it left nothing.
func (s *screen) noLeftovers(b *box) {
	switch s.view.Flannel.State {
	case diagnose.FlannelLeftover, diagnose.FlannelAbsent:
		s.say(b, "", "Flannel left nothing here, as far as flanwatch can see.", roleText)
	case diagnose.FlannelUnknown:
		s.say(b, "", "Whether Flannel runs here is not known, so nothing can be called left over.", roleWarn)
	default:
		s.say(b, "", "Flannel runs here: its links, routes and files are in use, and no rules lie where it does not look.", roleText)
	}
}

// leftoverLines is one thing in the list.
func (s *screen) leftoverLines(r *diagnose.Remain, selected bool) []string {
	var b box
	l := s.innerLine(groundPlain)
	sign, as := "·", roleDim
	if r.Active {
		sign, as = "✗", roleBad
	}
	if selected {
		l.ground = groundSelect
		l.put(roleFocus, "▸ ")
	} else {
		l.gap(2)
	}
	l.put(as, sign).gap(1).put(roleDim, left(strings.ReplaceAll(string(r.Kind), "-", " "), kindWidth-1)).put(roleStrong, clean(r.Object))
	b.lines = append(b.lines, l.full())
	if selected {
		s.leftoverFacts(&b, r, len(r.Why))
	} else if len(r.Why) > 0 {
		s.fact(&b, "evidence", roleText, r.Why[0])
	}
	return b.lines
}

func (s *screen) leftoverFacts(b *box, r *diagnose.Remain, most int) {
	for i, w := range r.Why {
		if i == most {
			return
		}
		s.fact(b, first(i, "evidence"), roleText, w)
	}
	switch {
	case len(r.Returns) > 0:
		for i, w := range r.Returns {
			s.fact(b, first(i, "at boot"), roleWarn, w)
		}
	case s.view.Hunted.State == flannel.Known:
		s.fact(b, "at boot", roleDim, "no file that was looked through brings it back")
	default:
		s.fact(b, "at boot", roleDim, "not known: files have not been looked through")
	}
}

// leftoverText is the selected thing in full, for a copy.
func (s *screen) leftoverText(r *diagnose.Remain) box {
	b := box{title: "Leftover"}
	s.fact(&b, "what", roleStrong, strings.ReplaceAll(string(r.Kind), "-", " ")+" "+r.Object)
	state := "not in force"
	if r.Active {
		state = "in force"
	}
	s.fact(&b, "state", roleText, state)
	s.leftoverFacts(&b, r, len(r.Why))
	return b
}

// selectedLeftover is the thing that has the keys, nil if there is none.
func (s *screen) selectedLeftover() *diagnose.Remain {
	list := s.leftoverRows()
	if i := s.leftover.index(leftoverKeys(list)); i >= 0 {
		return &list[i]
	}
	return nil
}
