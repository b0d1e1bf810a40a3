// Package ctnl reads the kernel's connection tracking table through netlink, hears of new entries, and deletes single ones.
//
// Sockets are opened once and kept: closing one waits for the commit mutex of its network namespace, seconds behind a large
// nf_tables commit of somebody else. Nothing is ever switched on: no accounting, no setting, no module.
package ctnl
