package legacy

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// Bounds of what a Browser tells of. There are no more base chains than hooks in five tables.
const maxRules = 2000

// browsed is a table that there can be, with the priority that the kernel gives it at each hook.
type browsed struct {
	name       string
	priorities [hooks]int32
}

var browsable = []browsed{
	{"raw", [hooks]int32{unix.NF_INET_PRE_ROUTING: -300, unix.NF_INET_LOCAL_OUT: -300}},
	{"mangle", [hooks]int32{-150, -150, -150, -150, -150}},
	{"nat", [hooks]int32{
		unix.NF_INET_PRE_ROUTING: -100, unix.NF_INET_LOCAL_IN: 100, unix.NF_INET_LOCAL_OUT: -100, unix.NF_INET_POST_ROUTING: 100,
	}},
	{"filter", [hooks]int32{}},
	{"security", [hooks]int32{unix.NF_INET_LOCAL_IN: 50, unix.NF_INET_FORWARD: 50, unix.NF_INET_LOCAL_OUT: 50}},
}

// hookNames and baseNames name the hooks, and the chains that iptables shows for them.
var (
	hookNames = [hooks]string{
		unix.NF_INET_PRE_ROUTING: "prerouting", unix.NF_INET_LOCAL_IN: "input", unix.NF_INET_FORWARD: "forward",
		unix.NF_INET_LOCAL_OUT: "output", unix.NF_INET_POST_ROUTING: "postrouting",
	}
	baseNames = [hooks]string{
		unix.NF_INET_PRE_ROUTING: "PREROUTING", unix.NF_INET_LOCAL_IN: "INPUT", unix.NF_INET_FORWARD: "FORWARD",
		unix.NF_INET_LOCAL_OUT: "OUTPUT", unix.NF_INET_POST_ROUTING: "POSTROUTING",
	}
)

// Browser reads what lies beyond Flannel's own chains, whoever made it, when somebody wants to see it. Each look copies
// whole tables. It is for one goroutine at a time.
type Browser struct {
	reader  *Reader
	scans   []*table // for each family, with the memory that its tables are copied into
	id      flannel.ChainID
	decoded map[uint64]flannel.Rule // of the chain read last
}

// Browse makes a Browser for the network namespace of the calling thread, with the errors of Open.
func Browse() (*Browser, error) {
	r, err := Open()
	if err != nil {
		return nil, err
	}
	b := &Browser{reader: r}
	for _, f := range r.families {
		b.scans = append(b.scans, &table{layout: f.tables[0].layout})
	}
	return b, nil
}

// Close closes sockets and files, and gives back memory.
func (b *Browser) Close() error {
	b.Rest()
	return b.reader.Close()
}

// Rest gives back memory until the next look.
func (b *Browser) Rest() {
	for _, t := range b.scans {
		_ = t.buf.free() // of a mapping of our own: cannot fail
	}
}

// Bases reads the base chains of all tables that exist, sorted by ID.
func (b *Browser) Bases() (incident.Bases, error) {
	var found incident.Bases
	if err := b.reader.load(); err != nil {
		return found, err
	}
	for i, f := range b.reader.families {
		if !f.loaded() {
			continue
		}
		if err := f.names.refresh(); err != nil {
			return found, err
		}
		for _, t := range browsable {
			if !f.names.has(t.name) {
				continue
			}
			entries, err := b.fetch(i, t.name)
			if err != nil {
				return found, err
			}
			for hook := range hooks {
				if !b.scans[i].has(hook) {
					continue
				}
				base, _, err := b.scans[i].hooked(entries, t.name, t.priorities, hook)
				if err != nil {
					return found, err
				}
				found.Chains = append(found.Chains, base)
			}
		}
	}
	slices.SortFunc(found.Chains, func(a, b incident.Base) int { return a.ID.Compare(b.ID) })
	return found, nil
}

// fetch copies a table that exists.
func (b *Browser) fetch(family int, name string) ([]byte, error) {
	t := b.scans[family]
	t.cname = [nameLen]byte{}
	copy(t.cname[:], name)
	entries, err := t.fetchAll(b.reader.families[family].socket)
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", b.reader.families[family].id, name, err)
	}
	return entries, nil
}

// has tells whether the table that was copied last has a base chain at a hook.
func (t *table) has(hook int) bool { return t.info.validHooks&(1<<hook) != 0 }

