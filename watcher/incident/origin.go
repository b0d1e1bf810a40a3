package incident

import "flanwatch/watcher/diagnose"

// Certainty tells how far a fact about a program can be trusted.
type Certainty string

// The certainties. A fact without one is not known.
const (
	Exact    Certainty = "exact"    // it cannot be another program's
	Estimate Certainty = "estimate" // most likely, but the program was not seen at the moment itself
)

// Fact is something known of a program, and how.
type Fact[T any] struct {
	Value     T         `json:"value"`
	Certainty Certainty `json:"certainty,omitempty"`
	How       string    `json:"how,omitempty"` // one clause; where nothing is known, why
}

// Ancestor is a program that started another.
type Ancestor struct {
	PID     int      `json:"pid"`
	Comm    string   `json:"comm"`
	Cmdline []string `json:"cmdline,omitempty"`
}

// Origin is what is known of a program beyond its number and name.
type Origin struct {
	Cmdline   Fact[[]string]           `json:"cmdline"`
	Parents   Fact[[]Ancestor]         `json:"parents"` // nearest first
	Container Fact[diagnose.Container] `json:"container"`
}
