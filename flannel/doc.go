// Package flannel holds what is known of Flannel's traces in the packet filter of a node, as pure data: identities of
// tables and chains, rules with one canonical text, the rule sets of every generation of Flannel, what a node's files say
// of its networks, and how the rules that are there differ from those that should be.
//
// Nothing here reads the kernel, a file or a clock.
package flannel
