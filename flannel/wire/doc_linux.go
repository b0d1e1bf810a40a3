// Package wire is the codec between a flannel.Rule and the nf_tables expressions that the kernel keeps for it, both ways,
// and builds the netlink batches that write rules. It is pure, bytes in and bytes out, but for Commit, which sends a batch
// through a socket that the caller opened.
package wire
