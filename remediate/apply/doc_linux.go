// Package apply carries out plans of package remediate, verifies them and takes them back. Rules in nf_tables are changed
// by one netlink batch in one generation; those of iptables-legacy by that backend's own restore program, under its lock.
// Nothing is changed before a backup is on disk.
//
// Everything here works in the network namespace of the calling thread, which must be locked to its goroutine where that is
// not the process's own.
package apply
