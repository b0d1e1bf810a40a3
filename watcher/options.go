// Package watcher runs the readers for one network namespace and hands out one stream of observations.
package watcher

import (
	"net/netip"
	"time"
)

// Options say what to watch.
type Options struct {
	NetNS    string        // name or path of a network namespace; "" is our own
	Root     string        // folder below which the node's files lie, "/" on the node itself
	State    string        // flanwatch's state directory, where the last good facts lie; "" for none
	Interval time.Duration // time between two readings of the counters

	// Given by a person for a node whose files tell nothing.
	Networks, Subnets []netip.Prefix
}
