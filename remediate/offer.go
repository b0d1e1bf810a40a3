package remediate

import (
	"slices"

	"flanwatch/conntrack"
	"flanwatch/flannel"
)

// Offer is one way of putting something right: a plan, or why there is none.
type Offer struct {
	Kind    Kind
	Choice  Choice
	Receipt string // that an undo takes back
	Plan    Plan
	Refused []Refusal
}

// Open tells whether the offer can be taken up: nothing stands in its way, and it changes something.
func (o Offer) Open() bool { return len(o.Refused) == 0 && !o.Plan.Empty() }

// Offers gives what can be done about some chains: all that is missing, these chains alone where that is less, all that is
// left over. What a person is most likely to want comes first. Without an open offer, it gives why there is none.
func Offers(f Facts, chains []flannel.ChainID, prefer Kind) []Offer {
	kinds := []Kind{KindReapply, KindPurge}
	if prefer == KindPurge {
		slices.Reverse(kinds)
	}
	var open, closed []Offer
	add := func(k Kind, c Choice) {
		o := Make(f, Offer{Kind: k, Choice: c})
		switch {
		case o.Open() && !slices.ContainsFunc(open, func(x Offer) bool { return x.Plan.ID == o.Plan.ID }):
			open = append(open, o)
		case !o.Open() && len(c.Chains) == 0:
			closed = append(closed, o)
		}
	}
	for _, k := range kinds {
		add(k, Choice{With: usual(f, k)})
		if k == KindReapply && len(chains) > 0 {
			add(k, Choice{Chains: chains})
		}
	}
	if len(open) > 0 {
		return open
	}
	return closed
}

// usual are the parts that a kind of plan has unless a person leaves them out: connections go with the rules that translated
// them, where it is known which those are.
func usual(f Facts, k Kind) []string {
	if survey, known := f.survey(); k == KindPurge && known && survey.Kinds[conntrack.Translated].Flows > 0 {
		return []string{PartConnections}
	}
	return nil
}

// Make makes the plan of an offer anew. It knows no receipts: an undo is made by Undo.
func Make(f Facts, o Offer) Offer {
	make := Reapply
	switch o.Kind {
	case KindPurge:
		make = Purge
	case KindUnstick:
		make = Unstick
	}
	o.Plan, o.Refused = make(f, o.Choice)
	return o
}
