// Package incident folds observations into state: rates, events, incidents, and a picture of it all for a frame. It is
// pure: no IO, no clock, no goroutine. Live watching, replay, one-shot checks and tests use the same fold.
package incident

import (
	"time"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// Observation is one fact from outside with its time: exactly one of the pointers is set. It holds raw counters, never
// rates, so that a better rule for rates works on old recordings too.
//
// An observation and what it points to belong to the sender and are valid only during the call that hands it over.
type Observation struct {
	Time    flannel.Time
	Rules   *RulesRead                           // a ruleset was read, or could not be
	Commit  *Commit                              // a change was announced
	Node    *flannel.Node                        // the node's configuration was read
	Procs   *flannel.Reading[[]diagnose.Process] // Flannel's processes were looked for
	Links   *flannel.Reading[[]diagnose.Link]    // network interfaces were looked for
	Table   *flannel.Reading[conntrack.Health]   // the counters of connection tracking were read
	Flows   *flannel.Reading[conntrack.Survey]   // every connection was looked at
	Paths   *flannel.Reading[diagnose.Paths]     // what becomes of typical packets was worked out from the rules of all owners
	Bases   *BasesRead                           // the base chains of a backend were read for somebody who looks at them
	Opened  *OpenedRead                          // the chain that somebody opened was read
	Around  *diagnose.Surroundings               // settings, routes and programs of the node were looked at
	Remains *flannel.Reading[diagnose.Remains]   // files were looked through, because somebody asked
	Fault   *Fault                               // watching itself is in trouble, or well again
	Probe   *Probe                               // a connection was tried from inside a pod
	Action  *Action                              // flanwatch itself did something, or refused to
}

// Probe is one attempt to connect from inside a pod's network namespace, made of a new source port. Its observation is made
// when it is over. While all is well, several successful attempts in a row are told at once.
type Probe struct {
	Target string        // tcp://ADDRESS:PORT and so on
	From   string        // the pod, as it was named
	Took   time.Duration // until there was an answer, or none was waited for any more; of several the median
	Why    string        // why there was no answer, "" where there was one

	Count int           // attempts, 0 for one
	Max   time.Duration // of several, the longest time until there was an answer
	First time.Duration // how long ago the first of several began
	Last  time.Duration // how long ago the last one did
}

// RulesRead is one read of one backend. While only counters change, Ruleset.Value keeps its Revision.
type RulesRead struct {
	Backend flannel.Backend
	Ruleset flannel.Reading[flannel.Ruleset]
}

// Commit is a change of a ruleset as announced by the kernel. Both nf_tables backends share one sequence of commits: Backend
// is Nftables where only Flannel's native tables were touched, IptablesNft otherwise, and each change names its own.
type Commit struct {
	Backend    flannel.Backend
	Generation uint32
	Who        Who
	Lost       bool          // announcements were lost: what happened since the last commit is uncertain, read again
	Tables     []TableChange // of the tables that Flannel uses
	Changes    []ChainChange // of the chains that Flannel uses, in the order in which they were first touched
}

// TableChange is what one commit did to a table. Neither Created nor Deleted: its flags were set (dormant or not).
type TableChange struct {
	Table   flannel.TableID
	Created bool
	Deleted bool
}

// ChainChange is what one commit did to a chain. One that was deleted and made again in the same commit is Created. With
// nothing set and no rules, the chain's own settings were written (its policy).
type ChainChange struct {
	Chain   flannel.ChainID
	Created bool          // the chain is new
	Deleted bool          // the chain is gone after the commit
	Removed []RuleRemoved // in order
	Added   []RuleAdded   // in order; a rule that was replaced or whose counter was zeroed is in both, with one handle
	Rules   int           // rules in the chain after the commit, -1 if unknown
}

// RuleAdded is a rule that a commit put into a chain.
type RuleAdded struct {
	Handle uint64
	After  uint64 // handle of the rule before it, 0 if it became the first or the last
	Last   bool   // it was appended: with After 0 it became the last
	Body   uint64 // as in flannel.Entry
}

// RuleRemoved is a rule that a commit took out, with the last value of its counter.
type RuleRemoved struct {
	Handle  uint64
	Body    uint64
	Counter flannel.Counter // meaningless unless Counted
	Counted bool
}

// Who names a program that changed something.
type Who struct {
	PID  int    `json:"pid"`  // number in the initial PID namespace, 0 if unknown
	Comm string `json:"comm"` // the kernel's name of it, at most 15 bytes, unsanitized

	Origin *Origin `json:"origin,omitempty"` // what was found out beyond that, nil if nobody asked
}

// Fault is trouble of the watcher itself.
type Fault struct {
	Reader string // "nft", "legacy", "namespace", …
	Why    string // "" when it is over
}
