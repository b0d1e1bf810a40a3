package path

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"flanwatch/flannel"
)

// SetID names a set: one of a native table, or, with a zero Table, one of ipset.
type SetID struct {
	Table flannel.TableID
	Name  string
}

// Set is what a set, or a map from keys to verdicts, holds.
type Set struct {
	Prefixes []netip.Prefix // addresses
	First    bool           // they are the first part of keys of several
	Elements []Element      // keys of other or of several parts of a packet, sorted by Low
	Ranges   bool           // some element is a range
	Rest     *Element       // what holds for keys that no element has, nil for nothing
}

// Element is a key, or a range of keys, in the bytes of nf_tables' registers: each part of the packet takes a multiple of
// four bytes where there are several.
type Element struct {
	Low, High string
	Target    flannel.Target // of a map
	Unsure    bool           // it has a condition of its own
}

// part is one part of a packet as it stands in a key.
type part struct {
	value string // "" where not known
	width int
}

// key gives the parts of a packet that a rule looks up, and whether all are known. Nothing tells the width of a part that is
// not understood, nor with it where others begin.
func (v view) key(fields string) (parts []part, known bool) {
	known = true
	for name := range strings.SplitSeq(fields, ",") {
		p := v.part(name)
		if p.width == 0 {
			return nil, false
		}
		known = known && p.value != ""
		parts = append(parts, p)
	}
	return parts, known
}

// Widths of parts, and the numbers that stand for protocols and for states of a connection.
const (
	portWidth = 2
	wordWidth = 4
	nameWidth = 16

	stateInvalid, stateNew, stateUntracked = 1, 8, 64
)

func (v view) part(name string) part {
	switch name {
	case "src":
		return v.addressPart(v.source)
	case "dst":
		return v.addressPart(v.destination)
	case "sport":
		return portPart(v.sourcePort)
	case "dport":
		return portPart(v.destinationPort)
	case "proto":
		return part{map[string]string{"tcp": "\x06", "udp": "\x11"}[v.packet.Protocol], 1}
	case "in":
		return v.place.in.part()
	case "out":
		return v.place.out.part()
	case "mark":
		if v.mark.unknown != 0 {
			return part{width: wordWidth}
		}
		return wordPart(v.mark.value)
	case "state":
		switch {
		case v.untracked == may:
			return part{width: wordWidth}
		case v.untracked == yes:
			return wordPart(stateUntracked)
		case !v.place.tracked:
			return wordPart(stateInvalid)
		}
		return wordPart(stateNew)
	}
	return part{}
}

func (v view) addressPart(a netip.Addr) part {
	p := part{width: v.packet.Family.Bits() / 8}
	if a.IsValid() {
		p.value = string(a.AsSlice())
	}
	return p
}

func portPart(port uint16) part {
	if port == 0 {
		return part{width: portWidth}
	}
	return part{string(binary.BigEndian.AppendUint16(nil, port)), portWidth}
}

func wordPart(n uint32) part {
	return part{string(binary.NativeEndian.AppendUint32(nil, n)), wordWidth}
}

func (i iface) part() part {
	if i.unknown || i.unsure || len(i.name) >= nameWidth {
		return part{width: nameWidth}
	}
	return part{i.name + strings.Repeat("\x00", nameWidth-len(i.name)), nameWidth}
}

// flat is a key as the kernel keeps it.
func flat(parts []part) string {
	if len(parts) == 1 {
		return parts[0].value
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.value)
		b.WriteString("\x00\x00\x00"[:padded(p.width)-p.width])
	}
	return b.String()
}

func padded(n int) int { return (n + wordWidth - 1) &^ (wordWidth - 1) }

// has tells whether a key lies in the element, part by part.
func (e *Element) has(parts []part) truth {
	t := yes
	if e.Unsure {
		t = may
	}
	at := 0
	for _, p := range parts {
		end := at + p.width
		if end > len(e.Low) || end > len(e.High) {
			return may
		}
		switch low, high := e.Low[at:end], e.High[at:end]; {
		case p.value == "":
			t = may
		case p.value < low || p.value > high:
			return no
		}
		at += padded(p.width)
	}
	return t
}

