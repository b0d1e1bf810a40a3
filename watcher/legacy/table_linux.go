package legacy

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
)

// place is where Flannel's chain lies, and the base chain that leads to it.
type place struct {
	table, user, base string
	hook              int // number of the base chain's hook
	chain             flannel.BaseChain
}

// places are in the order of their IDs. Type and priority are what the kernel registers for these tables.
var places = []place{
	{
		flannel.TableNat, flannel.ChainMasq, flannel.ChainPostrouting, unix.NF_INET_POST_ROUTING,
		flannel.BaseChain{Type: "nat", Hook: "postrouting", Priority: 100},
	},
	{
		flannel.TableFilter, flannel.ChainFwd, flannel.ChainForward, unix.NF_INET_FORWARD,
		flannel.BaseChain{Type: "filter", Hook: "forward", Priority: 0},
	},
}

var (
	errMoving    = errors.New("the table keeps changing while it is read")
	errMalformed = errors.New("entries make no sense")
)

// table is one table of one family.
type table struct {
	place
	id      flannel.TableID
	layout  *layout
	ruleset *flannel.Ruleset
	at      int   // where its two chains stand in the ruleset: Flannel's, then the base chain
	others  []int // where other owners' marks stand in it
	cname   [nameLen]byte
	present bool
	fell    bool // a counter of a rule that stayed was lower than before
	info    info // of the last read
	look    info // taken in between
	buf     buffer
	partly  bool // the kernel can be made to copy a part of the table
	part    partial
}

func newTable(p place, l *layout, rs *flannel.Ruleset, at int) *table {
	t := &table{place: p, layout: l, ruleset: rs, at: at, partly: canReadPartly()}
	t.id = flannel.TableID{Backend: rs.Backend, Family: l.family, Name: p.table}
	copy(t.cname[:], p.table)
	return t
}

func (t *table) userChain() *flannel.Chain { return &t.ruleset.Chains[t.at] }
func (t *table) baseChain() *flannel.Chain { return &t.ruleset.Chains[t.at+1] }

// forget notes that the table does not exist.
func (t *table) forget() bool {
	if !t.present {
		return false
	}
	t.present = false
	for i := t.at; i < t.at+2; i++ {
		t.ruleset.Chains[i] = flannel.Chain{ID: t.ruleset.Chains[i].ID}
	}
	for _, i := range t.others {
		t.ruleset.Others[i].Alive = false
	}
	return true
}

// changed tells whether the table's shape is another than at the last read.
func (t *table) changed(s *socket) (bool, error) {
	if err := s.info(&t.cname, &t.look); err != nil {
		return false, fmt.Errorf("get size of table: %w", err)
	}
	return t.look.entries != t.info.entries || t.look.size != t.info.size, nil
}

// read brings the table's chains up to date, and tells whether anything but a counter changed.
func (t *table) read(s *socket, now flannel.Time) (bool, error) {
	t.fell = false
	if t.readPart(s, now) {
		return false, nil
	}
	entries, err := t.fetchAll(s)
	changed := false
	if err == nil {
		changed, err = t.parse(entries, now)
	}
	if err != nil {
		t.info = info{} // differs from what any table has
	}
	return changed, err
}

func (t *table) parse(entries []byte, now flannel.Time) (bool, error) {
	base, ok := t.layout.baseChain(entries, t.info.hookEntry[t.hook], t.info.underflow[t.hook])
	if !ok {
		return false, fmt.Errorf("chain %s: %w", t.base, errMalformed)
	}
	user, found, complete := t.layout.userChain(entries, t.user)
	if !complete {
		return false, fmt.Errorf("chain %s: %w", t.user, errMalformed)
	}
	t.remember(entries, now, base, user, found)
	changed := !t.present
	t.present = true
	changed = t.policy(entries, base) || changed
	changed = t.fill(t.baseChain(), entries, base, true) || changed
	changed = t.fill(t.userChain(), entries, user, found) || changed
	return t.mark(entries) || changed, nil
}

// mark looks for the chains of others. One without rules is as good as none.
func (t *table) mark(entries []byte) (changed bool) {
	for _, i := range t.others {
		m := &t.ruleset.Others[i]
		s, found, _ := t.layout.userChain(entries, m.ID.Name)
		if alive := found && s.last > s.first; alive != m.Alive {
			m.Alive, changed = alive, true
		}
	}
	return changed
}

// policy reads what the base chain does at its end.
func (t *table) policy(entries []byte, s span) bool {
	e, _ := t.layout.entry(entries, s.last)
	want := t.chain
	switch t.layout.verdict(entries, s.last, e).Kind {
	case flannel.TargetAccept:
		want.Policy = "accept"
	case flannel.TargetDrop:
		want.Policy = "drop"
	}
	c := t.baseChain()
	if c.Base != nil && *c.Base == want {
		return false
	}
	is := want
	c.Base = &is
	return true
}

// fill puts the rules of a span into a chain. While their bodies are what they were, only the counters are written.
func (t *table) fill(c *flannel.Chain, entries []byte, s span, present bool) bool {
	if !present {
		was := c.Present
		c.Present, c.Entries = false, nil
		return was
	}
	if !c.Present || !t.same(c, entries, s) {
		t.rebuild(c, entries, s)
		return true
	}
	t.count(c, entries, s)
	return false
}

// same tells whether the rules of a chain are those known.
func (t *table) same(c *flannel.Chain, entries []byte, s span) bool {
	n := 0
	for off := s.first; off < s.last; n++ {
		e, _ := t.layout.entry(entries, off)
		if n == len(c.Entries) || c.Entries[n].Body != e.body(t.layout, t.layout.aim(entries, off, e)) {
			return false
		}
		off += len(e.raw)
	}
	return n == len(c.Entries)
}

// count writes the counters of rules that are those known.
func (t *table) count(c *flannel.Chain, entries []byte, s span) {
	n := 0
	for off := s.first; off < s.last; n++ {
		e, _ := t.layout.entry(entries, off)
		was, is := &c.Entries[n].Counter, e.counter(t.layout)
		t.fell = t.fell || is.Packets < was.Packets || is.Bytes < was.Bytes
		*was = is
		off += len(e.raw)
	}
}

// rebuild decodes a chain anew, except for the bodies that were there already.
func (t *table) rebuild(c *flannel.Chain, entries []byte, s span) {
	known := make(map[uint64]flannel.Rule, len(c.Entries))
	for _, e := range c.Entries {
		known[e.Body] = e.Rule
	}
	list := make([]flannel.Entry, 0, len(c.Entries)+1)
	for off := s.first; off < s.last; {
		e, _ := t.layout.entry(entries, off)
		body := e.body(t.layout, t.layout.aim(entries, off, e))
		rule, ok := known[body]
		if !ok {
			rule = t.layout.rule(entries, off, e)
			known[body] = rule
		}
		list = append(list, flannel.Entry{Rule: rule, Body: body, Counter: e.counter(t.layout), Counted: true})
		off += len(e.raw)
	}
	c.Present, c.Entries = true, list
}
