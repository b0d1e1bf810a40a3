package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"flanwatch/flannel"

	"golang.org/x/sys/unix"
)

// Decode reads the payload of NFTA_RULE_EXPRESSIONS. It never fails: whatever is not understood in full becomes an opaque
// match, or the opaque target where it is the last expression of a rule without a verdict, so that no rule looks looser
// than it is. Counters are no part of a rule; see ScanRule.
func Decode(f flannel.Family, exprs []byte) flannel.Rule {
	r, _ := decode(f, exprs)
	return r
}

// decode also counts the expressions that went into the rule, each where it is accounted for.
func decode(f flannel.Family, exprs []byte) (flannel.Rule, int) {
	d := decoder{family: f}
	for b := exprs; len(b) > 0; {
		e, rest, err := cutExpr(b)
		if err != nil {
			d.opaque(0, fmt.Sprintf("[malformed %s]", brief(b)))
			break
		}
		d.expression(e, len(rest) == 0)
		b = rest
	}
	return d.finish(), d.consumed
}

type decoder struct {
	family   flannel.Family
	regs     [registers]*load
	loads    []*load // in the order of the rule
	matches  []flannel.Match
	target   flannel.Target // zero until a target was found
	hasEnd   bool           // target is set
	counted  bool
	last     bool // the expression at hand is the final one
	acted    bool // something was done to the packet: what follows is no plain condition
	consumed int
}

// expression adds one expression to the rule. last tells that it is the final one.
func (d *decoder) expression(e expression, last bool) {
	if d.hasEnd { // the kernel never gets here
		d.opaque(1, describe(e))
		return
	}
	d.last = last
	if !d.acted && d.understood(e) || d.acted && d.verdictOnly(e) {
		return
	}
	d.acted = d.acted || acts(e)
	d.regs = [registers]*load{} // it may have written any of them
	if string(e.name) == "target" || last && !condition(e) {
		d.end(1, flannel.Target{Kind: flannel.TargetOpaque, Text: targetText(e)})
		return
	}
	d.opaque(1, describe(e))
}

// verdictOnly takes the verdict of a rule that did something to the packet before. A condition there says when the verdict
// comes, but not when that was done.
func (d *decoder) verdictOnly(e expression) bool {
	switch string(e.name) {
	case "counter", "immediate", "masq", "nat", "reject":
		return d.understood(e)
	}
	return false
}

// acts tells expressions that may change the packet or its connection from those that look.
func acts(e expression) bool {
	t, ok := split(e.data)
	switch string(e.name) {
	case "cmp", "range", "lookup", "bitwise", "byteorder", "fib", "rt", "numgen", "hash", "socket", "osf", "xfrm", "tunnel",
		"limit", "quota", "connlimit", "counter", "log", "last", "match":
		return false
	case "immediate":
		return !ok || t[unix.NFTA_IMMEDIATE_DREG] == nil
	case "payload":
		return !ok || t[unix.NFTA_PAYLOAD_DREG] == nil
	case "exthdr":
		return !ok || t[unix.NFTA_EXTHDR_DREG] == nil
	case "meta":
		return !ok || t[unix.NFTA_META_DREG] == nil
	case "ct":
		return !ok || t[unix.NFTA_CT_DREG] == nil
	}
	return true
}

// condition tells expressions that only compare from those that may do something.
func condition(e expression) bool {
	switch string(e.name) {
	case "match", "cmp", "range", "lookup":
		return true
	}
	return false
}

func (d *decoder) understood(e expression) bool {
	if string(e.name) == "counter" {
		return d.counter(e.data)
	}
	t, ok := split(e.data)
	if !ok {
		return false
	}
	switch string(e.name) {
	case "payload":
		return d.payload(&t)
	case "meta":
		return d.meta(&t)
	case "bitwise":
		return d.bitwise(&t)
	case "cmp":
		return d.cmp(&t)
	case "range":
		return d.portRange(&t)
	case "ct":
		return d.ct(&t)
	case "fib":
		return d.fib(&t)
	case "lookup":
		return d.lookup(&t)
	case "nat":
		return d.nat(&t)
	case "reject":
		return d.reject(&t)
	case "log":
		return d.last && d.log(&t)
	case "notrack":
		return d.last && d.end(1, flannel.Target{Kind: flannel.TargetNotrack, Text: "CT --notrack"})
	case "immediate":
		return d.immediate(&t)
	case "masq":
		return d.masq(&t)
	case "match":
		return d.xtMatch(&t)
	case "target":
		return d.xtTarget(&t)
	}
	return false
}

// counter takes the first counter; ScanRule gives its values.
func (d *decoder) counter(data []byte) bool {
	if _, err := readCounter(data); err != nil || d.counted {
		return false
	}
	d.counted = true
	d.consumed++
	return true
}

func (d *decoder) match(exprs int, m flannel.Match) bool {
	d.consumed += exprs
	if d.mergePorts(m) {
		return true
	}
	d.matches = append(d.matches, m)
	return true
}

// opaque adds a condition that is not understood. Native expressions in a row are one: a condition takes several of them.
func (d *decoder) opaque(exprs int, text string) {
	if n := len(d.matches); n > 0 && text[0] == '[' && strings.HasPrefix(d.matches[n-1].Text, "[") &&
		d.matches[n-1].Kind == flannel.MatchOpaque {
		d.matches[n-1].Text += " " + text
		d.consumed += exprs
		return
	}
	d.match(exprs, flannel.Match{Kind: flannel.MatchOpaque, Text: text})
}

// end sets the target.
func (d *decoder) end(exprs int, t flannel.Target) bool {
	d.consumed += exprs
	d.target, d.hasEnd = t, true
	return true
}

