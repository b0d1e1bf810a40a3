package nft

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Classic BPF has no loops, so the walk over the messages of a datagram is unrolled. The kernel packs messages into
// datagrams of one page less its own bookkeeping, and the shortest take 48 bytes, so 78 messages are the most on a machine with
// pages of 4 KiB. A datagram with more than that is let through unseen.
const filterSteps = 80

// Places in a message, counted from its start. Every nf_tables message but NEWGEN begins with the name of its table.
const (
	atLength  = 0
	atCommand = 4 // nlmsg_type, whose low byte is the command
	atTable   = headerLen + genLen + unix.SizeofNlAttr
)

// filterProgram keeps from the queue of the event socket what is not about Flannel. The kernel runs it before it looks
// for room in the queue, so a commit with ten thousand rules of somebody else cannot make it overflow. It lets a datagram
// through if one of its messages is
//   - NEWGEN, the end of a commit, which comes in a datagram of its own;
//   - about a table whose name begins with "flan";
//   - about a table "nat" or one that begins with "filt" itself;
//   - about a chain in "nat" that begins with FLAN or POST, in "filt…" with FLAN or FORW, or a rule in it.
//
// It is a sieve only: what comes through is looked at again.
func filterProgram() []bpf.Instruction {
	accept, drop := bpf.RetConstant{Val: 0xffffffff}, bpf.RetConstant{Val: 0}
	p := []bpf.Instruction{
		loadCommand(bpf.LoadAbsolute{}),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.NFT_MSG_NEWGEN, SkipFalse: 1},
		accept,
		bpf.LoadConstant{Dst: bpf.RegX, Val: 0}, // X: start of the message at hand
	}
	for range filterSteps {
		p = slices.Concat(p,
			inTable("flan", []bpf.Instruction{accept}),
			inTable("nat\x00", namedChain(atTable+4, "POST", accept)),
			inTable("filt", namedChain(atTable+8, "FORW", accept)),
			advance(),
			[]bpf.Instruction{
				bpf.LoadExtension{Num: bpf.ExtLen},
				bpf.JumpIfX{Cond: bpf.JumpGreaterThan, SkipTrue: 1}, // the datagram goes on behind X
				drop,
			})
	}
	return append(p, accept)
}

// inTable runs body where the table's name begins with four given bytes.
func inTable(name string, body []bpf.Instruction) []bpf.Instruction {
	return append([]bpf.Instruction{
		bpf.LoadIndirect{Off: atTable, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: word(name), SkipFalse: uint8(len(body))},
	}, body...)
}

// namedChain accepts where the message is about the table itself, or where the attribute at off begins with FLAN or with
// name. Older kernels announce a chain with its handle there, of 12 bytes, and its name behind.
func namedChain(off uint32, name string, accept bpf.Instruction) []bpf.Instruction {
	const handleLen = unix.SizeofNlAttr + 8
	is := func(v uint32) bpf.JumpIf { return bpf.JumpIf{Cond: bpf.JumpEqual, Val: v} }
	skip := func(j bpf.JumpIf, onTrue, onFalse uint8) bpf.JumpIf {
		j.SkipTrue, j.SkipFalse = onTrue, onFalse
		return j
	}
	return []bpf.Instruction{
		loadCommand(bpf.LoadIndirect{}),
		skip(is(unix.NFT_MSG_NEWTABLE), 9, 0),
		skip(is(unix.NFT_MSG_DELTABLE), 8, 0),
		bpf.LoadIndirect{Off: off + unix.SizeofNlAttr, Size: 4},
		skip(is(word("FLAN")), 6, 0),
		skip(is(word(name)), 5, 0),
		bpf.LoadIndirect{Off: off, Size: 4}, // length and type of the attribute
		skip(is(attrHead(handleLen, unix.NFTA_CHAIN_HANDLE)), 0, 4),
		bpf.LoadIndirect{Off: off + handleLen + unix.SizeofNlAttr, Size: 4},
		skip(is(word("FLAN")), 1, 0),
		skip(is(word(name)), 0, 1),
		accept,
	}
}

// advance moves X to the next message: X += align(length). A number on the wire is in host byte order, a load is not.
func advance() []bpf.Instruction {
	p := []bpf.Instruction{bpf.LoadIndirect{Off: atLength, Size: 4}}
	if littleEndian() {
		p = []bpf.Instruction{
			bpf.StoreScratch{Src: bpf.RegX, N: 0},
			bpf.LoadIndirect{Off: atLength, Size: 1},
			bpf.StoreScratch{Src: bpf.RegA, N: 1},
			bpf.LoadIndirect{Off: atLength + 1, Size: 1}, // the upper two bytes are 0: a datagram is shorter than 64 KiB
			bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 8},
			bpf.LoadScratch{Dst: bpf.RegX, N: 1},
			bpf.ALUOpX{Op: bpf.ALUOpOr},
			bpf.LoadScratch{Dst: bpf.RegX, N: 0},
		}
	}
	return append(p,
		bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: 3},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xfffffffc},
		bpf.ALUOpX{Op: bpf.ALUOpAdd},
		bpf.TAX{})
}

// loadCommand loads the low byte of nlmsg_type, at the start of the datagram or of the message at X.
func loadCommand(how bpf.Instruction) bpf.Instruction {
	at := uint32(atCommand)
	if !littleEndian() {
		at++
	}
	if _, absolute := how.(bpf.LoadAbsolute); absolute {
		return bpf.LoadAbsolute{Off: at, Size: 1}
	}
	return bpf.LoadIndirect{Off: at, Size: 1}
}

func word(s string) uint32 { return binary.BigEndian.Uint32([]byte(s)) }

// attrHead is the head of an attribute as a load of four bytes sees it.
func attrHead(length, kind uint16) uint32 {
	b := binary.NativeEndian.AppendUint16(nil, length)
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint16(b, kind))
}

func littleEndian() bool { return binary.NativeEndian.Uint16([]byte{1, 0}) == 1 }

// attach puts a filter on a socket.
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