// hooked gives the base chain of a hook, and where its rules lie.
func (t *table) hooked(entries []byte, name string, priorities [hooks]int32, hook int) (incident.Base, span, error) {
	s, ok := t.layout.baseChain(entries, t.info.hookEntry[hook], t.info.underflow[hook])
	if !ok {
		return incident.Base{}, span{}, fmt.Errorf("read %s %s %s: %w", t.layout.family, name, baseNames[hook], errMalformed)
	}
	e, _ := t.layout.entry(entries, s.last)
	b := incident.Base{
		ID:        flannel.ChainID{Backend: flannel.IptablesLegacy, Family: t.layout.family, Table: name, Name: baseNames[hook]},
		BaseChain: flannel.BaseChain{Type: typeOf(name, hook), Hook: hookNames[hook], Priority: priorities[hook]},
		Counter:   e.counter(t.layout), Counted: true,
	}
	switch t.layout.verdict(entries, s.last, e).Kind {
	case flannel.TargetAccept:
		b.Policy = "accept"
	case flannel.TargetDrop:
		b.Policy = "drop"
	}
	for off := s.first; off < s.last; b.Rules++ {
		e, _ := t.layout.entry(entries, off)
		off += len(e.raw)
	}
	return b, s, nil
}

// typeOf is the type of the chain as nf_tables would have it.
func typeOf(table string, hook int) string {
	switch {
	case table == flannel.TableNat:
		return "nat"
	case table == "mangle" && hook == unix.NF_INET_LOCAL_OUT:
		return "route"
	}
	return "filter"
}

// Chain reads one chain with its rules, and tells whether it exists.
func (b *Browser) Chain(id flannel.ChainID) (c incident.Opened, present bool, err error) {
	i := slices.IndexFunc(b.reader.families, func(f *family) bool { return f.id == id.Family })
	if i < 0 || !b.reader.families[i].loaded() {
		return c, false, nil
	}
	names := b.reader.families[i].names
	if err := names.refresh(); err != nil || !names.has(id.Table) {
		return c, false, err
	}
	entries, err := b.fetch(i, id.Table)
	if err != nil {
		return c, false, err
	}
	t := b.scans[i]
	base, s, err := t.baseNamed(entries, id)
	if err != nil {
		return c, false, err
	}
	if c.Base = base; base == nil {
		var found, whole bool
		switch s, found, whole = t.layout.userChain(entries, id.Name); {
		case !whole:
			return c, false, fmt.Errorf("read %s: %w", id, errMalformed)
		case !found:
			return c, false, nil
		}
	}
	if b.id != id {
		b.id, b.decoded = id, nil
	}
	b.decode(t.layout, entries, s, &c)
	return c, true, nil
}

// baseNamed finds a base chain by its name, nil if it is none.
func (t *table) baseNamed(entries []byte, id flannel.ChainID) (*incident.Base, span, error) {
	hook := slices.Index(baseNames[:], id.Name)
	i := slices.IndexFunc(browsable, func(k browsed) bool { return k.name == id.Table })
	if hook < 0 || i < 0 || !t.has(hook) {
		return nil, span{}, nil
	}
	b, s, err := t.hooked(entries, id.Table, browsable[i].priorities, hook)
	return &b, s, err
}

// decode lists the rules of a chain. Those whose bodies were there before keep their decoded form.
func (b *Browser) decode(l *layout, entries []byte, s span, c *incident.Opened) {
	decoded := make(map[uint64]flannel.Rule, len(b.decoded))
	for off := s.first; off < s.last; {
		e, _ := l.entry(entries, off)
		if len(c.Entries) == maxRules {
			c.More++
			off += len(e.raw)
			continue
		}
		body := e.body(l, l.aim(entries, off, e))
		rule, ok := decoded[body]
		if !ok {
			if rule, ok = b.decoded[body]; !ok {
				rule = l.rule(entries, off, e)
			}
			decoded[body] = rule
		}
		c.Entries = append(c.Entries, flannel.Entry{Rule: rule, Body: body, Counter: e.counter(l), Counted: true})
		off += len(e.raw)
	}
	b.decoded = decoded
}

// Names lists the user-defined chains of a table; nothing where the table does not exist.
func (b *Browser) Names(id flannel.TableID) ([]string, error) {
	i := slices.IndexFunc(b.reader.families, func(f *family) bool { return f.id == id.Family })
	if i < 0 || !b.reader.families[i].loaded() {
		return nil, nil
	}
	names := b.reader.families[i].names
	if err := names.refresh(); err != nil || !names.has(id.Name) {
		return nil, err
	}
	entries, err := b.fetch(i, id.Name)
	if err != nil {
		return nil, err
	}
	var out []string
	for off := 0; ; {
		e, ok := b.scans[i].layout.entry(entries, off)
		if !ok {
			return out, nil
		}
		if name, opens := e.chainName(); opens && string(name) != "ERROR" {
			out = append(out, string(name))
		}
		off += len(e.raw)
	}
}
