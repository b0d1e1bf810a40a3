// Package reach reads the rules that a typical packet comes to, whoever wrote them, in both iptables backends and native
// tables: base chains first, and then those chains, sets, ipsets and maps alone that a walk through what was read so far asks
// for. Of tens of thousands of chains that kube-proxy writes these are some dozens.
package reach
