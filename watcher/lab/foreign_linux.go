package lab

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// rawMatches are the expressions of matches that flanwatch itself never writes, but that the neighbours of Flannel's rules
// on a real node have.
var rawMatches = map[string]func() []byte{
	"conntrack --ctstate INVALID":             func() []byte { return conntrackState(1 << 0) },
	"conntrack --ctstate RELATED,ESTABLISHED": func() []byte { return conntrackState(1<<2 | 1<<1) },
}

// conntrackState is the xt match conntrack of revision 3 with a list of states and nothing else.
func conntrackState(states uint16) []byte {
	const (
		size         = 168 // struct xt_conntrack_mtinfo3, padded to a multiple of 8
		flagsOffset  = 146
		statesOffset = 150
		stateFlag    = 1
	)
	info := make([]byte, size)
	binary.NativeEndian.PutUint16(info[flagsOffset:], stateFlag)
	binary.NativeEndian.PutUint16(info[statesOffset:], states)
	return listElement("match",
		attribute(unix.NFTA_MATCH_NAME, []byte("conntrack\x00")),
		attribute(unix.NFTA_MATCH_REV, binary.BigEndian.AppendUint32(nil, 3)),
		attribute(unix.NFTA_MATCH_INFO, info),
	)
}

func listElement(name string, data ...[]byte) []byte {
	var inner []byte
	for _, d := range data {
		inner = append(inner, d...)
	}
	body := append(attribute(unix.NFTA_EXPR_NAME, []byte(name+"\x00")), attribute(unix.NFTA_EXPR_DATA|unix.NLA_F_NESTED, inner)...)
	return attribute(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, body)
}

func attribute(kind uint16, data []byte) []byte {
	out := binary.NativeEndian.AppendUint16(nil, uint16(4+len(data)))
	out = binary.NativeEndian.AppendUint16(out, kind)
	out = append(out, data...)
	for len(out)%4 != 0 {
		out = append(out, 0)
	}
	return out
}
