package incident

import (
	"slices"

	"flanwatch/flannel"
)

// BasesRead is one look at all base chains of one backend, whoever made them. It is made only while somebody looks; when
// that ends, one reading is Unread, and what was read before is forgotten.
type BasesRead struct {
	Backend flannel.Backend
	Bases   flannel.Reading[Bases]
}

// Bases are the base chains of one backend.
type Bases struct {
	Chains []Base
	More   int // how many there are beyond those listed
}

// Base is a base chain and its policy.
type Base struct {
	ID flannel.ChainID
	flannel.BaseChain
	Rules   int
	Counter flannel.Counter // what the policy decided; meaningless unless Counted
	Counted bool            // false where the kernel keeps no counter of the policy, as for most chains of nf_tables
}

// OpenedRead is one look at the chain that somebody opened. One that does not exist is Absent; Unread means that it was
// closed.
type OpenedRead struct {
	ID    flannel.ChainID
	Chain flannel.Reading[Opened]
}

// Opened is a chain with its rules.
type Opened struct {
	Base    *Base // nil for a chain that is only jumped to
	Entries []flannel.Entry
	More    int // how many rules there are beyond those listed
}

// BasesView is what was found of the base chains of one backend.
type BasesView struct {
	Backend flannel.Backend
	State   flannel.ReadState
	Why     string
	Read    flannel.Time // of the last reading, whatever came of it
	Bases
}

// OpenedView is the chain that somebody opened. After a failure it shows what was known before, without speeds.
type OpenedView struct {
	ID    flannel.ChainID
	State flannel.ReadState
	Why   string
	Read  flannel.Time // of the last reading, whatever came of it
	Base  *Base
	Rules []OpenedRule
	More  int
}

// OpenedRule is a rule of an opened chain.
type OpenedRule struct {
	Rule    flannel.Rule
	Counted bool
	Counter flannel.Counter
	Rate    Rate
}

// look is what somebody looks at beside Flannel's chains. The zero value is ready for use.
type look struct {
	backends []BasesView
	holds    map[flannel.ChainID]Hold // of the policies of legacy chains
	id       flannel.ChainID
	opened   *OpenedView // as of the last reading, without its rules
	entries  []flannel.Entry
	meter    meter
}

// bases folds a look at the base chains of a backend.
func (l *look) bases(r *BasesRead, at flannel.Time) {
	backends := slices.DeleteFunc(slices.Clone(l.backends), func(v BasesView) bool { return v.Backend == r.Backend })
	l.backends = backends
	if r.Bases.State == flannel.Unread {
		return
	}
	v := BasesView{Backend: r.Backend, State: r.Bases.State, Why: r.Bases.Why, Read: at, Bases: r.Bases.Value}
	v.Chains = slices.Clone(v.Chains)
	if r.Backend == flannel.IptablesLegacy {
		l.steady(v.Chains, at)
	}
	l.backends = append(l.backends, v)
	slices.SortFunc(l.backends, func(a, b BasesView) int { return int(a.Backend) - int(b.Backend) })
}

// steady keeps the counters of legacy policies from showing a dip, as the rest of the picture does not either.
func (l *look) steady(list []Base, at flannel.Time) {
	holds := make(map[flannel.ChainID]Hold, len(list))
	for i := range list {
		b := &list[i]
		h, known := l.holds[b.ID]
		if !known {
			h.Start(b.Counter)
		}
		h.Next(b.Counter, at)
		holds[b.ID], b.Counter = h, h.last
	}
	l.holds = holds
}

// open folds a look at the opened chain.
func (l *look) open(r *OpenedRead, start, at flannel.Time) {
	if r.Chain.State == flannel.Unread {
		l.id, l.opened, l.entries, l.meter = flannel.ChainID{}, nil, nil, meter{}
		return
	}
	if l.opened == nil || l.id != r.ID {
		l.id, l.entries = r.ID, nil
		l.meter = meter{legacy: r.ID.Backend == flannel.IptablesLegacy}
		l.opened = &OpenedView{ID: r.ID}
	}
	v := *l.opened
	v.State, v.Why, v.Read = r.Chain.State, r.Chain.Why, at
	l.opened = &v
	switch r.Chain.State {
	case flannel.Known:
	case flannel.Absent:
		l.entries, v.Base, v.More = nil, nil, 0
		l.meter.follow(nil, nil)
		return
	default:
		l.meter.pause()
		return
	}
	found := r.Chain.Value
	if v.Base, v.More = nil, found.More; found.Base != nil {
		base := *found.Base
		v.Base = &base
	}
	if !slices.EqualFunc(l.meter.rules, found.Entries, func(t tally, e flannel.Entry) bool {
		return t.handle == e.Handle && t.body == e.Body
	}) {
		l.fit(found.Entries)
	}
	l.entries = append(l.entries[:0], found.Entries...)
	l.meter.take(found.Entries, start, at)
}

// fit lets rules that stayed count on. A rule that is new has counted for nobody knows how long, so there is no speed until
// the next reading.
func (l *look) fit(entries []flannel.Entry) {
	if l.meter.follow(entries, func(int) bool { return false }) > 0 {
		l.meter.pause()
	}
}

func (l *look) view() ([]BasesView, *OpenedView) {
	if l.opened == nil {
		return l.backends, nil
	}
	v := *l.opened
	v.Rules = make([]OpenedRule, len(l.entries))
	for i, e := range l.entries {
		t := &l.meter.rules[i]
		v.Rules[i] = OpenedRule{Rule: e.Rule, Counted: e.Counted}
		if e.Counted {
			v.Rules[i].Counter, v.Rules[i].Rate = t.hold.last, t.rate
		}
	}
	return l.backends, &v
}
