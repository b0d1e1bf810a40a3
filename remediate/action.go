package remediate

import (
	"slices"

	"flanwatch/flannel"
)

// Actor is the process that carries a plan out, and the person behind it.
type Actor struct {
	PID  int    `json:"pid"`
	Comm string `json:"comm"`
	User string `json:"user,omitempty"` // login, "" if unknown
}

// Action is a line about a stage of a plan's way, for whoever watches the node. Its JSON keys are those that package
// incident reads.
type Action struct {
	Plan    string            `json:"plan,omitempty"`
	Kind    Kind              `json:"kind"`
	Title   string            `json:"title,omitempty"`
	Receipt string            `json:"receipt,omitempty"`
	Undoes  string            `json:"undoes,omitempty"`
	Result  Result            `json:"result"`
	Why     string            `json:"why,omitempty"`
	User    string            `json:"user,omitempty"`
	Chains  []flannel.ChainID `json:"chains,omitempty"`
	Who     Actor             `json:"who"`
}

// Results of actions beyond those of receipts.
const (
	ResultRefused Result = "refused" // nothing was begun
	ResultLasting Result = "lasting" // a second look found it so still
	ResultGone    Result = "gone"    // a second look found it otherwise
)

// Action tells how far a receipt's plan came.
func (r Receipt) Action() Action {
	return Action{
		Plan: r.Plan, Kind: r.Kind, Title: r.Title, Receipt: r.ID, Undoes: r.Undoes, Result: r.Result, Why: r.Why,
		User: r.By.User, Chains: ownChains(r.Edits), Who: r.By,
	}
}

// ownChains lists the chains of Flannel that edits concern: those that are changed as a whole, and those whose jumps are.
func ownChains(edits []Edit) []flannel.ChainID {
	var out []flannel.ChainID
	add := func(id flannel.ChainID) {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	for _, e := range edits {
		if !e.Shared {
			add(e.Chain)
			continue
		}
		for _, l := range e.Lines {
			if l.Mark != Keep && l.Rule.Target.Chain != "" {
				id := e.Chain
				id.Name = l.Rule.Target.Chain
				add(id)
			}
		}
	}
	slices.SortFunc(out, flannel.ChainID.Compare)
	return out
}
