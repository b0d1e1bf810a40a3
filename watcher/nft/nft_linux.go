// Package nft reads what Flannel keeps in nf_tables, written by iptables-nft or natively, and hears of every change to it.
//
// It speaks raw netlink on sockets that are opened once and kept: closing one waits for the commit mutex of its network
// namespace, seconds behind a large commit of somebody else. It asks (NFT_MSG_GET*) and listens, and writes nothing.
package nft

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack/nfnl"
	"flanwatch/flannel"
)

// What keeps this package from reading at all.
var (
	// ErrNotPresent: the kernel has no nf_tables, or has not loaded it. It is not asked for then, since asking loads it.
	ErrNotPresent = nfnl.ErrNotPresent
	// ErrPrivilege: the kernel answers only holders of CAP_NET_ADMIN in the user namespace that owns the network namespace.
	ErrPrivilege = nfnl.ErrPrivilege
	// ErrUnsettled: the ruleset was changed during every one of many attempts to read it whole.
	ErrUnsettled = errors.New("changed whenever it was read")
)

// watched lists the chains that are looked at: Flannel's own, and the base chains that jump to them or, before v0.20.0,
// held its rules.
func watched() []flannel.ChainID {
	var ids []flannel.ChainID
	for _, f := range flannel.Families {
		native := "flannel-ipv4"
		if f == flannel.IPv6 {
			native = "flannel-ipv6"
		}
		ids = append(ids,
			flannel.ChainID{Backend: flannel.IptablesNft, Family: f, Table: "nat", Name: "POSTROUTING"},
			flannel.ChainID{Backend: flannel.IptablesNft, Family: f, Table: "nat", Name: "FLANNEL-POSTRTG"},
			flannel.ChainID{Backend: flannel.IptablesNft, Family: f, Table: "filter", Name: "FORWARD"},
			flannel.ChainID{Backend: flannel.IptablesNft, Family: f, Table: "filter", Name: "FLANNEL-FWD"},
			flannel.ChainID{Backend: flannel.Nftables, Family: f, Table: native, Name: "postrtg"},
			flannel.ChainID{Backend: flannel.Nftables, Family: f, Table: native, Name: "forward"},
		)
	}
	slices.SortFunc(ids, flannel.ChainID.Compare)
	return ids
}

// protocol is the kernel's number of a family in nfgenmsg.
func protocol(f flannel.Family) byte {
	if f == flannel.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}
