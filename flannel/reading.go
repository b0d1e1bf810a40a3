package flannel

import "time"

// Time is a moment on two clocks. Wall is for people; Boot (CLOCK_BOOTTIME, which counts on in suspend and is not set by
// anybody) is for differences. Boot values compare only within one Session: a boot of the machine, watched by one process.
type Time struct {
	Wall    time.Time     `json:"wall"`
	Boot    time.Duration `json:"boot"`
	Session string        `json:"session"`
}

// IsZero tells whether no moment is known.
func (t Time) IsZero() bool { return t.Wall.IsZero() && t.Boot == 0 }

// Sub is the time from u to t: by the boot clock within one session, else by the wall clock.
func (t Time) Sub(u Time) time.Duration {
	if t.Session == u.Session {
		return t.Boot - u.Boot
	}
	return t.Wall.Sub(u.Wall)
}

// Add moves both clocks.
func (t Time) Add(d time.Duration) Time {
	return Time{Wall: t.Wall.Add(d), Boot: t.Boot + d, Session: t.Session}
}

// ReadState tells why a value is there or missing.
type ReadState uint8

// The states of a reading. The zero value is "nobody has looked yet".
const (
	Unread     ReadState = iota // not looked at (yet, or here)
	Known                       // Value holds what was read
	Absent                      // looked, and the thing does not exist
	Unreadable                  // looked, and could not tell; Why says what stood in the way
)

var readStateNames = map[ReadState]string{Unread: "unread", Known: "known", Absent: "absent", Unreadable: "unreadable"}

// String gives the state as a word.
func (s ReadState) String() string { return readStateNames[s] }

// MarshalText writes the state as a word.
func (s ReadState) MarshalText() ([]byte, error) { return marshalName(s, readStateNames) }

// UnmarshalText reads the state from its word.
func (s *ReadState) UnmarshalText(text []byte) error { return unmarshalName(s, text, readStateNames) }

// Reading is a value that knows why it is missing: missing is not zero.
type Reading[T any] struct {
	Value  T         `json:"value"`
	State  ReadState `json:"state"`
	Why    string    `json:"why,omitempty"`    // for Absent and Unreadable: one clause, lower case
	Source string    `json:"source,omitempty"` // where it was looked for: a path, a socket, a flag
	At     Time      `json:"at"`               // when it was read; for a file, the time of reading, not of writing
}

// Know is a reading that succeeded.
func Know[T any](v T, source string, at Time) Reading[T] {
	return Reading[T]{Value: v, State: Known, Source: source, At: at}
}

// Miss is a reading that did not.
func Miss[T any](state ReadState, why, source string, at Time) Reading[T] {
	return Reading[T]{State: state, Why: why, Source: source, At: at}
}

// Get gives the value and whether it is known.
func (r Reading[T]) Get() (T, bool) { return r.Value, r.State == Known }
