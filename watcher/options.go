// Package watcher runs the readers for one network namespace and hands out one stream of observations.
package watcher

import (
	"net/netip"
	"time"

	"flanwatch/watcher/probe"
)

// Options say what to watch.
type Options struct {
	NetNS    string        // name or path of a network namespace; "" is our own
	Root     string        // folder below which the node's files lie, "/" on the node itself
	State    string        // flanwatch's state directory, where the last good facts lie; "" for none
	Interval time.Duration // time between two readings of the counters

	Probe *ProbeOptions // connections to try all the time, nil for none

	// Given by a person for a node whose files tell nothing.
	Networks, Subnets []netip.Prefix
}

// ProbeOptions say what to connect to, and from where.
type ProbeOptions struct {
	Target probe.Target
	From   string        // a pod's address, network namespace (name or path) or process number
	Every  time.Duration // between two attempts; 0 is ten times a second
}
