package legacy

import (
	"fmt"
	"slices"

	"flanwatch/flannel"
)

// Gatherer reads the chains that a packet comes to, one by one as they are asked for, whoever made them. It copies every
// table once a reading. It is for one goroutine at a time.
type Gatherer struct {
	reader *Reader
	tables map[flannel.TableID]*gathered
	known  map[bodyID]flannel.Rule // decoded in this reading
	last   map[bodyID]flannel.Rule // decoded in the one before
}

// bodyID names the text of a rule.
type bodyID struct {
	family flannel.Family
	body   uint64
}

// gathered is a table as it was copied.
type gathered struct {
	*table
	entries []byte
	chains  map[string]int // offset of the first rule of user-defined chains, made when one is asked for
	used    bool           // in this reading
}

// Gather makes a Gatherer for the network namespace of the calling thread, with the errors of Open.
func Gather() (*Gatherer, error) {
	r, err := Open()
	if err != nil {
		return nil, err
	}
	return &Gatherer{reader: r, tables: map[flannel.TableID]*gathered{}}, nil
}

// Close closes sockets and files, and gives back memory.
func (g *Gatherer) Close() error {
	g.Rest()
	return g.reader.Close()
}

// Rest gives back memory until the next reading.
func (g *Gatherer) Rest() {
	for id, t := range g.tables {
		_ = t.buf.free() // of a mapping of our own: cannot fail
		delete(g.tables, id)
	}
}

// Bases begins a reading: it copies all tables that exist and gives their base chains with their rules.
func (g *Gatherer) Bases() ([]flannel.Chain, error) {
	g.last, g.known = g.known, map[bodyID]flannel.Rule{}
	if err := g.reader.load(); err != nil {
		return nil, err
	}
	for _, t := range g.tables {
		t.used = false
	}
	var list []flannel.Chain
	for _, f := range g.reader.families {
		if !f.loaded() {
			continue
		}
		if err := f.names.refresh(); err != nil {
			return nil, err
		}
		for _, t := range browsable {
			if !f.names.has(t.name) {
				continue
			}
			chains, err := g.copy(f, t)
			if err != nil {
				return nil, err
			}
			list = append(list, chains...)
		}
	}
	for id, t := range g.tables {
		if !t.used {
			_ = t.buf.free()
			delete(g.tables, id)
		}
	}
	return list, nil
}

// copy takes a table from the kernel and gives its base chains.
func (g *Gatherer) copy(f *family, b browsed) ([]flannel.Chain, error) {
	id := flannel.TableID{Backend: flannel.IptablesLegacy, Family: f.id, Name: b.name}
	t := g.tables[id]
	if t == nil {
		t = &gathered{table: &table{layout: f.tables[0].layout}}
		copy(t.cname[:], b.name)
		g.tables[id] = t
	}
	entries, err := t.fetchAll(f.socket)
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", f.id, b.name, err)
	}
	t.entries, t.chains, t.used = entries, nil, true
	var list []flannel.Chain
	for hook := range hooks {
		if !t.has(hook) {
			continue
		}
		base, s, err := t.hooked(entries, b.name, b.priorities, hook)
		if err != nil {
			return nil, err
		}
		list = append(list, flannel.Chain{ID: base.ID, Present: true, Base: &base.BaseChain, Entries: g.rules(t, s)})
	}
	return list, nil
}

// Chain gives a chain that some rule leads to, out of the copy of its table.
func (g *Gatherer) Chain(id flannel.ChainID) (flannel.Chain, error) {
	t := g.tables[id.TableID()]
	if t == nil {
		return flannel.Chain{ID: id}, nil
	}
	if t.chains == nil {
		t.chains = t.layout.chainNames(t.entries)
	}
	first, ok := t.chains[id.Name]
	if !ok {
		return flannel.Chain{ID: id}, nil
	}
	s, ok := t.layout.userRules(t.entries, first)
	if !ok {
		return flannel.Chain{}, fmt.Errorf("read %s: %w", id, errMalformed)
	}
	return flannel.Chain{ID: id, Present: true, Entries: g.rules(t, s)}, nil
}

// chainNames finds where the rules of every user-defined chain begin.
func (l *layout) chainNames(table []byte) map[string]int {
	names := map[string]int{}
	for off := 0; ; {
		e, ok := l.entry(table, off)
		if !ok {
			return names
		}
		off += len(e.raw)
		if name, ok := e.chainName(); ok {
			names[string(name)] = off
		}
	}
}

// rules decodes a chain. Bodies that were read before keep their decoded form.
func (g *Gatherer) rules(t *gathered, s span) []flannel.Entry {
	var list []flannel.Entry
	l := t.layout
	for off := s.first; off < s.last; {
		e, _ := l.entry(t.entries, off)
		id := bodyID{l.family, e.body(l, l.aim(t.entries, off, e))}
		rule, ok := g.known[id]
		if !ok {
			if rule, ok = g.last[id]; !ok {
				rule = l.rule(t.entries, off, e)
			}
			g.known[id] = rule
		}
		list = append(list, flannel.Entry{Rule: rule, Body: id.body, Counter: e.counter(l), Counted: true})
		off += len(e.raw)
	}
	return slices.Clip(list)
}
