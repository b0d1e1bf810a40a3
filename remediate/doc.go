// Package remediate plans changes of what Flannel keeps in the packet filter: putting its rules back, removing what it left,
// and undoing either. A plan is a value made of facts alone; the same facts give the same plan with the same ID. Nothing here
// reads or writes the kernel or a file: package apply carries plans out.
//
// A plan touches only rules and chains of Flannel: never those of others, never a policy, and it never writes a table anew.
package remediate
