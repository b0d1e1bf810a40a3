package incident

import (
	"slices"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// Action is a stage of something that flanwatch itself did to the packet filter of this node, or refused to do. The command
// or screen that does it writes it down; whoever watches reads it there. Its JSON keys are those of that file.
type Action struct {
	Plan    string            `json:"plan"`
	Kind    string            `json:"kind"`    // "reapply", "purge", "undo", …
	Title   string            `json:"title"`   // the change in words
	Receipt string            `json:"receipt"` // what undoes it, "" where nothing was begun
	Undoes  string            `json:"undoes"`  // the receipt that it takes back, "" for none
	Result  ActionResult      `json:"result"`
	Why     string            `json:"why"`  // what went wrong, or what was seen
	User    string            `json:"user"` // the person's login, "" if unknown
	Chains  []flannel.ChainID `json:"chains"`
	Who     Who               `json:"who"`
}

// ActionResult says how far an action came.
type ActionResult string

// The results. Those of a receipt have its words.
const (
	ActionStarted    ActionResult = "started"
	ActionVerified   ActionResult = "verified"
	ActionUnverified ActionResult = "unverified" // carried out, and not found so
	ActionFailed     ActionResult = "failed"     // the state is that of before
	ActionUndone     ActionResult = "undone"     // taken back by another action
	ActionRefused    ActionResult = "refused"    // nothing was begun
	ActionLasting    ActionResult = "lasting"    // a second look, later, found it so still
	ActionGone       ActionResult = "gone"       // a second look found it otherwise
)

// actionWords put a result into a clause behind the verb; what is missing here is told by another action.
var actionWords = map[ActionResult]struct {
	text     string
	severity diagnose.Severity
}{
	ActionVerified:   {"carried out and verified", diagnose.Info},
	ActionUnverified: {"NOT verified", diagnose.Warning},
	ActionFailed:     {"failed, all is as before", diagnose.Warning},
	ActionRefused:    {"refused", diagnose.Info},
	ActionLasting:    {"still in place at the second look", diagnose.Info},
	ActionGone:       {"not in place at the second look", diagnose.Warning},
}

// applyAction notes what flanwatch did. What came of it in the rules is observed like any other change.
func (s *State) applyAction(a *Action, at flannel.Time) {
	words, told := actionWords[a.Result]
	if !told {
		return
	}
	text := a.Kind + " " + words.text
	if a.User != "" {
		text = a.Kind + " by " + a.User + " " + words.text
	}
	switch {
	case a.Why != "":
		text += ": " + a.Why
	case a.Title != "":
		text += ": " + a.Title
	}
	who := a.Who
	s.note(Event{Time: at, Kind: EventAction, Severity: words.severity, Text: text, Who: &who, Chains: slices.Clone(a.Chains)})
}
