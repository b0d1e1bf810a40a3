// Package conntrack knows the kernel's connection tracking: how full and how well the table is, which pod connections keep
// a translation that they should not have or lack the one they should, and what a deletion would do. It is pure; package
// ctnl below it reads the kernel.
package conntrack
