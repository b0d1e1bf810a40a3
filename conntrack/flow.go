package conntrack

import (
	"fmt"
	"net/netip"

	"flanwatch/flannel"
)

// Protocol numbers of IP that connection tracking treats apart.
const (
	ICMP    = 1
	TCP     = 6
	UDP     = 17
	ICMPv6  = 58
	SCTP    = 132
	UDPLite = 136
)

var protocols = map[uint8]string{ICMP: "icmp", TCP: "tcp", UDP: "udp", ICMPv6: "icmpv6", SCTP: "sctp", UDPLite: "udplite"}

// Status is the set of IPS_* bits of an entry.
type Status uint32

// The bits that tell something here; their numbers are part of the kernel's interface.
const (
	SeenReply Status = 1 << 1
	Assured   Status = 1 << 2 // never evicted from a full table
	SrcNAT    Status = 1 << 4
	DstNAT    Status = 1 << 5
)

// Tuple is one direction of a connection. For ICMP and ICMPv6 the ports are 0 and Type, Code and ID tell the message.
type Tuple struct {
	Src, Dst     netip.Addr
	SPort, DPort uint16
	ID           uint16
	Proto        uint8
	Type, Code   uint8
}

// Flow is one entry of the table.
type Flow struct {
	Orig, Reply Tuple
	Status      Status
	State       uint8  // of TCP, TCP_CONNTRACK_*; meaningless for others
	ID          uint32 // the kernel's name of the entry: another one with the same tuple has another
	Zone        uint16 // 0 is the zone of everything that is in none
	ZoneReply   bool   // the zone holds for the reply direction only
	ZoneOrig    bool   // the zone holds for the original direction only
	Timeout     uint32 // seconds that are left unless a packet comes; 0 where the message carries none
	Mark        uint32
	Packets     uint64 // both directions together; meaningless unless Counted
	Bytes       uint64
	Counted     bool // the kernel accounts (nf_conntrack_acct)
}

// Family is the address family of the flow.
func (f *Flow) Family() flannel.Family {
	if f.Orig.Src.Is4() {
		return flannel.IPv4
	}
	return flannel.IPv6
}

// Protocol is the name of the flow's protocol, or its number.
func (f *Flow) Protocol() string {
	if s, ok := protocols[f.Orig.Proto]; ok {
		return s
	}
	return fmt.Sprintf("proto-%d", f.Orig.Proto)
}

// Replied tells whether a packet of the other direction was seen.
func (f *Flow) Replied() bool { return f.Status&SeenReply != 0 }

// Target is where the flow really goes: its destination after every translation.
func (f *Flow) Target() netip.Addr { return f.Reply.Src }

// tcpStates are the kernel's names of TCP_CONNTRACK_*.
var tcpStates = [...]string{
	"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2",
}

// StateName is the state of the connection: of TCP as the kernel names it, of others whether it was answered.
func (f *Flow) StateName() string {
	switch {
	case f.Orig.Proto == TCP && int(f.State) < len(tcpStates):
		return tcpStates[f.State]
	case f.Status&Assured != 0:
		return "ASSURED"
	case f.Replied():
		return "REPLIED"
	}
	return "UNREPLIED"
}

// Key is what makes two entries the same one: the kernel's ID beside the tuple, since a deleted entry's tuple comes again.
type Key struct {
	Orig Tuple
	Zone uint16
	ID   uint32
}

// Key gives the identity of the entry.
func (f *Flow) Key() Key { return Key{f.Orig, f.Zone, f.ID} }

// Same tells whether two readings are of one entry with one translation.
func (f *Flow) Same(g *Flow) bool { return f.Key() == g.Key() && f.Reply == g.Reply }

// Ends writes the two ends of a tuple, with ports where the protocol has them.
func (t Tuple) Ends() (src, dst string) {
	if t.hasPorts() {
		return netip.AddrPortFrom(t.Src, t.SPort).String(), netip.AddrPortFrom(t.Dst, t.DPort).String()
	}
	return t.Src.String(), t.Dst.String()
}

func (t Tuple) hasPorts() bool {
	switch t.Proto {
	case TCP, UDP, SCTP, UDPLite:
		return true
	}
	return t.SPort != 0 || t.DPort != 0
}

// String gives "tcp 10.244.1.5:40000 → 192.0.2.80:80, seen as 10.244.1.5, SYN_SENT".
func (f *Flow) String() string {
	src, dst := f.Orig.Ends()
	s := fmt.Sprintf("%s %s → %s", f.Protocol(), src, dst)
	if f.Reply.Src != f.Orig.Dst {
		s += fmt.Sprintf(" (really %s)", f.Reply.Src)
	}
	s += fmt.Sprintf(", seen as %s, %s", f.Reply.Dst, f.StateName())
	if f.Zone != 0 {
		s += fmt.Sprintf(", zone %d", f.Zone)
	}
	return s
}
