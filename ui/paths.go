package ui

import (
	"fmt"
	"strings"

	"flanwatch/flannel"
	"flanwatch/flannel/path"
	"flanwatch/watcher/diagnose"
)

// pathKey tells paths apart.
type pathKey struct {
	name   path.Name
	family flannel.Family
}

func pathKeys(list []diagnose.Path) []pathKey {
	out := make([]pathKey, len(list))
	for i := range list {
		out[i] = pathKey{list[i].Packet.Path, list[i].Packet.Family}
	}
	return out
}

// paths are what becomes of typical packets, as far as that is known.
func (s *screen) paths() []diagnose.Path {
	if s.view == nil {
		return nil
	}
	return s.view.Paths.List
}

// selectedPath is the path that has the keys, nil if there is none.
func (s *screen) selectedPath() *diagnose.Path {
	list := s.paths()
	if i := s.path.index(pathKeys(list)); i >= 0 {
		return &list[i]
	}
	return nil
}

// Widths of the columns of the page.
const (
	pathColumn    = 26
	verdictColumn = 13
	hookColumn    = 12
)

// pathsPage lists what becomes of typical packets, wanted against actual, and of the selected one the rules that it meets:
//
//	╭─ Paths 6 ──────────────────────────────────────────────────────────────── 1 not as wanted ─╮
//	│    FAM PATH                      IS           WANTED       DECIDED BY                       │
//	│▸ ✗ v4  pod-to-outside            dropped      masqueraded  Calico · filter cali-FORWARD 1   │
//	│  ● v4  pod-to-remote-pod         unchanged    unchanged    flannel · nat FLANNEL-POSTRTG 2  │
//	│                                                                                             │
//	│  10.244.3.17 → 192.0.2.1, cni0 → eth0, tcp 443                                              │
//	│  HOOK          PACKETS  RULE                                                                │
//	│  forward         1.71k  filter FORWARD 1 (Calico): -j cali-FORWARD                          │
func (s *screen) pathsPage(rows int) box {
	list := s.paths()
	b := box{title: fmt.Sprintf("Paths %d", len(list)), info: pathsCount(list), focused: true}
	if len(list) == 0 {
		s.noPaths(&b)
		return b
	}
	b.lines = append(b.lines, s.innerLine(groundPlain).gap(4).put(roleDim, "FAM "+left("PATH", pathColumn)+left("IS", verdictColumn)+
		left("WANTED", verdictColumn)+"DECIDED BY").full())
	at := s.path.index(pathKeys(list))
	height := min(len(list), max(rows-9, 3))
	for i := window(len(list), height, at); i < len(list) && height > 0; i, height = i+1, height-1 {
		b.lines = append(b.lines, s.pathRow(&list[i], i == at))
	}
	b.lines = append(b.lines, s.innerLine(groundPlain).full())
	s.pathDetail(&b, &list[at], rows)
	return b
}

// noPaths says why nothing is told.
func (s *screen) noPaths(b *box) {
	switch s.view.Paths.State {
	case flannel.Unread:
		b.lines = append(b.lines, s.lookNote(s.readingNote()))
	case flannel.Known:
		s.say(b, "", "Neither files nor routes tell where pods are, so there is no typical packet to follow.", roleText)
	default:
		s.say(b, "", "cannot be told: "+s.view.Paths.Why, roleBad)
	}
}

func pathsCount(list []diagnose.Path) string {
	bad, open := 0, 0
	for i := range list {
		switch {
		case !list[i].Well():
			bad++
		case uncertain(&list[i]):
			open++
		}
	}
	switch {
	case bad > 0:
		return fmt.Sprintf("%d not as wanted", bad)
	case open > 0:
		return fmt.Sprintf("%d not certain", open)
	case len(list) > 0:
		return "as they should be"
	}
	return ""
}

func uncertain(p *diagnose.Path) bool { return p.Kind == path.May || p.Kind == path.Unknown }

func pathSign(p *diagnose.Path) (string, role) {
	switch {
	case !p.Well():
		return "✗", roleBad
	case uncertain(p):
		return "?", roleWarn
	}
	return "●", roleGood
}

func (s *screen) pathRow(p *diagnose.Path, selected bool) string {
	l, strong := s.lookLine(selected)
	sign, as := pathSign(p)
	l.put(as, sign+" ").put(roleText, p.Packet.Family.Short()+"  ").put(strong, left(string(p.Packet.Path), pathColumn))
	is := roleText
	if !p.Well() {
		is = roleBad
	}
	l.put(is, left(string(p.Kind), verdictColumn))
	wanted := string(p.Expected)
	if p.Expected == path.Unknown {
		wanted = unknown
	}
	l.put(roleText, left(wanted, verdictColumn))
	switch {
	case p.By != nil:
		l.put(roleText, clean(p.By.Owner+" · ")).put(strong, rulePlace(p.By))
	case uncertain(p):
		l.put(roleDim, "not understood in full")
	default:
		l.put(roleDim, "no rule")
	}
	return l.full()
}

