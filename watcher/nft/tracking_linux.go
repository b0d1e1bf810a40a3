package nft

import (
	"fmt"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack/nfnl"
	"flanwatch/flannel"
	"flanwatch/flannel/wire"
)

// Tracking tells for which families some rule makes the kernel track connections, in whatever table it stands. It stops
// reading once it knows of both. A rule counts wherever it stands: the kernel tracks from the moment that it is made.
func (b *Browser) Tracking() (map[flannel.Family]bool, error) {
	sock := b.reader.socket
	if err := sock.send(request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC)); err != nil {
		return nil, fmt.Errorf("look for rules that track connections: %w", nfnl.Explain(err))
	}
	found := map[flannel.Family]bool{}
	for !found[flannel.IPv4] || !found[flannel.IPv6] {
		m, err := sock.receive()
		if err != nil {
			return nil, fmt.Errorf("look for rules that track connections: %w", nfnl.Explain(err))
		}
		if m.kind == unix.NLMSG_DONE {
			break
		}
		if m.kind != kindOf(unix.NFT_MSG_NEWRULE) {
			continue
		}
		for _, f := range familiesOf(m.family) {
			found[f] = found[f] || tracks(m.body)
		}
	}
	return found, nil
}

func familiesOf(protocol byte) []flannel.Family {
	switch protocol {
	case unix.NFPROTO_IPV4:
		return []flannel.Family{flannel.IPv4}
	case unix.NFPROTO_IPV6:
		return []flannel.Family{flannel.IPv6}
	case unix.NFPROTO_INET:
		return flannel.Families
	}
	return nil
}

func tracks(rule []byte) bool {
	for a := (attributes{rest: rule}); a.next(); {
		if a.kind == unix.NFTA_RULE_EXPRESSIONS {
			return wire.Tracks(a.data)
		}
	}
	return false
}
