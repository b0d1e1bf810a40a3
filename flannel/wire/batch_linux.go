package wire

import (
	"encoding/binary"
	"fmt"

	"flanwatch/flannel"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Batch is a transaction of nf_tables: the kernel carries out all of it or nothing, in one generation. Tables of both
// families may be in one batch. The zero Batch is empty and ready.
type Batch struct {
	messages   []netlink.Message
	what       []string // of each message, for errors
	generation []byte   // the attribute, empty where any generation will do
}

// RequireGeneration makes the kernel refuse the batch with ErrStale unless the ruleset is still of this generation.
func (b *Batch) RequireGeneration(id uint32) {
	var w writer
	w.number(unix.NFNL_BATCH_GENID, id)
	b.generation = w.buf
}

// Len is the number of changes.
func (b *Batch) Len() int { return len(b.messages) }

// AddTable makes a table, or leaves one that is there as it is.
func (b *Batch) AddTable(t flannel.TableID) {
	b.add(unix.NFT_MSG_NEWTABLE, netlink.Create, t.Family, "add table "+t.String(), func(w *writer) {
		w.text(unix.NFTA_TABLE_NAME, t.Name)
	})
}

// DeleteTable removes a table with all that is in it.
func (b *Batch) DeleteTable(t flannel.TableID) {
	b.add(unix.NFT_MSG_DELTABLE, 0, t.Family, "delete table "+t.String(), func(w *writer) {
		w.text(unix.NFTA_TABLE_NAME, t.Name)
	})
}

// AddChain makes a chain that is only jumped to, or leaves one that is there as it is.
func (b *Batch) AddChain(c flannel.ChainID) {
	b.add(unix.NFT_MSG_NEWCHAIN, netlink.Create, c.Family, "add chain "+c.String(), func(w *writer) { chain(w, c) })
}

// AddBaseChain makes a chain that the kernel calls. The error says that the hook or the policy is unknown.
func (b *Batch) AddBaseChain(c flannel.ChainID, base flannel.BaseChain) error {
	hook, ok := hooks[base.Hook]
	if !ok {
		return fmt.Errorf("add base chain %s: unknown hook %q", c, base.Hook)
	}
	policy, ok := policies[base.Policy]
	if !ok {
		return fmt.Errorf("add base chain %s: unknown policy %q", c, base.Policy)
	}
	b.add(unix.NFT_MSG_NEWCHAIN, netlink.Create, c.Family, "add base chain "+c.String(), func(w *writer) {
		chain(w, c)
		w.nest(unix.NFTA_CHAIN_HOOK, func() {
			w.number(unix.NFTA_HOOK_HOOKNUM, hook)
			w.number(unix.NFTA_HOOK_PRIORITY, uint32(base.Priority))
		})
		w.number(unix.NFTA_CHAIN_POLICY, policy)
		w.text(unix.NFTA_CHAIN_TYPE, base.Type)
	})
	return nil
}

var (
	hooks = map[string]uint32{
		"prerouting": unix.NF_INET_PRE_ROUTING, "input": unix.NF_INET_LOCAL_IN, "forward": unix.NF_INET_FORWARD,
		"output": unix.NF_INET_LOCAL_OUT, "postrouting": unix.NF_INET_POST_ROUTING,
	}
	policies = map[string]uint32{"accept": uint32(verdictAccept), "drop": uint32(verdictDrop)}
)

// DeleteChain removes a chain, which must be empty and not jumped to.
func (b *Batch) DeleteChain(c flannel.ChainID) {
	b.add(unix.NFT_MSG_DELCHAIN, 0, c.Family, "delete chain "+c.String(), func(w *writer) { chain(w, c) })
}

func chain(w *writer, c flannel.ChainID) {
	w.text(unix.NFTA_CHAIN_TABLE, c.Table)
	w.text(unix.NFTA_CHAIN_NAME, c.Name)
}

// FlushChain removes all rules of a chain.
func (b *Batch) FlushChain(c flannel.ChainID) {
	b.add(unix.NFT_MSG_DELRULE, 0, c.Family, "flush chain "+c.String(), func(w *writer) { ruleOf(w, c) })
}

// DeleteRule removes the rule with this handle.
func (b *Batch) DeleteRule(c flannel.ChainID, handle uint64) {
	what := fmt.Sprintf("delete rule %d of %s", handle, c)
	b.add(unix.NFT_MSG_DELRULE, 0, c.Family, what, func(w *writer) {
		ruleOf(w, c)
		w.long(unix.NFTA_RULE_HANDLE, handle)
	})
}

// AppendRule adds a rule, as Encode gives it, at the end of a chain.
func (b *Batch) AppendRule(c flannel.ChainID, exprs []byte) {
	b.addRule(netlink.Create|netlink.Append, c, 0, "append rule to ", exprs)
}

// PrependRule adds a rule at the start of a chain.
func (b *Batch) PrependRule(c flannel.ChainID, exprs []byte) {
	b.addRule(netlink.Create, c, 0, "insert rule at the start of ", exprs)
}

// AddRuleAfter adds a rule behind the one with this handle.
func (b *Batch) AddRuleAfter(c flannel.ChainID, handle uint64, exprs []byte) {
	b.addRule(netlink.Create|netlink.Append, c, handle, fmt.Sprintf("add rule after %d of ", handle), exprs)
}

func (b *Batch) addRule(flags netlink.HeaderFlags, c flannel.ChainID, position uint64, what string, exprs []byte) {
	b.add(unix.NFT_MSG_NEWRULE, flags, c.Family, what+c.String(), func(w *writer) {
		ruleOf(w, c)
		if position != 0 {
			w.long(unix.NFTA_RULE_POSITION, position)
		}
		w.raw(unix.NFTA_RULE_EXPRESSIONS|nested, exprs...)
	})
}

// Userdata gives the table, chain or rule that was added last the bytes that programs keep with it and the kernel does not
// read, such as a comment.
func (b *Batch) Userdata(data []byte) {
	if len(b.messages) == 0 || len(data) == 0 {
		return
	}
	m := &b.messages[len(b.messages)-1]
	if kind, ok := userdata[uint16(m.Header.Type)&0xff]; ok {
		w := writer{buf: m.Data}
		w.raw(kind, data...)
		m.Data = w.buf
	}
}

var userdata = map[uint16]uint16{
	unix.NFT_MSG_NEWTABLE: nftaTableUserdata, unix.NFT_MSG_NEWCHAIN: nftaChainUserdata, unix.NFT_MSG_NEWRULE: unix.NFTA_RULE_USERDATA,
}

// Attributes of linux/netfilter/nf_tables.h that package unix lacks.
const (
	nftaTableUserdata = 6
	nftaChainUserdata = 12
)

func ruleOf(w *writer, c flannel.ChainID) {
	w.text(unix.NFTA_RULE_TABLE, c.Table)
	w.text(unix.NFTA_RULE_CHAIN, c.Name)
}

func (b *Batch) add(kind uint16, flags netlink.HeaderFlags, f flannel.Family, what string, body func(*writer)) {
	w := writer{buf: header(protocolFamilies[f], 0)}
	body(&w)
	b.messages = append(b.messages, netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | netlink.HeaderType(kind), Flags: netlink.Request | flags},
		Data:   w.buf,
	})
	b.what = append(b.what, what)
}

