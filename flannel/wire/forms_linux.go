package wire

import (
	"math"

	"flanwatch/flannel"

	"golang.org/x/sys/unix"
)

const (
	allOnes    = 1<<32 - 1
	commentLen = 256 // struct xt_comment_info
)

// layout says where a network header keeps what rules compare.
type layout struct {
	source, destination uint32 // offsets
	address             uint32 // length
}

var layouts = map[flannel.Family]layout{flannel.IPv4: {12, 16, 4}, flannel.IPv6: {8, 24, 16}}

// masqueradeLen is the length of the information of the xtables target MASQUERADE, padded to eight bytes: for IPv4 struct
// nf_nat_ipv4_multi_range_compat with one range, for IPv6 struct nf_nat_range.
var masqueradeLen = map[flannel.Family]int{flannel.IPv4: 24, flannel.IPv6: 40}

// The verdicts of linux/netfilter.h and linux/netfilter/nf_tables.h.
const (
	verdictDrop     int32 = 0
	verdictAccept   int32 = 1
	verdictContinue int32 = unix.NFT_CONTINUE
	verdictJump     int32 = unix.NFT_JUMP
	verdictGoto     int32 = unix.NFT_GOTO
	verdictReturn   int32 = unix.NFT_RETURN
)

// protocolNumber is the inverse of flannel.ProtocolName. It refuses 0, which iptables takes for "any".
func protocolNumber(name string) (uint8, bool) {
	for n := 1; n <= math.MaxUint8; n++ {
		if flannel.ProtocolName(uint8(n)) == name {
			return uint8(n), true
		}
	}
	return 0, false
}