// rulePlace says where a rule stands.
func rulePlace(b *path.By) string {
	place := backendShort[b.Backend] + " " + clean(b.Table) + " " + clean(b.Chain)
	if b.Position == 0 {
		return place + " policy"
	}
	return fmt.Sprintf("%s %d", place, b.Position)
}

// pathDetail is the selected path in full: the packet, and the rules that it matches on its way.
func (s *screen) pathDetail(b *box, p *diagnose.Path, rows int) {
	b.lines = append(b.lines, s.innerLine(groundPlain).gap(2).put(roleStrong, cut(packetText(p), s.inner()-4)).full())
	for i, u := range p.Unknown {
		if i == 2 {
			b.lines = append(b.lines, s.lookNote(fmt.Sprintf("and %d more that are not understood", len(p.Unknown)-i)))
			break
		}
		b.lines = append(b.lines, s.innerLine(groundPlain).gap(2).put(roleWarn, cut("not understood: "+clean(u), s.inner()-4)).full())
	}
	if len(p.Trail) == 0 {
		b.lines = append(b.lines, s.lookNote("it meets no rule that holds for it"))
		return
	}
	b.lines = append(b.lines, s.innerLine(groundPlain).gap(4).put(roleDim, left("HOOK", hookColumn)+right("PACKETS", 8)+
		"  RULES THAT HOLD FOR IT, IN A PACKET'S ORDER").full())
	room := max(rows-len(b.lines), 1)
	decides := deciding(p)
	for i := window(len(p.Trail), room, max(decides, 0)); i < len(p.Trail) && room > 0; i, room = i+1, room-1 {
		b.lines = append(b.lines, s.stepLine(&p.Trail[i], i == decides))
	}
}

// deciding finds the step that decides, -1 if it is none.
func deciding(p *diagnose.Path) int {
	for i := range p.Trail {
		if p.By != nil && p.Trail[i].By == *p.By {
			return i
		}
	}
	return -1
}

func packetText(p *diagnose.Path) string {
	k := p.Packet
	in, out := k.In, k.Out
	if in == "" {
		in = "this node"
	}
	if out == "" {
		out = unknown
	}
	text := fmt.Sprintf("%s → %s, %s → %s, %s %d", k.Source, k.Destination, clean(in), clean(out), k.Protocol, k.DestinationPort)
	if p.Kind == path.Masqueraded && p.Source.IsValid() {
		text += ", arrives as " + p.Source.String()
	}
	return text
}

func (s *screen) stepLine(step *path.Step, decides bool) string {
	l := s.innerLine(groundPlain).gap(2)
	as := roleText
	switch {
	case decides:
		l.put(roleFocus, "» ")
		as = roleStrong
	case !step.Sure:
		l.put(roleWarn, "? ")
	default:
		l.gap(2)
	}
	l.put(roleDim, left(step.Hook, hookColumn))
	if step.Counted {
		l.put(roleText, right(count(step.Counter.Packets), 8))
	} else {
		l.put(roleDim, right(notApplicable, 8))
	}
	return l.gap(2).put(as, rulePlace(&step.By)).put(roleDim, ": "+withoutComment(step.By.Text)).full()
}

// withoutComment leaves out what would push the rest of a rule off the edge.
func withoutComment(text string) string {
	r, err := flannel.ParseRule(text)
	if err != nil || !strings.Contains(text, " --comment ") {
		return clean(text)
	}
	return clean(uncommented(r).String())
}

// openPath opens the chain of the rule that decides the selected path, at that rule.
func (m *model) openPath() {
	p := m.selectedPath()
	switch {
	case p == nil:
	case !m.looks:
		m.say("a recording holds no other rules of that chain")
	case p.By == nil:
		m.say("no rule decides this path")
	default:
		id := flannel.ChainID{Backend: p.By.Backend, Family: p.Packet.Family, Table: p.By.Table, Name: p.By.Chain}
		m.page, m.trail, m.fromPaths = pageOpened, []visit{{id, max(p.By.Position-1, 0)}}, true
	}
}

// pathCopy is the selected path as text.
func (m *model) pathCopy() string {
	p := m.selectedPath()
	if p == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, wanted %s\n%s\n", p, p.Kind, p.Expected, packetText(p))
	for i := range p.Trail {
		step := &p.Trail[i]
		fmt.Fprintf(&b, "%s %s %s (%s): %s\n", step.Hook, step.By.Backend, strings.TrimPrefix(rulePlace(&step.By), backendShort[step.By.Backend]+" "),
			step.By.Owner, clean(step.By.Text))
	}
	return b.String()
}