// find gives the elements that hold for a key, or may: with a sure one alone, that one.
func (s *Set) find(parts []part, known bool) (found []*Element, sure bool) {
	if known && (len(parts) == 1 || !s.Ranges) {
		return s.search(parts)
	}
	for i := range s.Elements {
		e := &s.Elements[i]
		t := may
		if parts != nil {
			t = e.has(parts)
		}
		if t == yes {
			return []*Element{e}, true
		}
		if t == may {
			found = append(found, e)
		}
	}
	return found, false
}

// search looks for a key among elements of which none overlaps another.
func (s *Set) search(parts []part) (found []*Element, sure bool) {
	key := flat(parts)
	i, ok := slices.BinarySearchFunc(s.Elements, key, func(e Element, key string) int { return strings.Compare(e.Low, key) })
	if !ok {
		i--
	}
	if i < 0 {
		return nil, false
	}
	switch e := &s.Elements[i]; e.has(parts) {
	case yes:
		return []*Element{e}, true
	case may:
		return []*Element{e}, false
	}
	return nil, false
}

// lookup is what a rule finds: the elements that hold, or may. Where nothing sure is found the key may be absent.
func (v view) lookup(s *Set, fields string) (found []*Element, sure bool) {
	parts, known := v.key(fields)
	found, sure = s.find(parts, known)
	if s.Rest != nil && !sure {
		found = append(found, s.Rest)
		sure = len(found) == 1 && !s.Rest.Unsure && known
	}
	return found, sure
}

// set looks up a set that was read: "NAME src". An "@" marks the set of a native table.
func (v view) set(value string) truth {
	name, fields, _ := strings.Cut(value, " ")
	s := v.named(name)
	if s == nil {
		return may
	}
	if len(s.Elements) == 0 && s.Rest == nil {
		return v.listed(s, fields)
	}
	found, sure := v.lookup(s, fields)
	switch {
	case sure:
		return yes
	case len(found) > 0:
		return may
	}
	return no
}

// listed looks an address up among those of a set.
func (v view) listed(s *Set, fields string) truth {
	first, more, several := strings.Cut(fields, ",")
	a := v.source
	if first == "dst" {
		a = v.destination
	}
	switch {
	case len(s.Prefixes) == 0:
		return no
	case first != "src" && first != "dst" || !a.IsValid() || several && !s.First:
		return may
	case !slices.ContainsFunc(s.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) }):
		return no
	case s.First || more != "":
		return may
	}
	return yes
}

// named finds a set, and notes one that is wanted and was not read.
func (v view) named(name string) *Set {
	id := SetID{Name: name}
	if native, ok := strings.CutPrefix(name, "@"); ok {
		id = SetID{v.table, native}
	}
	if s, known := v.tables.Sets[id]; known {
		return &s
	}
	v.wanted.set(id)
	return nil
}

// mapped follows a map from keys to verdicts: every verdict that may come, and the end of the rule where none does.
func (w *walker) mapped(t flannel.Target, s state, at ref, out *flow) exit {
	v := w.view(at.chain, &s)
	name, fields := t.Map()
	m := v.named("@" + name)
	switch {
	case m == nil && w.exploring:
		return exit{true, s, at}
	case m == nil:
		g := w.anything(at.chain, s, at, "map @"+name+" was not read")
		out.addEnds(g)
		return g.next
	}
	found, sure := v.lookup(m, fields)
	var next exit
	if !sure {
		next = exit{true, s, at} // no element has the key
		if len(found) > 0 {
			w.name("the key " + fields + " of map @" + name)
		}
	}
	if len(found) > mostVerdicts {
		g := w.anything(at.chain, s, at, "too many verdicts of map @"+name+" that may come")
		out.addEnds(g)
		next.add(g.next)
		return next
	}
	for _, e := range found {
		next.add(w.apply(e.Target, s, at, out))
	}
	return next
}

// mostVerdicts bounds how many verdicts of a map are followed.
const mostVerdicts = 64
