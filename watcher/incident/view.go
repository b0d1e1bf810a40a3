package incident

import (
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// View is an immutable picture of the state for one frame.
type View struct {
	Now      flannel.Time
	Started  flannel.Time // first observation
	Bucket   int64        // newest bucket that can hold a value: the `now` of Series.Window
	Node     flannel.Node
	Flannel  diagnose.Flannel
	Backends []BackendView
	Chains   []ChainView        // sorted by ID
	Findings []diagnose.Finding // worst first

	Leftovers []diagnose.Remain         // what Flannel left, piece by piece
	Hunted    flannel.Reading[struct{}] // whether files were looked through, and when
	Settings  []diagnose.Setting        // switches of the kernel

	Events []Event   // oldest first
	Faults []Fault   // open ones
	Table  TableView // connection tracking
	Paths  PathsView
	Probe  *ProbeView // nil while no connection has been tried

	Incidents []Incident // oldest first; open ones count on with Duration(Now)

	Bases  []BasesView // of each backend that was looked at, in display order; empty while nobody looks
	Opened *OpenedView // the chain that somebody opened, nil if there is none
}

// PathsView is what becomes of typical packets.
type PathsView struct {
	State flannel.ReadState
	Why   string
	Read  flannel.Time // when it last came out otherwise
	List  []diagnose.Path
}

// BackendView is the health of one reader.
type BackendView struct {
	Backend    flannel.Backend
	State      flannel.ReadState
	Why        string
	Generation uint32
	Read       flannel.Time // last successful read
}

// ChainView is one row of the screen.
type ChainView struct {
	ID      flannel.ChainID
	State   flannel.ChainState
	Since   flannel.Time // since when it is in that state
	Wanted  int
	Found   int
	Hook    flannel.Hook
	Counted bool            // false: its rules have no counters
	Rate    Rate            // of all its rules together
	Total   flannel.Counter // accumulated while watching: never falls, survives re-created rules
	History Series          // packets (nat: connections) a second, one value a second
	Lane    []Span          // states over time, oldest first
	Rules   []RuleView
}

// RuleView is one line of the rules panel.
type RuleView struct {
	flannel.RuleDiff
	Counted bool
	Counter flannel.Counter // as the kernel has it now
	Total   flannel.Counter // of rules of this text, accumulated while watching: never falls while the rule is there
	Rate    Rate
}

// Rate is a speed that may be unknown.
type Rate struct {
	Known   bool
	Packets float64 // per second; in nat tables these are connections
	Bytes   float64 // per second
}

// Span says that a chain was in State from From on, until the next span.
type Span struct {
	From  flannel.Time
	State flannel.ChainState
}

// EventKind is the sort of an event.
type EventKind string

// The events.
const (
	EventEmptied   EventKind = "emptied"
	EventRefilled  EventKind = "refilled"
	EventDeleted   EventKind = "deleted"
	EventCreated   EventKind = "created"
	EventHookLost  EventKind = "hook-lost"
	EventHookBack  EventKind = "hook-back"
	EventChanged   EventKind = "rules-changed"
	EventRestarted EventKind = "counters-restarted"
	EventReadFail  EventKind = "reader-failed"
	EventReadBack  EventKind = "reader-back"
	EventUncertain EventKind = "changes-lost"
	EventSetting   EventKind = "setting-changed"
	EventAction    EventKind = "action" // of flanwatch itself
)

// Event is something derived from observations that a person wants to see.
type Event struct {
	Time       flannel.Time      `json:"time"`
	Kind       EventKind         `json:"kind"`
	Severity   diagnose.Severity `json:"severity"`
	Chain      flannel.ChainID   `json:"chain,omitzero"`   // zero if it concerns no chain
	Text       string            `json:"text"`             // one clause without the time and without who
	Who        *Who              `json:"who"`              // nil if unknown
	Generation uint32            `json:"generation"`       // of the ruleset in which it was seen, 0 if it has none
	Chains     []flannel.ChainID `json:"chains,omitempty"` // of an action: all that it concerns
}

// Step is the width of one bucket of a Series.
const Step = time.Second
