package legacy

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
)

// Flags that invert a condition of an entry (IPT_INV_*, IP6T_INV_*) and those that add one. A flag that is in neither list
// makes the rule opaque.
const (
	invertIn          = 0x01
	invertOut         = 0x02
	invertSource      = 0x08
	invertDestination = 0x10
	invertFragment    = 0x20
	invertProtocol    = 0x40

	flagFragment4 = 0x01
	flagProtocol6 = 0x01 // without it the protocol of an IPv6 entry is not looked at
)

// rule decodes an entry. It understands what package flannel can say; everything else becomes opaque, with a text as close
// to iptables-save as its parts are known.
func (l *layout) rule(table []byte, off int, e entry) flannel.Rule {
	var ms []flannel.Match
	ms = append(ms, l.addresses(e)...)
	ms = append(ms, l.devices(e)...)
	ms = append(ms, l.protocol(e)...)
	whole := e.matches(l, func(m ext) bool {
		ms = append(ms, match(l.family, m))
		return true
	})
	if !whole {
		ms = append(ms, opaque("-m unreadable"))
	}
	return flannel.NewRule(l.verdict(table, off, e), ms...)
}

func opaque(format string, args ...any) flannel.Match {
	return flannel.Match{Kind: flannel.MatchOpaque, Text: fmt.Sprintf(format, args...)}
}

// not writes the sign of negation of an opaque part.
func not(inverted bool) string {
	if inverted {
		return "! "
	}
	return ""
}

func (l *layout) addresses(e entry) []flannel.Match {
	var ms []flannel.Match
	inverted := e.raw[l.inverted]
	for i, a := range []struct {
		kind   flannel.MatchKind
		option string
		invert byte
	}{{flannel.MatchSource, "-s", invertSource}, {flannel.MatchDestination, "-d", invertDestination}} {
		address := e.raw[i*l.addr : (i+1)*l.addr]
		mask := e.raw[(i+2)*l.addr : (i+3)*l.addr]
		if m, ok := addressMatch(a.kind, a.option, address, mask, inverted&a.invert != 0); ok {
			ms = append(ms, m)
		}
	}
	return ms
}

// addressMatch reads an address and its mask; false if they hold for every packet. The kernel compares the masked address
// of a packet with the one given, so an address with bits outside its mask equals none.
func addressMatch(kind flannel.MatchKind, option string, address, mask []byte, inverted bool) (flannel.Match, bool) {
	a, _ := netip.AddrFromSlice(address)
	bits, contiguous := maskBits(mask)
	p := netip.PrefixFrom(a, bits)
	if !contiguous || p.Masked() != p {
		m, _ := netip.AddrFromSlice(mask)
		return opaque("%s%s %s/%s", not(inverted), option, a, m), true
	}
	if bits == 0 && !inverted {
		return flannel.Match{}, false
	}
	return flannel.Match{Kind: kind, Not: inverted, Prefix: p}, true
}

// maskBits is the number of ones that a mask begins with, and whether only zeros follow.
func maskBits(mask []byte) (int, bool) {
	n := 0
	for n < 8*len(mask) && mask[n/8]&(0x80>>(n%8)) != 0 {
		n++
	}
	for i := n; i < 8*len(mask); i++ {
		if mask[i/8]&(0x80>>(i%8)) != 0 {
			return n, false
		}
	}
	return n, true
}

func (l *layout) devices(e entry) []flannel.Match {
	var ms []flannel.Match
	inverted := e.raw[l.inverted]
	names, masks := e.raw[l.interfaces():], e.raw[l.interfaces()+2*ifnameLen:]
	for i, d := range []struct {
		kind   flannel.MatchKind
		option string
		invert byte
	}{{flannel.MatchIn, "-i", invertIn}, {flannel.MatchOut, "-o", invertOut}} {
		at := i * ifnameLen
		m, ok := deviceMatch(d.kind, d.option, names[at:at+ifnameLen], masks[at:at+ifnameLen], inverted&d.invert != 0)
		if ok {
			ms = append(ms, m)
		}
	}
	return ms
}

