// Package legacy reads Flannel's chains out of the tables of iptables-legacy, and hears of changes to them.
//
// A table is read by getsockopt on a plain socket that is kept open: no program is started, no lock is taken, no counter is
// reset. As merely asking the kernel for a table creates it, a table is asked for only while /proc lists it.
//
// The kernel tells nobody of changes to these tables; LockWatch hears of them through the lock file that every
// iptables-legacy holds while it works.
package legacy
