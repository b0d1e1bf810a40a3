package legacy

import (
	"encoding/binary"
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
	{"nat", "FLANNEL-POSTRTG", "POSTROUTING", unix.NF_INET_POST_ROUTING, flannel.BaseChain{Type: "nat", Hook: "postrouting", Priority: 100}},
	{"filter", "FLANNEL-FWD", "FORWARD", unix.NF_INET_FORWARD, flannel.BaseChain{Type: "filter", Hook: "forward", Priority: 0}},
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
	at      int // where its two chains stand in the ruleset: Flannel's, then the base chain
	cname   [nameLen]byte
	present bool
	info    info // of the last read
	now     info // of a look in between
	buf     []byte
	hint    int // where Flannel's chain was
}

func newTable(p place, l *layout, rs *flannel.Ruleset, at int) *table {
	t := &table{place: p, layout: l, ruleset: rs, at: at, hint: -1}
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
	return true
}

// changed tells whether the table's shape is another than at the last read.
func (t *table) changed(s *socket) (bool, error) {
	if err := s.info(&t.cname, &t.now); err != nil {
		return false, fmt.Errorf("get size of table: %w", err)
	}
	return t.now.entries != t.info.entries || t.now.size != t.info.size, nil
}

func (t *table) read(s *socket, _ flannel.Time) (bool, error) {
	entries, err := t.fetch(s)
	if err != nil {
		return false, err
	}
	return t.parse(entries)
}

// fetch copies the table. The kernel refuses with EAGAIN when its size is no longer the one just learnt.
func (t *table) fetch(s *socket) ([]byte, error) {
	for range 16 {
		if err := s.info(&t.cname, &t.info); err != nil {
			return nil, fmt.Errorf("get size of table: %w", err)
		}
		need := prefix + int(t.info.size)
		if cap(t.buf) < need {
			t.buf = make([]byte, need+need/8)
		}
		buf := t.buf[:need]
		copy(buf, t.cname[:])
		binary.NativeEndian.PutUint32(buf[nameLen:], t.info.size)
		err := s.entries(buf)
		if err == nil {
			return buf[prefix:], nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, fmt.Errorf("get entries: %w", err)
		}
	}
	return nil, errMoving
}

// parse brings the two chains up to date, and tells whether anything but a counter changed.
func (t *table) parse(entries []byte) (bool, error) {
	base, ok := t.layout.baseChain(entries, t.info.hookEntry[t.hook], t.info.underflow[t.hook])
	if !ok {
		return false, fmt.Errorf("chain %s: %w", t.base, errMalformed)
	}
	head, user, found, complete := t.layout.userChain(entries, t.user, t.hint)
	if !complete {
		return false, fmt.Errorf("chain %s: %w", t.user, errMalformed)
	}
	t.hint = head
	changed := !t.present
	t.present = true
	changed = t.policy(entries, base) || changed
	changed = t.fill(t.baseChain(), entries, base, true) || changed
	changed = t.fill(t.userChain(), entries, user, found) || changed
	return changed, nil
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
	c.Base = &want
	return true
}

// fill puts the rules of a span into a chain. While their bodies are what they were, only the counters are written.
func (t *table) fill(c *flannel.Chain, entries []byte, s span, present bool) bool {
	if !present {
		was := c.Present
		c.Present, c.Entries = false, nil
		return was
	}
	n := 0
	for off := s.first; off < s.last; n++ {
		e, _ := t.layout.entry(entries, off)
		if n == len(c.Entries) || c.Entries[n].Body != e.body(t.layout, t.layout.aim(entries, off, e)) {
			return t.rebuild(c, entries, s)
		}
		c.Entries[n].Counter = e.counter(t.layout)
		off += len(e.raw)
	}
	if n != len(c.Entries) || !c.Present {
		return t.rebuild(c, entries, s)
	}
	return false
}

// rebuild decodes a chain anew, except for the bodies that were there already.
func (t *table) rebuild(c *flannel.Chain, entries []byte, s span) bool {
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
	return true
}
