// Package journal keeps a stream of observations in files and gives it back as it was: folding what a journal tells leads
// to the same state as folding the stream itself did. The codec is pure; the files lie below it in a thin layer.
//
// A journal is one or more files of lines, each a JSON value. Lines that are objects stand for themselves:
//
//	{"schema":"flanwatch.journal/v1","version":…,"node":…,"boot":…,"session":…,"time":…,"part":1}
//	{"time":"WALL BOOT","commit":{…}}          any observation but rulesets, under the name of its kind
//	{"full":7,"time":…,"rules":{…}}            a ruleset in full: whenever it changed, and after each sync
//	{"counters":{"full":7,…},"time":…}         all counters of ruleset 7, once a minute
//	{"sync":true,"time":…}                     here a reader can start: full rulesets follow, and what is repeated for him:
//	{"carried":true,"time":…,"node":{…}}       the last fact of its kind again; whoever read it before passes it over
//	{"gap":{"lost":12,"why":…},"time":…}       observations that are missing here
//
// A time is written on both clocks, to the nanosecond: wall clock in UTC, then nanoseconds of CLOCK_BOOTTIME, then the session
// if it is not that of the header. Text that is no UTF-8 is written as a Go string literal, quotes included.
//
// Lines that are arrays of numbers say that nothing but counters changed since the last reading of a ruleset. They build on
// the lines before them:
//
//	[backend, boot, wall, generation, rule, packets, bytes, rule, packets, bytes, …]
//
// The backend is 1 for iptables-nft, 2 for iptables-legacy, 3 for nftables; boot is the number of nanoseconds since the line
// before, wall what the wall clock has moved beyond that, generation how far the ruleset's generation has moved; then, for
// each rule whose counter moved, its number in the last full ruleset and by how much. Zeros at the end are left out, so that
// "[3]" is a reading at the same moment as the line before in which nothing changed. In place of a backend, 4 stands for the
// counters of connection tracking: behind the times follow the differences of all of them.
package journal
