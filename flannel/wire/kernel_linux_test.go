package wire_test

import (
	"testing"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
	"flanwatch/watcher/lab/labtest"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// kernel is a namespace with an nf_tables socket in it.
type kernel struct {
	*labtest.Namespace
	t    testing.TB
	conn *netlink.Conn
}

func newKernel(t testing.TB) *kernel {
	n := labtest.New(t)
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: n.FD()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &kernel{n, t, conn}
}

// commit sends a batch that must succeed.
func (k *kernel) commit(b *wire.Batch) {
	k.t.Helper()
	if err := wire.Commit(k.conn, b); err != nil {
		k.t.Fatal(err)
	}
}

// entry is what the kernel holds of one rule.
type entry struct {
	handle uint64
	exprs  []byte
}

// dump reads the rules of a chain.
func (k *kernel) dump(c flannel.ChainID) []entry {
	k.t.Helper()
	family := map[flannel.Family]byte{flannel.IPv4: unix.NFPROTO_IPV4, flannel.IPv6: unix.NFPROTO_IPV6}[c.Family]
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_RULE_TABLE, Data: append([]byte(c.Table), 0)}, {Type: unix.NFTA_RULE_CHAIN, Data: append([]byte(c.Name), 0)},
	})
	if err != nil {
		k.t.Fatal(err)
	}
	messages, err := k.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{family, 0, 0, 0}, attrs...),
	})
	if err != nil {
		k.t.Fatal(err)
	}
	var entries []entry
	for _, m := range messages {
		ad, err := netlink.NewAttributeDecoder(m.Data[4:])
		if err != nil {
			k.t.Fatal(err)
		}
		var e entry
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_RULE_HANDLE:
				for _, b := range ad.Bytes() {
					e.handle = e.handle<<8 | uint64(b)
				}
			case unix.NFTA_RULE_EXPRESSIONS:
				e.exprs = ad.Bytes()
			}
		}
		entries = append(entries, e)
	}
	return entries
}
