package wire

import (
	"strings"

	"flanwatch/flannel"

	"golang.org/x/sys/unix"
)

// lookup reads the search for what registers hold in a set, or in a map that gives the verdict.
func (d *decoder) lookup(t *attrs) bool {
	const idAttr, flagsAttr = unix.NFTA_LOOKUP_SET_ID, unix.NFTA_LOOKUP_FLAGS
	rest := *t
	flags, _ := t.number(flagsAttr)
	rest[idAttr], rest[flagsAttr] = nil, nil
	sreg, ok := t.number(unix.NFTA_LOOKUP_SREG)
	name := cString(t[unix.NFTA_LOOKUP_SET])
	if !ok || flags > setInverted || name == "" || strings.ContainsAny(name, " \t\n") {
		return false
	}
	fields, exprs, understood := d.key(sreg)
	if dreg, ok := t.number(unix.NFTA_LOOKUP_DREG); ok {
		rest[unix.NFTA_LOOKUP_DREG] = nil
		if dreg != unix.NFT_REG_VERDICT || flags != 0 || !rest.have(unix.NFTA_LOOKUP_SET, unix.NFTA_LOOKUP_SREG) {
			return false
		}
		if !understood {
			fields, exprs = "other", 1
		}
		return d.end(exprs, flannel.NewTarget("VMAP --map @"+name+" "+fields))
	}
	if !understood || !rest.have(unix.NFTA_LOOKUP_SET, unix.NFTA_LOOKUP_SREG) {
		return false
	}
	return d.match(exprs, flannel.NewExtension("set "+not(flags == setInverted)+"--match-set @"+name+" "+fields))
}

// key names what registers hold from one on, and counts the expressions that put it there, the look-up among them.
func (d *decoder) key(sreg uint32) (fields string, exprs int, ok bool) {
	var loads []*load
	for at, ok := word(sreg); ok && at < registers; {
		l := d.regs[at]
		if l == nil || len(loads) > 0 && l.exprs == 0 || at > 0 && d.regs[at-1] == l {
			break
		}
		if setFieldNames[l.field] == "" || l.mask != nil || l.isShort(d.family) {
			return "", 0, false
		}
		loads = append(loads, l)
		at += (l.size + 3) / 4
	}
	exprs = 1
	names := make([]string, len(loads))
	for i, l := range loads {
		names[i] = setFieldNames[l.field]
		exprs += l.exprs
		l.exprs = 0
	}
	return strings.Join(names, ","), exprs, len(loads) > 0
}

var setFieldNames = map[field]string{
	fieldSource: "src", fieldDestination: "dst", fieldSourcePort: "sport", fieldDestinationPort: "dport", fieldProtocol: "proto",
	fieldIn: "in", fieldOut: "out", fieldMark: "mark", fieldState: "state",
}
