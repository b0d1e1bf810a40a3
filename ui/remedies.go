package ui

import (
	"time"

	"flanwatch/flannel"
	"flanwatch/remediate"
)

// Doing is what a person wants of plans.
type Doing uint8

// What can be asked.
const (
	DoOffer   Doing = iota + 1 // what can be done about some chains
	DoMake                     // make one plan, or make it anew
	DoApply                    // carry a plan out
	DoHistory                  // list what was carried out
)

// Wish is what the screen asks of whoever makes plans and carries them out. A newer one replaces one that was not begun.
type Wish struct {
	Number  int // grows; answers carry it
	Do      Doing
	Chains  []flannel.ChainID // DoOffer: what is wrong
	Kind    remediate.Kind    // DoOffer: what a finding suggests; else of the plan
	Choice  remediate.Choice
	Receipt string    // of an undo: what it takes back, "" for the last plan
	ID      string    // DoApply: the plan that was confirmed
	Opened  time.Time // when the dialog was opened: receipt and backup are named after it
}

// Answer is the newest that is known about a wish.
type Answer struct {
	Wish     int
	Offers   []Offer
	Receipts []remediate.Receipt // DoHistory: newest first
	Steps    []Step              // DoApply: those that were begun
	Outcome  *Outcome            // DoApply: how it ended, nil while it has not
	Trouble  string              // why there is no answer
}

// Offer is a plan as it is shown, or why there is none.
type Offer struct {
	Kind    remediate.Kind
	Choice  remediate.Choice
	Receipt string
	Dialog  remediate.Dialog // without ID: nothing is to do
	Refused []remediate.Refusal
}

// OfferOf shows an offer as it would be carried out with that state directory, by a dialog opened at that time.
func OfferOf(o remediate.Offer, state string, opened time.Time) Offer {
	return Offer{Kind: o.Kind, Choice: o.Choice, Receipt: o.Receipt, Dialog: o.Plan.Show(state, opened), Refused: o.Refused}
}

// Step is a part of carrying a plan out.
type Step struct {
	Name string
	Took time.Duration
	Done bool
}

// Outcome is how carrying a plan out ended.
type Outcome struct {
	Result  remediate.Result // ResultRefused where nothing was begun, "" where nothing was left to do
	Why     string
	Receipt string
	Look    time.Duration // after which a second look is due, 0 for none
	Again   string        // what that look found, "" before
	Lasting bool          // it was so still
}
