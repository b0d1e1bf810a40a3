package ctnl

import "flanwatch/conntrack/nfnl"

// What keeps this package from reading at all.
var (
	// ErrNotPresent: the kernel has no conntrack netlink, or has not loaded it. It is not asked for then: asking loads it.
	ErrNotPresent = nfnl.ErrNotPresent
	// ErrPrivilege: the kernel answers only holders of CAP_NET_ADMIN in the user namespace that owns the network namespace.
	ErrPrivilege = nfnl.ErrPrivilege
)
