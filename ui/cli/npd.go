package cli

import (
	"fmt"
	"slices"
	"strings"

	"flanwatch/watcher/diagnose"
)

// npdBytes is what node-problem-detector keeps of a plugin's output unless it is told otherwise. It cuts bytes, not letters.
const npdBytes = 80

// npdHealthy is what the conditions of a healthy node say.
var npdHealthy = map[diagnose.Group]string{
	"":                       "flannel's rules are as expected",
	diagnose.GroupMasquerade: "flannel's masquerade rules are as expected",
	diagnose.GroupForward:    "flannel's forward rules are as expected",
	diagnose.GroupLeftovers:  "no rules that flannel left",
	diagnose.GroupReaders:    "every source can be read",
}

// only leaves of a report what concerns one part of the verdict. Asked for readers, what cannot be read is the finding.
func (r report) only(g diagnose.Group) report {
	if g == "" {
		return r
	}
	kept := []diagnose.Finding{}
	for _, f := range r.Findings {
		if f.In(g) {
			kept = append(kept, f)
		}
	}
	r.Findings = kept
	r.Unreadable = slices.DeleteFunc(slices.Clone(r.Unreadable), func(u unreadable) bool {
		return g != diagnose.GroupReaders && u.of == diagnose.GroupConntrack
	})
	if g == diagnose.GroupReaders {
		for _, u := range r.Unreadable {
			r.Findings = append(r.Findings, diagnose.Finding{
				ID: "cannot-read", Severity: diagnose.Warning, Object: u.What, Remedy: diagnose.RemedyNone, Detail: []string{},
				Summary: fmt.Sprintf("%s cannot be read: %s", u.What, u.Why),
			})
		}
	}
	return r
}

// npd says the same in one line of ASCII, what and where first, at most 80 bytes. There are no counts in its first words:
// node-problem-detector would take another count for another problem.
func (r report) npd(g diagnose.Group) string {
	var line string
	more := 0
	for _, f := range r.Findings {
		switch {
		case f.Severity == diagnose.Info:
		case line == "":
			line = f.ID + " " + f.Object
		default:
			more++
		}
	}
	tail := ""
	switch {
	case more > 0:
		tail = fmt.Sprintf(" and %d more", more)
	case line != "":
	case len(r.Unreadable) > 0:
		line = "cannot read " + r.Unreadable[0].What + ": " + r.Unreadable[0].Why
	default:
		line = npdHealthy[g]
	}
	line = ascii(line)
	if room := npdBytes - len(tail); len(line) > room {
		line = line[:room-1] + "~"
	}
	return line + tail
}

// ascii replaces what is no printable ASCII.
func ascii(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}