// deviceMatch reads the name of an interface. A mask that reaches over the zero byte at the end of the name means this
// interface, a shorter one every interface whose name begins so.
func deviceMatch(kind flannel.MatchKind, option string, name, mask []byte, inverted bool) (flannel.Match, bool) {
	n := 0
	for n < len(mask) && mask[n] == 0xff {
		n++
	}
	m := flannel.Match{Kind: kind, Not: inverted}
	exact := cString(name)
	switch {
	case !zero(mask[n:]), len(exact) == len(name), n > len(exact)+1 && !zero(name[len(exact):n]):
		return opaque("%s%s %q/%x", not(inverted), option, name, mask), true
	case n == 0 && !inverted:
		return flannel.Match{}, false
	case n > len(exact):
		m.Text = string(exact)
	default:
		m.Text = string(name[:n]) + "+"
	}
	return m, true
}

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// protocol reads the protocol and the flags, which hold one rare condition each: fragments (IPv4), type of service (IPv6).
func (l *layout) protocol(e entry) []flannel.Match {
	var ms []flannel.Match
	proto := binary.NativeEndian.Uint16(e.raw[l.proto:])
	flags, inverted := e.raw[l.flags], e.raw[l.inverted]
	looked := flagProtocol6
	if l.family == flannel.IPv4 {
		looked = 0
	}
	invert := inverted&invertProtocol != 0
	switch {
	case flags&byte(looked) != byte(looked), proto == 0 && !invert:
	case proto == 0 || proto > 0xff:
		ms = append(ms, opaque("%s-p %d", not(invert), proto))
	default:
		ms = append(ms, flannel.Match{Kind: flannel.MatchProtocol, Not: invert, Text: flannel.ProtocolName(uint8(proto))})
	}
	known := byte(looked) | l.gotoFlag
	if l.family == flannel.IPv4 && flags&flagFragment4 != 0 {
		ms = append(ms, opaque("%s-f", not(inverted&invertFragment != 0)))
		known |= flagFragment4
		inverted &^= invertFragment
	}
	inverted &^= invertIn | invertOut | invertSource | invertDestination | invertProtocol
	if rest := flags &^ known; rest != 0 || inverted != 0 {
		ms = append(ms, opaque("-m unknown --flags 0x%x --inverted 0x%x", rest, inverted))
	}
	return ms
}

// match decodes a match by the exact revision and size that are understood.
func match(f flannel.Family, m ext) flannel.Match {
	name, data := string(m.name()), m.data()
	switch {
	case name == "comment" && m.revision() == 0 && len(data) == 256:
		return flannel.Match{Kind: flannel.MatchComment, Text: string(cString(data))}
	case name == "mark" && m.revision() == 1 && len(data) >= 9:
		return flannel.Match{
			Kind:  flannel.MatchMark,
			Value: binary.NativeEndian.Uint32(data),
			Mask:  binary.NativeEndian.Uint32(data[4:]),
			Not:   data[8] != 0,
		}
	}
	return wire.ExtensionMatch(f, name, m.revision(), data)
}

// aim is where an entry leads: a target of its own or a final verdict (the zero value), the next entry, or a chain.
type aim struct {
	next  bool
	chain []byte
}

func (l *layout) aim(table []byte, off int, e entry) aim {
	v, ok := e.standard()
	switch {
	case !ok || v < 0:
		return aim{}
	case int(v) == off+len(e.raw):
		return aim{next: true}
	}
	name, _ := l.chainAt(table, int(v))
	return aim{chain: name}
}

// standard gives the verdict of a standard target: below 0 a verdict of netfilter, else the offset of the rule to go on at.
func (e entry) standard() (int32, bool) {
	t := e.ext(e.target)
	if len(t.name()) != 0 || t.size() < extHeader+4 {
		return 0, false
	}
	return int32(binary.NativeEndian.Uint32(t.data())), true
}

// Verdicts of a standard target: minus the verdict of netfilter (linux/netfilter.h), minus 1.
const (
	verdictDrop   = -0 - 1
	verdictAccept = -1 - 1
	verdictQueue  = -3 - 1
	verdictReturn = -4 - 1 // XT_RETURN
)

// verdict decodes the target of an entry.
func (l *layout) verdict(table []byte, off int, e entry) flannel.Target {
	v, standard := e.standard()
	if !standard {
		return l.action(e)
	}
	switch v {
	case verdictAccept:
		return flannel.Target{Kind: flannel.TargetAccept}
	case verdictDrop:
		return flannel.Target{Kind: flannel.TargetDrop}
	case verdictReturn:
		return flannel.Target{Kind: flannel.TargetReturn}
	case verdictQueue:
		return flannel.Target{Text: "-j QUEUE"}
	}
	a := l.aim(table, off, e)
	switch {
	case a.next:
		return flannel.Target{Kind: flannel.TargetNone}
	case len(a.chain) == 0:
		return flannel.Target{Text: fmt.Sprintf("-j %d", v)}
	case e.raw[l.flags]&l.gotoFlag != 0:
		return flannel.Target{Kind: flannel.TargetGoto, Chain: string(a.chain)}
	}
	return flannel.Target{Kind: flannel.TargetJump, Chain: string(a.chain)}
}

// action decodes a target that is not a verdict.
func (l *layout) action(e entry) flannel.Target {
	t := e.ext(e.target)
	return wire.ExtensionTarget(l.family, string(t.name()), t.revision(), t.data())
}
