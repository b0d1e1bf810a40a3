package incident

import (
	"fmt"
	"slices"

	"flanwatch/flannel"
	"flanwatch/flannel/path"
	"flanwatch/watcher/diagnose"
)

// OwnerSpell is the time in which a chain of somebody else's was gone that went in the same moment as Flannel's rules.
type OwnerSpell struct {
	Owner string          `json:"owner"` // "kube-proxy", "CNI portmap", …
	Chain flannel.ChainID `json:"chain"`
	From  flannel.Time    `json:"from"`
	To    flannel.Time    `json:"to"` // meaningless while Open
	Open  bool            `json:"open"`
}

// text says it in a clause.
func (o *OwnerSpell) text() string {
	if o.Open {
		return fmt.Sprintf("%s lost %s with it, which has not come back", o.Owner, o.Chain.Short())
	}
	return fmt.Sprintf("%s lost %s with it, back after %s", o.Owner, o.Chain.Short(), briefly(o.To.Sub(o.From)))
}

// followOthers tells which chains of others went or came back with the news of a backend.
func (s *State) followOthers(b *backend, n news) {
	changed := false
	for _, is := range b.rules.Others {
		i := slices.IndexFunc(b.others, func(m flannel.Mark) bool { return m.ID == is.ID })
		if n.first || i < 0 || b.others[i].Alive == is.Alive {
			continue
		}
		if is.Alive {
			changed = s.othersBack(is.ID, n) || changed
		} else {
			changed = s.othersGone(b, is.ID, n) || changed
		}
	}
	b.others = slices.Clone(b.rules.Others)
	if changed {
		s.judge(n.at)
	}
}

// othersGone adds a chain to the incident in whose moment it went. One that went by itself is its owner's affair.
func (s *State) othersGone(b *backend, id flannel.ChainID, n news) bool {
	for i := len(s.incidents) - 1; i >= max(0, len(s.incidents)-8); i-- {
		inc := &s.incidents[i]
		together := n.generation != 0 && inc.Generation == n.generation || n.at.Sub(inc.Start) <= oneCause
		if !together || !oneSequence(inc.Spells[0].Chain.Backend, b.name) {
			continue
		}
		o := OwnerSpell{Owner: path.Owner(id, flannel.Rule{}), Chain: id, From: n.at, Open: true}
		inc.Owners = append(slices.Clip(inc.Owners), o)
		s.reconsider(inc)
		s.note(Event{
			Time: n.at, Kind: EventDeleted, Severity: diagnose.Warning, Chain: id, Who: n.who, Generation: n.generation,
			Text: id.Short() + " of " + o.Owner + " went with it",
		})
		return true
	}
	return false
}

func (s *State) othersBack(id flannel.ChainID, n news) (known bool) {
	for i := range s.incidents {
		inc := &s.incidents[i]
		j := slices.IndexFunc(inc.Owners, func(o OwnerSpell) bool { return o.Open && o.Chain == id })
		if j < 0 {
			continue
		}
		inc.Owners = slices.Clone(inc.Owners)
		o := &inc.Owners[j]
		o.Open, o.To, known = false, n.at, true
		s.reconsider(inc)
		s.note(Event{
			Time: n.at, Kind: EventCreated, Severity: diagnose.Info, Chain: id, Who: n.who, Generation: n.generation,
			Text: id.Short() + " of " + o.Owner + " is back",
		})
	}
	return known
}

// hostPortsLost lists the chains of portmap that went in an incident from which Flannel and kube-proxy have recovered.
func (s *State) hostPortsLost() (out []diagnose.Lost) {
	for i := range s.incidents {
		inc := &s.incidents[i]
		away := func(owner string) bool {
			return slices.ContainsFunc(inc.Owners, func(o OwnerSpell) bool { return o.Open && o.Owner == owner })
		}
		if len(inc.Owners) == 0 || inc.Open || !away(path.OwnerPortmap) || away(path.OwnerKubeProxy) {
			continue
		}
		for _, o := range inc.Owners {
			if o.Open && o.Owner == path.OwnerPortmap {
				out = append(out, diagnose.Lost{Chain: o.Chain, Since: o.From})
			}
		}
	}
	return out
}
