// Package diagnose turns facts about a node into findings: what is wrong, how it is known, what it does to pods, and what
// can be done here. It is pure: the same facts give the same findings, live, from a recording and in a test.
package diagnose

import (
	"time"

	"flanwatch/conntrack"
	"flanwatch/flannel"
)

// Facts is everything that is known of a node at one moment.
type Facts struct {
	At       flannel.Time
	Node     flannel.Node
	Rules    map[flannel.Backend]flannel.Reading[flannel.Ruleset]
	Procs    flannel.Reading[[]Process]
	Links    flannel.Reading[[]Link]
	Problems []flannel.Problem

	Conntrack flannel.Reading[conntrack.Health] // counters of connection tracking
	Flows     flannel.Reading[conntrack.Survey] // what its entries say of pods; Unread unless somebody asked

	Paths   flannel.Reading[Paths]
	Around  Surroundings             // settings, routes and programs of the node
	Remains flannel.Reading[Remains] // what lies in files; Unread unless somebody asked
}

// ProcessKind tells what a process is to Flannel.
type ProcessKind string

// The programs that run Flannel.
const (
	ProcFlanneld ProcessKind = "flanneld"
	ProcK3s      ProcessKind = "k3s" // embeds Flannel
)

// Process is a process of the watched network namespace that runs Flannel.
type Process struct {
	PID     int
	Kind    ProcessKind
	Comm    string
	Cmdline []string
	Env     map[string]string // only FLANNELD_* and the like; nil where environ could not be read
	Started flannel.Time
	Version string // from the build information of its executable, "" if unknown

	Container Container
}

// Container is where a process runs, as its control group tells. The zero value is "in none".
type Container struct {
	ID  string // 64 hexadecimal digits
	Pod string // UID of the pod, "" if the container belongs to none
}

// Link is a network interface that Flannel or another network plugin makes.
type Link struct {
	Name string
	Type string // "vxlan", "bridge", …
	Up   bool
}

// Severity orders findings.
type Severity string

// The severities; the words are part of the JSON contract.
const (
	Critical Severity = "critical"
	Warning  Severity = "warning"
	Info     Severity = "info"
)

// Rank is 0 for the worst severity.
func (s Severity) Rank() int {
	switch s {
	case Critical:
		return 0
	case Warning:
		return 1
	}
	return 2
}

// Finding is one thing that is wrong, or worth saying.
type Finding struct {
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	Object   string   `json:"object"`
	Summary  string   `json:"summary"` // one sentence
	Detail   []string `json:"detail"`  // evidence
	Remedy   string   `json:"remedy"`  // "reapply", "purge", "unstick", "set" or "none"
	Refused  string   `json:"refused,omitempty"`

	Chain flannel.ChainID `json:"-"` // the chain concerned, zero if none
	Since flannel.Time    `json:"-"` // since when it holds, zero if unknown
}

// FlannelState says whether Flannel runs here.
type FlannelState string

// The states; the words are part of the JSON contract.
const (
	FlannelLive     FlannelState = "live"
	FlannelStarting FlannelState = "starting"
	FlannelCrashing FlannelState = "crash-looping"
	FlannelLeftover FlannelState = "leftover"
	FlannelAbsent   FlannelState = "absent"
	FlannelUnknown  FlannelState = "unknown"
)

// Flannel is what the facts say of Flannel itself.
type Flannel struct {
	State      FlannelState      `json:"state"`
	Dialect    string            `json:"dialect"` // "iptables", "nftables" or "none"
	Backends   []flannel.Backend `json:"backends"`
	Generation string            `json:"generation"`
	Version    string            `json:"version"`
	Evidence   []string          `json:"evidence"`
}

// History is what went before, as far as a finding needs it. The zero value is "one look, no history".
type History struct {
	FlannelStarts []flannel.Time                   // starts of Flannel's processes seen in the last five minutes
	Since         map[flannel.ChainID]flannel.Time // chains seen before: since when present or not, empty or not
	Resync        time.Duration                    // repair period seen, 0 if none was
	Flannel       Flannel                          // the last verdict that found a dialect in use
	Conntrack     conntrack.Trend                  // what the counters of connection tracking did in the last minute
	HostPorts     []Lost                           // chains of CNI's portmap that went with Flannel's and did not come back
	Stopped       flannel.Time                     // when the last process of Flannel went while we watched; zero if none did
	Flapping      map[flannel.ChainID]Flap         // chains that somebody damages again and again
}

// Flap is what a chain went through that somebody damages again and again. Starts and ends of Flannel are not counted, and
// neither is what flanwatch did itself.
type Flap struct {
	Times int           // damaged so often
	In    time.Duration // in the last so long
	By    string        // program that did it last, "" if unknown
}
