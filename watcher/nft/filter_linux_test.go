package nft

import (
	"encoding/binary"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// announce builds a message as the kernel sends it, with attributes in the given order.
func announce(command uint16, family byte, attrs ...[]byte) []byte {
	b := request(command, 0, family)
	for _, a := range attrs {
		b = append(b, a...)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	return b
}

func textAttr(kind uint16, text string) []byte { return attr(kind, append([]byte(text), 0)) }

func numberAttr(kind uint16, n uint64) []byte {
	return attr(kind, binary.BigEndian.AppendUint64(nil, n))
}

func wordAttr(kind uint16, n uint32) []byte { return attr(kind, binary.BigEndian.AppendUint32(nil, n)) }

func attr(kind uint16, data []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(data)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), data...)
	return append(b, make([]byte, align(len(b))-len(b))...)
}

func ruleMessage(command uint16, table, chain string, handle uint64) []byte {
	return announce(command, unix.NFPROTO_IPV4, textAttr(unix.NFTA_RULE_TABLE, table), textAttr(unix.NFTA_RULE_CHAIN, chain),
		numberAttr(unix.NFTA_RULE_HANDLE, handle))
}

func chainMessage(command uint16, table, chain string, handle uint64) []byte {
	return announce(command, unix.NFPROTO_IPV4, textAttr(unix.NFTA_CHAIN_TABLE, table), textAttr(unix.NFTA_CHAIN_NAME, chain),
		numberAttr(unix.NFTA_CHAIN_HANDLE, handle))
}

// oldChainMessage has the order of attributes of older kernels.
func oldChainMessage(command uint16, table, chain string, handle uint64) []byte {
	return announce(command, unix.NFPROTO_IPV4, textAttr(unix.NFTA_CHAIN_TABLE, table), numberAttr(unix.NFTA_CHAIN_HANDLE, handle),
		textAttr(unix.NFTA_CHAIN_NAME, chain))
}

func tableMessage(command uint16, name string) []byte {
	const handle = 4 // NFTA_TABLE_HANDLE
	return announce(command, unix.NFPROTO_IPV4, textAttr(unix.NFTA_TABLE_NAME, name), numberAttr(handle, 7))
}

func generationMessage(gen, pid uint32, comm string) []byte {
	return announce(unix.NFT_MSG_NEWGEN, unix.NFPROTO_UNSPEC, wordAttr(unix.NFTA_GEN_ID, gen),
		wordAttr(unix.NFTA_GEN_PROC_PID, pid), textAttr(unix.NFTA_GEN_PROC_NAME, comm))
}

func TestFilterLetsThroughWhatIsAboutFlannel(t *testing.T) {
	const add, del = unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE
	kube := ruleMessage(add, "nat", "KUBE-SERVICES", 3)
	many := func(n int, m []byte) string { return strings.Repeat(string(m), n) }
	short := chainMessage(unix.NFT_MSG_DELCHAIN, "nat", "A", 3)
	for _, test := range []struct {
		name     string
		datagram string
		want     bool
	}{
		{"end of a commit", string(generationMessage(5, 1, "iptables")), true},
		{"masquerade rule", string(ruleMessage(add, "nat", "FLANNEL-POSTRTG", 3)), true},
		{"hook", string(ruleMessage(del, "nat", "POSTROUTING", 3)), true},
		{"forward rule", string(ruleMessage(del, "filter", "FLANNEL-FWD", 3)), true},
		{"forward hook", string(ruleMessage(add, "filter", "FORWARD", 3)), true},
		{"native rule", string(ruleMessage(add, "flannel-ipv6", "postrtg", 3)), true},
		{"native table", string(tableMessage(unix.NFT_MSG_DELTABLE, "flannel-ipv4")), true},
		{"chain", string(chainMessage(unix.NFT_MSG_DELCHAIN, "nat", "FLANNEL-POSTRTG", 3)), true},
		{"chain, older kernel", string(oldChainMessage(unix.NFT_MSG_DELCHAIN, "nat", "FLANNEL-POSTRTG", 3)), true},
		{"base chain, older kernel", string(oldChainMessage(unix.NFT_MSG_NEWCHAIN, "filter", "FORWARD", 3)), true},
		{"table nat", string(tableMessage(unix.NFT_MSG_DELTABLE, "nat")), true},
		{"table filter", string(tableMessage(unix.NFT_MSG_NEWTABLE, "filter")), true},
		{"behind foreign messages", many(9, kube) + string(ruleMessage(del, "nat", "FLANNEL-POSTRTG", 3)), true},
		{"in front of foreign messages", string(ruleMessage(del, "nat", "FLANNEL-POSTRTG", 3)) + many(9, kube), true},
		{
			"behind the most messages that a datagram of one page holds",
			many(filterSteps[0]-1, short) + string(ruleMessage(del, "nat", "FLANNEL-POSTRTG", 3)), true,
		},
		{"more messages than the walk is long", many(filterSteps[0]+1, short), true},

		{"foreign rule", string(kube), false},
		{"foreign rules", many(9, kube), false},
		{"as many foreign messages as the walk is long", many(filterSteps[0], short), false},
		{"foreign chain", string(chainMessage(unix.NFT_MSG_NEWCHAIN, "nat", "KUBE-SEP-X", 3)), false},
		{"foreign chain, older kernel", string(oldChainMessage(unix.NFT_MSG_NEWCHAIN, "nat", "KUBE-SEP-X", 3)), false},
		{"foreign base chain", string(ruleMessage(add, "nat", "PREROUTING", 3)), false},
		{"foreign base chain of filter", string(ruleMessage(add, "filter", "INPUT", 3)), false},
		{"foreign table", string(ruleMessage(add, "kube-proxy", "FLANNEL-POSTRTG", 3)), false},
		{"table whose name only begins like nat", string(ruleMessage(add, "nat2", "FLANNEL-POSTRTG", 3)), false},
		{"table mangle", string(tableMessage(unix.NFT_MSG_NEWTABLE, "mangle")), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			vm, err := bpf.NewVM(filterProgram(filterSteps[0]))
			if err != nil {
				t.Fatal(err)
			}
			n, err := vm.Run([]byte(test.datagram))
			if err != nil || (n > 0) != test.want {
				t.Errorf("let through: %v, %v; want %v", n > 0, err, test.want)
			}
		})
	}
}

func TestFilterFitsTheKernelsLimit(t *testing.T) {
	const limit = 4096 // BPF_MAXINSNS
	if n := len(filterProgram(filterSteps[0])); n > limit {
		t.Errorf("the filter has %d instructions, more than %d", n, limit)
	}
}
