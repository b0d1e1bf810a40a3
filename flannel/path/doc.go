// Package path tells what happens to a typical packet on a node, and which rule decides. It walks the rules of every
// backend and every owner through the hooks in the order of their priorities, as the kernel does for the first packet of a
// connection.
//
// What cannot be told is never guessed: a condition that is not understood holds "maybe", both ways are followed, and the
// verdict is may unless both come to the same. The package is pure; whoever reads the kernel fills Tables and Facts.
package path
