// Package incident folds observations into state: rates, events, incidents, and a picture of it all for a frame. It is
// pure: no IO, no clock, no goroutine. Live watching, replay, one-shot checks and tests use the same fold.
package incident

import (
	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// Observation is one fact from outside with its time: exactly one of the pointers is set. It holds raw counters, never
// rates, so that a better rule for rates works on old recordings too.
//
// An observation and what it points to belong to the sender and are valid only during the call that hands it over.
type Observation struct {
	Time   flannel.Time
	Rules  *RulesRead                           // a ruleset was read, or could not be
	Commit *Commit                              // a change was announced
	Node   *flannel.Node                        // the node's configuration was read
	Procs  *flannel.Reading[[]diagnose.Process] // Flannel's processes were looked for
	Links  *flannel.Reading[[]diagnose.Link]    // network interfaces were looked for
	Fault  *Fault                               // watching itself is in trouble, or well again
}

// RulesRead is one read of one backend. While only counters change, Ruleset.Value keeps its Revision.
type RulesRead struct {
	Backend flannel.Backend
	Ruleset flannel.Reading[flannel.Ruleset]
}

// Commit is a change of a ruleset as announced by the kernel.
type Commit struct {
	Backend    flannel.Backend
	Generation uint32
	Who        Who
}

// Who names a program that changed something.
type Who struct {
	PID  int    // number in the initial PID namespace, 0 if unknown
	Comm string // the kernel's name of it, at most 15 bytes, unsanitized

	Origin *Origin // what was found out beyond that, nil if nobody asked
}

// Fault is trouble of the watcher itself.
type Fault struct {
	Reader string // "nft", "legacy", "namespace", …
	Why    string // "" when it is over
}
