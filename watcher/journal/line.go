package journal

import (
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// Schema names the format.
const Schema = "flanwatch.journal/v1"

// Header opens a file, and every session of watching in it.
type Header struct {
	Schema  string       `json:"schema"`
	Version string       `json:"version"` // of flanwatch
	Node    string       `json:"node"`
	BootID  string       `json:"boot"`    // of the machine
	Session string       `json:"session"` // of flannel.Time
	Time    flannel.Time `json:"time"`
	Kernel  string       `json:"kernel"` // release of the node's kernel
	OS      string       `json:"os"`     // name of the node's system, as a person would say it
	Part    int          `json:"part"`   // number of the file within the session, from 1
}

// Gap says that observations are missing.
type Gap struct {
	Lost int          `json:"lost"`
	Why  string       `json:"why"`
	From flannel.Time `json:"from"` // when the first of them was made
}

// entry is a line that is an object and no header. With Sync and Gap, the observation is nothing but a time.
type entry struct {
	Sync     bool      `json:"sync"`
	Carried  bool      `json:"carried"` // the observation is repeated for those who start reading here
	Gap      *Gap      `json:"gap"`
	Full     uint64    `json:"full"` // number of the ruleset that the observation holds in full
	Counters *counters `json:"counters"`
	Patch    string    `json:"patch"`  // see survey
	Packed   string    `json:"packed"` // another line, deflated and in base64
	incident.Observation
}

// counters are all values of a ruleset that was written in full before.
type counters struct {
	Full       uint64   `json:"full"`
	Generation uint32   `json:"generation"`
	Values     []uint64 `json:"values"` // packets and bytes of each rule, chain by chain
}

// reading is the last ruleset of one backend, kept by the writer and by the reader to tell the next one as a difference.
type reading struct {
	incident.RulesRead
	full  uint64 // number of the line that holds it in full, 0 if there is none yet
	whole bool   // no line between that one and the last is missing
}

// each calls do for every rule of the ruleset, in the order of the format.
func (r *reading) each(do func(i int, e *flannel.Entry)) {
	n := 0
	for i := range r.Ruleset.Value.Chains {
		entries := r.Ruleset.Value.Chains[i].Entries
		for j := range entries {
			do(n, &entries[j])
			n++
		}
	}
}

// slot is the place of a backend in an array, -1 if the format has no number for it.
func slot(b flannel.Backend) int {
	if b < 1 || int(b) > len(flannel.Backends) {
		return -1
	}
	return int(b) - 1
}

// backends is one reading for each backend.
type backends [3]reading

// Years in which nanoseconds since 1970 fit into 64 bits, with room to spare.
const minYear, maxYear = 1700, 2200

// countable tells whether a moment can be written as a difference in nanoseconds.
func countable(t flannel.Time) bool {
	y := t.Wall.Year()
	return y > minYear && y < maxYear
}

// after gives the moment that lies boot behind t on one clock and boot+wall on the other.
func after(t flannel.Time, boot, wall int64) flannel.Time {
	ns := t.Wall.UnixNano() + boot + wall
	return flannel.Time{Wall: time.Unix(0, ns).UTC(), Boot: t.Boot + time.Duration(boot), Session: t.Session}
}
