package wire

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Values of linux/netfilter/nf_tables.h that x/sys does not have: what fib looks up (NFTA_FIB_F_*) and what it gives.
const (
	fibSource  = 1
	fibTarget  = 2
	fibMark    = 4
	fibIn      = 8
	fibOut     = 16
	fibPresent = 32 // whether there is a route, in place of its interface
	fibOif     = 1  // NFT_FIB_RESULT_OIF
	fibType    = 3  // NFT_FIB_RESULT_ADDRTYPE
)

func (d *decoder) fib(t *attrs) bool {
	dreg, ok1 := t.number(unix.NFTA_FIB_DREG)
	result, ok2 := t.number(unix.NFTA_FIB_RESULT)
	flags, ok3 := t.number(unix.NFTA_FIB_FLAGS)
	if !ok1 || !ok2 || !ok3 || !t.have(unix.NFTA_FIB_DREG, unix.NFTA_FIB_RESULT, unix.NFTA_FIB_FLAGS) {
		return false
	}
	l := load{size: 4, exprs: 1, text: fmt.Sprintf("fib flags %d result %d", flags, result)}
	ok := false
	switch result {
	case fibType:
		ok = l.addressType(flags)
	case fibOif:
		ok = l.returnPath(flags)
	}
	return ok && d.put(dreg, l)
}

// addressType is the type of an address, as addrtype of iptables has it.
func (l *load) addressType(flags uint32) bool {
	l.field = fieldType
	switch flags &^ (fibIn | fibOut) {
	case fibSource:
		l.options = "--src-type"
	case fibTarget:
		l.options = "--dst-type"
	default:
		return false
	}
	switch flags & (fibIn | fibOut) {
	case 0:
	case fibIn:
		l.limit = " --limit-iface-in"
	case fibOut:
		l.limit = " --limit-iface-out"
	default:
		return false
	}
	return true
}

// returnPath is the interface towards the source, 0 if there is none: what rpfilter of iptables looks at.
func (l *load) returnPath(flags uint32) bool {
	l.field = fieldReturn
	if flags&fibSource == 0 || flags&(fibTarget|fibOut) != 0 {
		return false
	}
	if flags&fibIn == 0 {
		l.options += " --loose"
	}
	if flags&fibMark != 0 {
		l.options += " --validmark"
	}
	if flags&fibPresent != 0 {
		l.limit = "present"
	}
	return true
}

// reversePath reads the comparison with "none", or with "some".
func (l *load) reversePath(inverted bool, data []byte) (string, bool) {
	some := !allZero(data)
	if l.mask != nil || some && l.limit == "" {
		return "", false
	}
	text := "rpfilter" + l.options
	if some == inverted {
		text += " --invert"
	}
	return text, true
}