var protocolFamilies = map[flannel.Family]uint8{flannel.IPv4: unix.NFPROTO_IPV4, flannel.IPv6: unix.NFPROTO_IPV6}

// header is struct nfgenmsg.
func header(family uint8, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
}

// Messages gives the whole transaction. Sequence numbers count from 1; the last change asks for an acknowledgement, which
// comes when the kernel has carried out all.
func (b *Batch) Messages() []netlink.Message {
	mark := func(kind uint16, data []byte) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request},
			Data:   append(header(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES), data...),
		}
	}
	all := []netlink.Message{mark(unix.NFNL_MSG_BATCH_BEGIN, b.generation)}
	all = append(all, b.messages...)
	if len(b.messages) > 0 {
		all[len(all)-1].Header.Flags |= netlink.Acknowledge
	}
	all = append(all, mark(unix.NFNL_MSG_BATCH_END, nil))
	for i := range all {
		all[i].Header.Sequence = uint32(i + 1)
		all[i].Header.Length = uint32(unix.NLMSG_HDRLEN + len(all[i].Data))
	}
	return all
}

// Bytes gives the transaction as it goes through a socket.
func (b *Batch) Bytes() []byte {
	var out []byte
	for _, m := range b.Messages() {
		out = binary.NativeEndian.AppendUint32(out, m.Header.Length)
		out = binary.NativeEndian.AppendUint16(out, uint16(m.Header.Type))
		out = binary.NativeEndian.AppendUint16(out, uint16(m.Header.Flags))
		out = binary.NativeEndian.AppendUint32(out, m.Header.Sequence)
		out = binary.NativeEndian.AppendUint32(out, m.Header.PID)
		out = append(out, m.Data...)
		for len(out)%4 != 0 {
			out = append(out, 0)
		}
	}
	return out
}
