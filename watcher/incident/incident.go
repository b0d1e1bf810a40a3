package incident

import (
	"net/netip"
	"slices"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// Kind is the sort of an incident; the words are part of the JSON contract.
type Kind string

// The kinds.
const (
	KindStartup      Kind = "startup-window"      // a start of flanneld empties and fills its chains
	KindTeardown     Kind = "teardown"            // a stopping flanneld removed its rules (v0.25.0–v0.26.7)
	KindFlushed      Kind = "flushed"             // somebody emptied or removed a chain of Flannel's
	KindRulesetFlush Kind = "ruleset-flush"       // somebody emptied more than Flannel's chains
	KindFlapping     Kind = "flapping"            // damaged again and again
	KindHookLost     Kind = "hook-lost"           // the chain is full, and nothing leads to it
	KindPartial      Kind = "partial"             // some rules went
	KindTableGone    Kind = "table-gone"          // a native table was deleted
	KindResidue      Kind = "mode-switch-residue" // flanneld went on in its other mode
)

// Incident is a time in which chains did not do what Flannel wants of them, from first bad to good again. Several chains
// belong to one incident if one cause hit them.
type Incident struct {
	Number      int               `json:"id"` // from 1
	Kind        Kind              `json:"kind"`
	Severity    diagnose.Severity `json:"severity"`
	Start       flannel.Time      `json:"start"`
	End         flannel.Time      `json:"end"` // meaningless while Open
	Open        bool              `json:"open"`
	Before      bool              `json:"before"`    // it was bad when watching began, so it is older than Start
	Uncertain   bool              `json:"uncertain"` // announcements were lost meanwhile: times can be late
	Complete    bool              `json:"complete"`  // every chain came back in full
	Verified    flannel.Time      `json:"verified"`  // when a read showed the rules to be back, zero if none has yet
	By          *Who              `json:"by"`        // who began it, nil if unknown
	RecoveredBy *Who              `json:"recoveredBy"`
	Effects     []string          `json:"effects"`          // what it did to pods, one sentence each
	Spells      []Spell           `json:"spells"`           // in the order in which they began
	Owners      []OwnerSpell      `json:"owners,omitempty"` // whose chains went with Flannel's
	SameCause   []int             `json:"sameCause"`
	Generation  uint32            `json:"generation"`      // of the ruleset in which it began, 0 if it has none
	Probe       *ProbeEffect      `json:"probe,omitempty"` // nil where no connection was tried meanwhile
	Flows       *FlowsEffect      `json:"flows,omitempty"` // nil where connections were not looked at
	touched     flannel.Time      // when a spell last began or ended
	facts       circumstances     // what tells its kind
	subnets     []netip.Prefix    // pod subnets of this node when it began
	unrecovered bool              // a chain of it went out of sight without coming back
}

// Spell is the time in which one chain was not as it should be.
type Spell struct {
	Chain flannel.ChainID    `json:"chain"`
	State flannel.ChainState `json:"state"` // the first bad state
	From  flannel.Time       `json:"from"`
	To    flannel.Time       `json:"to"` // meaningless while Open
	Open  bool               `json:"open"`
	Lost  int                `json:"lost"` // rules gone
}

// circumstances are what was seen when an incident began.
type circumstances struct {
	hookLost bool // a chain lost its jump along with its rules
	table    bool // a native table went
	others   bool // rules that are not Flannel's went in the same moment
	residue  bool // flanneld went on in its other mode
}

// Duration is how long the incident has lasted by a time.
func (i Incident) Duration(now flannel.Time) time.Duration {
	if i.Open {
		return max(0, now.Sub(i.Start))
	}
	return max(0, i.End.Sub(i.Start))
}

// Objects lists the chains concerned, each once.
func (i Incident) Objects() []flannel.ChainID {
	var out []flannel.ChainID
	for _, sp := range i.Spells {
		if !slices.Contains(out, sp.Chain) {
			out = append(out, sp.Chain)
		}
	}
	return out
}

// Total sums up the closed incidents of one kind.
type Total struct {
	Kind   Kind          `json:"kind"`
	Count  int           `json:"count"`
	Min    time.Duration `json:"min"`
	Median time.Duration `json:"median"`
	Max    time.Duration `json:"max"`
}

// Totals sums up closed incidents by kind, in the order in which the kinds first came up.
func Totals(list []Incident) []Total {
	var out []Total
	spans := map[Kind][]time.Duration{}
	for _, i := range list {
		if i.Open {
			continue
		}
		if spans[i.Kind] == nil {
			out = append(out, Total{Kind: i.Kind})
		}
		spans[i.Kind] = append(spans[i.Kind], i.Duration(i.End))
	}
	for n := range out {
		d := spans[out[n].Kind]
		slices.Sort(d)
		out[n].Count, out[n].Min, out[n].Median, out[n].Max = len(d), d[0], d[len(d)/2], d[len(d)-1]
		if len(d)%2 == 0 {
			out[n].Median = (d[len(d)/2-1] + d[len(d)/2]) / 2
		}
	}
	return out
}
