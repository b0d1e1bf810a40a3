package wire

import (
	"strconv"

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

// protocols are those that iptables prints by name on every system, whatever /etc/protocols says.
var protocols = map[string]uint8{
	"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "udplite": unix.IPPROTO_UDPLITE, "sctp": unix.IPPROTO_SCTP,
	"icmp": unix.IPPROTO_ICMP, "ipv6-icmp": unix.IPPROTO_ICMPV6, "esp": unix.IPPROTO_ESP, "ah": unix.IPPROTO_AH,
}

func protocolName(number uint8) string {
	for name, n := range protocols {
		if n == number {
			return name
		}
	}
	return strconv.Itoa(int(number))
}

// protocolNumber refuses 0, which iptables takes for "any".
func protocolNumber(name string) (uint8, bool) {
	if n, ok := protocols[name]; ok {
		return n, true
	}
	n, err := strconv.ParseUint(name, 10, 8)
	return uint8(n), err == nil && n != 0
}