func (d *decoder) finish() flannel.Rule {
	for _, l := range d.loads {
		if l.exprs > 0 {
			d.opaque(l.exprs, "["+l.text+"]")
		}
	}
	if !d.hasEnd {
		d.target = flannel.Target{Kind: flannel.TargetNone}
	}
	return flannel.NewRule(d.target, d.matches...)
}

func (d *decoder) immediate(t *attrs) bool {
	dreg, ok := t.number(unix.NFTA_IMMEDIATE_DREG)
	if ok && dreg != unix.NFT_REG_VERDICT && t.have(unix.NFTA_IMMEDIATE_DREG, unix.NFTA_IMMEDIATE_DATA) {
		constant, ok := value(t[unix.NFTA_IMMEDIATE_DATA])
		text := fmt.Sprintf("immediate %x", constant)
		return ok && d.put(dreg, load{size: len(constant), constant: constant, text: text, exprs: 1})
	}
	if !ok || dreg != unix.NFT_REG_VERDICT || !t.have(unix.NFTA_IMMEDIATE_DREG, unix.NFTA_IMMEDIATE_DATA) {
		return false
	}
	data, ok := split(t[unix.NFTA_IMMEDIATE_DATA])
	if !ok || !data.have(unix.NFTA_DATA_VERDICT) {
		return false
	}
	target, ok := verdictOf(data[unix.NFTA_DATA_VERDICT])
	return ok && d.end(1, target)
}

// DecodeVerdict reads the payload of NFTA_DATA_VERDICT, as an element of a map holds it. It is opaque where it is not
// understood.
func DecodeVerdict(data []byte) flannel.Target {
	if t, ok := verdictOf(data); ok {
		return t
	}
	return flannel.Target{Text: "-j [verdict " + brief(data) + "]"}
}

func verdictOf(data []byte) (flannel.Target, bool) {
	v, ok := split(data)
	if !ok {
		return flannel.Target{}, false
	}
	code, ok := v.number(unix.NFTA_VERDICT_CODE)
	if !ok {
		return flannel.Target{}, false
	}
	return verdictTarget(int32(code), &v)
}

func verdictTarget(code int32, v *attrs) (flannel.Target, bool) {
	switch code {
	case verdictJump, verdictGoto:
		chain := cString(v[unix.NFTA_VERDICT_CHAIN])
		kind := flannel.TargetJump
		if code == verdictGoto {
			kind = flannel.TargetGoto
		}
		return flannel.Target{Kind: kind, Chain: chain}, chain != "" && v.have(unix.NFTA_VERDICT_CODE, unix.NFTA_VERDICT_CHAIN)
	}
	kind, ok := map[int32]flannel.TargetKind{
		verdictAccept: flannel.TargetAccept, verdictDrop: flannel.TargetDrop, verdictReturn: flannel.TargetReturn,
		verdictContinue: flannel.TargetNone,
	}[code]
	return flannel.Target{Kind: kind}, ok && v.have(unix.NFTA_VERDICT_CODE)
}

func (d *decoder) masq(t *attrs) bool {
	if t.have() {
		return d.end(1, flannel.Target{Kind: flannel.TargetMasquerade})
	}
	flags, ok := t.number(unix.NFTA_MASQ_FLAGS)
	if !ok || !t.have(unix.NFTA_MASQ_FLAGS) {
		return false
	}
	target, ok := masqueradeTarget(flags)
	return ok && d.end(1, target)
}

// masqueradeTarget refuses ranges of addresses and ports and other flags.
func masqueradeTarget(flags uint32) (flannel.Target, bool) {
	t := flannel.Target{
		Kind:        flannel.TargetMasquerade,
		Random:      flags&unix.NF_NAT_RANGE_PROTO_RANDOM != 0,
		RandomFully: flags&unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY != 0,
	}
	return t, natFlags(t) == flags
}

func (d *decoder) xtMatch(t *attrs) bool {
	name, rev, info, ok := extension(t)
	if !ok {
		return false
	}
	switch {
	case name == "comment" && rev == 0 && len(info) == commentLen:
		return d.match(1, flannel.Match{Kind: flannel.MatchComment, Text: cString(info)})
	case rev > math.MaxUint8:
		return false
	case name == "mark" && rev == 1 && len(info) >= 12:
		m := flannel.Match{
			Kind:  flannel.MatchMark,
			Not:   info[8] != 0,
			Value: binary.NativeEndian.Uint32(info),
			Mask:  binary.NativeEndian.Uint32(info[4:]),
		}
		return m.Value&^m.Mask == 0 && d.match(1, m)
	}
	m := ExtensionMatch(d.family, name, byte(rev), info)
	return m.Kind == flannel.MatchExtension && d.match(1, m)
}

func (d *decoder) xtTarget(t *attrs) bool {
	name, rev, info, ok := extension(t)
	if !ok || rev > math.MaxUint8 || name == "MASQUERADE" && !d.masqueradeLength(info) {
		return false
	}
	target := ExtensionTarget(d.family, name, byte(rev), info)
	return target.Kind != flannel.TargetOpaque && d.end(1, target)
}

// masqueradeLength tells whether the data are one range of the family and nothing behind it.
func (d *decoder) masqueradeLength(info []byte) bool { return len(info) == masqueradeLen[d.family] }

// extension reads the attributes of an xtables match or target, which are the same.
func extension(t *attrs) (name string, rev uint32, info []byte, ok bool) {
	rev, ok = t.number(unix.NFTA_MATCH_REV)
	ok = ok && t.have(unix.NFTA_MATCH_NAME, unix.NFTA_MATCH_REV, unix.NFTA_MATCH_INFO)
	return cString(t[unix.NFTA_MATCH_NAME]), rev, t[unix.NFTA_MATCH_INFO], ok
}
