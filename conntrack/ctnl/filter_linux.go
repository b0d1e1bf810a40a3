package ctnl

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"flanwatch/conntrack"
)

// Wanted says which new connections to hear of.
type Wanted struct {
	Networks []netip.Prefix // pod networks: the source lies in one of them
	Inside   []netip.Prefix // where pods go without source NAT, beside Networks: services, link-local, the node itself
}

// What a filter returns is how much of the datagram to keep.
const (
	accept = 0xffffffff
	drop   = 0
)

// Numbers of nested attributes and of the addresses in them.
const (
	tupleOrig  = 1
	tupleReply = 2
	tupleIP    = 1
	ipV4Src    = 1
	ipV6Src    = 3
)

// filterProgram keeps from the queue what is as it should be. The kernel runs it before it looks for room in the queue, so
// that a burst of healthy connections cannot make it overflow. Of connections from a pod it lets through
//   - those without source NAT whose real destination is outside;
//   - those with source NAT whose real destination is a pod.
//
// It is a sieve only: what comes through is judged again. The real destination is the source of the reply.
func filterProgram(w Wanted) []bpf.Instruction {
	v4, v6 := split(w.Networks)
	in4, in6 := split(w.Inside)
	p := findOr(tupleOrig, ipV4Src, family(v4, in4, ipV4Src))
	p = append(p, findOr(tupleOrig, ipV6Src, family(v6, in6, ipV6Src))...)
	return append(p, bpf.RetConstant{Val: drop})
}

// family is the filter for one family, entered with X at the attribute of the source address.
func family(networks, inside []netip.Prefix, source uint32) []bpf.Instruction {
	pod := []bpf.Instruction{bpf.LoadConstant{Dst: bpf.RegA, Val: 1}, bpf.StoreScratch{Src: bpf.RegA, N: 0}}
	p := []bpf.Instruction{bpf.LoadConstant{Dst: bpf.RegA, Val: 0}, bpf.StoreScratch{Src: bpf.RegA, N: 0}}
	for _, n := range networks {
		p = append(p, onMatch(n, pod)...)
	}
	p = append(p,
		bpf.LoadScratch{Dst: bpf.RegA, N: 0},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 1, SkipTrue: 1},
		bpf.RetConstant{Val: drop})
	p = append(p, find(attrStatus)...)
	p = append(p,
		bpf.TAX{},
		bpf.LoadIndirect{Off: 4, Size: 4},
		bpf.StoreScratch{Src: bpf.RegA, N: 1})
	p = append(p, find(tupleReply)...)
	p = append(p, nestedIn(tupleIP)...)
	p = append(p, nestedIn(source)...)
	p = append(p, bpf.TAX{}) // X: the real destination
	var bare, translated []bpf.Instruction
	for _, n := range networks {
		translated = append(translated, onMatch(n, []bpf.Instruction{bpf.RetConstant{Val: accept}})...)
		bare = append(bare, onMatch(n, []bpf.Instruction{bpf.RetConstant{Val: drop}})...)
	}
	for _, n := range inside {
		bare = append(bare, onMatch(n, []bpf.Instruction{bpf.RetConstant{Val: drop}})...)
	}
	translated = append(translated, bpf.RetConstant{Val: drop})
	bare = append(bare, bpf.RetConstant{Val: accept})
	p = append(p,
		bpf.LoadScratch{Dst: bpf.RegA, N: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: uint32(conntrack.SrcNAT), SkipTrue: 1},
		bpf.Jump{Skip: uint32(len(translated))})
	return append(append(p, translated...), bare...)
}

// find leaves in A the place of an attribute of the message, and drops a message without it. Attributes begin behind
// nlmsghdr and nfgenmsg.
func find(kind uint32) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadConstant{Dst: bpf.RegX, Val: kind},
		bpf.LoadConstant{Dst: bpf.RegA, Val: headerLen + genLen},
		bpf.LoadExtension{Num: bpf.ExtNetlinkAttr},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipFalse: 1},
		bpf.RetConstant{Val: drop},
	}
}

// nestedIn goes from the attribute at A to one nested in it.
func nestedIn(kind uint32) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadConstant{Dst: bpf.RegX, Val: kind},
		bpf.LoadExtension{Num: bpf.ExtNetlinkAttrNested},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipFalse: 1},
		bpf.RetConstant{Val: drop},
	}
}

// findOr runs then with X at an address of a tuple, and goes on behind it where there is no such address.
func findOr(tuple, address uint32, then []bpf.Instruction) []bpf.Instruction {
	p := append(find(tuple), nestedIn(tupleIP)...)
	p = append(p,
		bpf.LoadConstant{Dst: bpf.RegX, Val: address},
		bpf.LoadExtension{Num: bpf.ExtNetlinkAttrNested},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1},
		bpf.Jump{Skip: uint32(len(then) + 1)},
		bpf.TAX{})
	return append(p, then...)
}

// onMatch runs then if the address at X lies in the prefix. It compares word by word, and only words that the prefix says
// something of.
func onMatch(prefix netip.Prefix, then []bpf.Instruction) []bpf.Instruction {
	addr := prefix.Masked().Addr().AsSlice()
	var words [][]bpf.Instruction
	for i := 0; i*32 < prefix.Bits(); i++ {
		mask := ^uint32(0) << max(0, 32-(prefix.Bits()-i*32))
		words = append(words, []bpf.Instruction{
			bpf.LoadIndirect{Off: uint32(4 + 4*i), Size: 4},
			bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(addr[4*i:])},
		})
	}
	var p []bpf.Instruction
	for i, w := range words {
		jump := w[2].(bpf.JumpIf)
		jump.SkipFalse = uint8(3*(len(words)-i-1) + len(then))
		w[2] = jump
		p = append(p, w...)
	}
	return append(p, then...)
}

func split(list []netip.Prefix) (v4, v6 []netip.Prefix) {
	for _, p := range list {
		if p.Addr().Is4() {
			v4 = append(v4, p)
		} else {
			v6 = append(v6, p)
		}
	}
	return v4, v6
}

func attachFilter(fd int, program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return fmt.Errorf("assemble filter: %w", err)
	}
	p := unix.SockFprog{Len: uint16(len(raw)), Filter: (*unix.SockFilter)(unsafe.Pointer(&raw[0]))}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &p); err != nil {
		return fmt.Errorf("attach filter: %w", err)
	}
	return nil
}
