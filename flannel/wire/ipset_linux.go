package wire

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// set reads struct xt_set_info_match_v1 or one of the longer ones: the number of a set, how many parts its keys have, flags.
// The rule does not hold the set's name: "#3" stands for it. Comparisons of counters are not understood.
func (x xt) set() (string, bool) {
	const inverted, fromSource, noMatch, packets, bytes, counters = 1, 2, 1 << 7, 8, 24, 44
	if len(x.data) < 4 || x.data[2] == 0 || x.data[2] > 3 || x.data[3]&noMatch != 0 {
		return "", false
	}
	if x.revision >= 3 && (len(x.data) < counters || x.data[packets] != 0 || x.data[bytes] != 0) {
		return "", false
	}
	directions := make([]string, x.data[2])
	for i := range directions {
		directions[i] = "dst"
		if x.data[3]&(fromSource<<i) != 0 {
			directions[i] = "src"
		}
	}
	return fmt.Sprintf("set %s--match-set #%d %s", not(x.data[3]&inverted != 0), binary.NativeEndian.Uint16(x.data),
		strings.Join(directions, ",")), true
}

// rpfilter reads struct xt_rpfilter_info.
func (x xt) rpfilter() (string, bool) {
	if len(x.data) < 1 || x.data[0]&^0x0f != 0 {
		return "", false
	}
	s := "rpfilter"
	for _, f := range []flag{{1, " --loose"}, {2, " --validmark"}, {4, " --accept-local"}, {8, " --invert"}} {
		if uint32(x.data[0])&f.bit != 0 {
			s += f.word
		}
	}
	return s, true
}
