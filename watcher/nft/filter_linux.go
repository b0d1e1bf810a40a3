package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Classic BPF has no loops, so the walk over the messages of a datagram is unrolled. The kernel packs messages into
// datagrams of one page less its own bookkeeping, and the shortest take 48 bytes, so 78 messages are the most on a machine
// with pages of 4 KiB. A datagram with more messages than the walk has steps is let through unseen.
//
// The kernel charges the filter, some 620 bytes a step, to net.core.optmem_max, whose default was 20 KiB before Linux 6.7
// and is 128 KiB now. Where the longest walk does not fit, a shorter one does: rules of kube-proxy come in fives.
var filterSteps = []int{80, 32, 24, 16, 8}

// Places in a message, counted from its start. Every nf_tables message but NEWGEN begins with the name of its table. What
// follows stands right behind where that name is "nat", and four bytes on where it is "filter".
const (
	atCommand = 4 // nlmsg_type in host byte order, whose low byte is the command
	atTable   = headerLen + genLen + unix.SizeofNlAttr
	atSecond  = atTable + 4 // head of the second attribute
	atName    = atSecond + unix.SizeofNlAttr
)

// filterProgram keeps from the queue of the event socket what is not about Flannel. The kernel runs it before it looks
// for room in the queue, so a commit with ten thousand rules of somebody else cannot make it overflow. It lets a datagram
// through if one of its messages is
//   - NEWGEN, the end of a commit, which comes in a datagram of its own;
//   - about a table whose name begins with "flan";
//   - about a table itself whose name is "nat" or begins with "filt";
//   - about a chain in one of these that begins with FLAN, POST or FORW, or about a rule in it.
//
// It is a sieve only: what comes through is looked at again.
func filterProgram(steps int) []bpf.Instruction {
	p := []bpf.Instruction{
		bpf.LoadConstant{Dst: bpf.RegX, Val: 0}, // X: start of the message at hand
		bpf.LoadIndirect{Off: command(), Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.NFT_MSG_NEWGEN, SkipFalse: 1},
		bpf.RetConstant{Val: accept},
	}
	step := resolve(walk())
	for range steps {
		p = append(p, step...)
	}
	return append(p, bpf.RetConstant{Val: accept})
}

// What a filter returns is how much of the datagram to keep.
const (
	accept = 0xffffffff
	drop   = 0
)

// Scratch memory of a step.
const (
	slotNext    = iota // start of the message behind
	slotCommand        // of the message at hand
)

// walk is one step: it looks at the message at X and moves X to the next.
func walk() []any {
	const handleLen = unix.SizeofNlAttr + 8
	return append(keepNext(),
		bpf.LoadIndirect{Off: command(), Size: 1},
		bpf.StoreScratch{Src: bpf.RegA, N: slotCommand},
		bpf.LoadIndirect{Off: atTable, Size: 4},
		branch{word("flan"), "accept", ""},
		branch{word("nat\x00"), "command", ""},
		branch{word("filt"), "", "end"},
		move(4),
		label("command"),
		bpf.LoadScratch{Dst: bpf.RegA, N: slotCommand},
		branch{unix.NFT_MSG_NEWTABLE, "accept", ""},
		branch{unix.NFT_MSG_DELTABLE, "accept", ""},
		branch{unix.NFT_MSG_NEWCHAIN, "chain", ""},
		branch{unix.NFT_MSG_DELCHAIN, "", "name"},
		label("chain"), // whose name comes first, or, in older kernels, its handle
		bpf.LoadIndirect{Off: atSecond, Size: 4},
		branch{attrHead(handleLen, unix.NFTA_CHAIN_HANDLE), "", "name"},
		move(handleLen),
		label("name"),
		bpf.LoadIndirect{Off: atName, Size: 4},
		branch{word("FLAN"), "accept", ""},
		branch{word("POST"), "accept", ""},
		branch{word("FORW"), "", "end"},
		label("accept"),
		bpf.RetConstant{Val: accept},
		label("end"),
		bpf.LoadScratch{Dst: bpf.RegX, N: slotNext},
		bpf.LoadExtension{Num: bpf.ExtLen},
		bpf.JumpIfX{Cond: bpf.JumpGreaterThan, SkipTrue: 1}, // the datagram goes on behind X
		bpf.RetConstant{Val: drop},
	)
}

// keepNext keeps where the next message starts: X + align(length). The length is in host byte order, a load is not; its upper
// half is 0, since a datagram is shorter than 64 KiB.
func keepNext() []any {
	load := []any{bpf.LoadIndirect{Off: 2, Size: 2}}
	if littleEndian() {
		load = []any{
			bpf.LoadIndirect{Off: 0, Size: 2}, // two bytes in the wrong order: repeat them and take the middle
			bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: 1<<16 + 1},
			bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 8},
		}
	}
	return append(load,
		bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: 3},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xfffc},
		bpf.ALUOpX{Op: bpf.ALUOpAdd},
		bpf.StoreScratch{Src: bpf.RegA, N: slotNext})
}

// branch jumps to one of two labels ahead by whether A is val. An empty label is the next instruction.
type branch struct {
	val             uint32
	then, otherwise string
}

type label string

// move adds to X.
type move uint32

// resolve replaces labels by distances.
func resolve(code []any) []bpf.Instruction {
	at, n := map[string]int{}, 0
	for _, c := range code {
		switch c := c.(type) {
		case label:
			at[string(c)] = n
		case move:
			n += 3
		default:
			n++
		}
	}
	var p []bpf.Instruction
	skip := func(to string) uint8 {
		if to == "" {
			return 0
		}
		return uint8(at[to] - len(p) - 1)
	}
	for _, c := range code {
		switch c := c.(type) {
		case label:
		case move:
			p = append(p, bpf.TXA{}, bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: uint32(c)}, bpf.TAX{})
		case branch:
			p = append(p, bpf.JumpIf{Cond: bpf.JumpEqual, Val: c.val, SkipTrue: skip(c.then), SkipFalse: skip(c.otherwise)})
		case bpf.Instruction:
			p = append(p, c)
		}
	}
	return p
}

// command is the place of the low byte of nlmsg_type.
func command() uint32 {
	if littleEndian() {
		return atCommand
	}
	return atCommand + 1
}

func word(s string) uint32 { return binary.BigEndian.Uint32([]byte(s)) }

// attrHead is the head of an attribute as a load of four bytes sees it.
func attrHead(length, kind uint16) uint32 {
	b := binary.NativeEndian.AppendUint16(nil, length)
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint16(b, kind))
}

func littleEndian() bool { return binary.NativeEndian.Uint16([]byte{1, 0}) == 1 }

// attachFilter puts the longest filter on a socket that the kernel allows there.
func attachFilter(fd int) error {
	err := error(unix.ENOMEM)
	for _, steps := range filterSteps {
		if err = attach(fd, filterProgram(steps)); !errors.Is(err, unix.ENOMEM) {
			break
		}
	}
	return err
}

func attach(fd int, program []bpf.Instruction) error {
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
