package nft

import (
	"slices"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
	"flanwatch/watcher/incident"
)

// draft collects what is announced of one commit until its end. The zero value is ready for use.
type draft struct {
	ids    []flannel.ChainID
	tables []draftTable
	chains []draftChain
}

type draftTable struct {
	id      flannel.TableID
	deleted bool // at some point of the commit
	gone    bool // after it
}

type draftChain struct {
	id      flannel.ChainID
	handle  uint64 // of the chain that was announced last, 0 if only its rules changed
	deleted bool   // at some point of the commit
	gone    bool   // after it
	net     int    // rules added less rules removed, since it was deleted or since the commit before
	removed []incident.RuleRemoved
	added   []incident.RuleAdded
}

func (d *draft) reset() {
	if d.ids == nil {
		d.ids = watched()
	}
	d.tables, d.chains = nil, nil
}

func (d *draft) add(m message) {
	switch m.kind {
	case kindOf(unix.NFT_MSG_NEWTABLE), kindOf(unix.NFT_MSG_DELTABLE):
		d.addTable(m)
	case kindOf(unix.NFT_MSG_NEWCHAIN), kindOf(unix.NFT_MSG_DELCHAIN):
		d.addChain(m)
	case kindOf(unix.NFT_MSG_NEWRULE), kindOf(unix.NFT_MSG_DELRULE):
		d.addRule(m)
	}
}

func (d *draft) addTable(m message) {
	var name []byte
	for a := (attributes{rest: m.body}); a.next(); {
		if a.kind == unix.NFTA_TABLE_NAME {
			name = a.text()
		}
	}
	t := d.table(m.family, name)
	if t == nil {
		return
	}
	t.gone = m.kind == kindOf(unix.NFT_MSG_DELTABLE)
	t.deleted = t.deleted || t.gone
}

func (d *draft) addChain(m message) {
	var table, name []byte
	var handle uint64
	for a := (attributes{rest: m.body}); a.next(); {
		switch a.kind {
		case unix.NFTA_CHAIN_TABLE:
			table = a.text()
		case unix.NFTA_CHAIN_NAME:
			name = a.text()
		case unix.NFTA_CHAIN_HANDLE:
			handle = a.uint64()
		}
	}
	c := d.chain(m.family, table, name)
	if c == nil {
		return
	}
	c.handle = handle
	if c.gone = m.kind == kindOf(unix.NFT_MSG_DELCHAIN); c.gone {
		c.deleted, c.net = true, 0
	}
}

func (d *draft) addRule(m message) {
	r := parseRule(m.body)
	c := d.chain(m.family, r.table, r.chain)
	if c == nil {
		return
	}
	// What cannot be scanned keeps a body of 0: that the rule came or went counts all the same.
	scan, _ := wire.ScanRule(r.exprs)
	if m.kind == kindOf(unix.NFT_MSG_NEWRULE) {
		c.net++
		// The kernel tells the place of neither the first nor the last rule, but that a rule was appended.
		c.added = append(c.added, incident.RuleAdded{
			Handle: r.handle, After: r.position, Last: m.flags&unix.NLM_F_APPEND != 0, Body: scan.Body,
		})
		return
	}
	c.net--
	c.removed = append(c.removed, incident.RuleRemoved{
		Handle: r.handle, Body: scan.Body, Counter: scan.Counter, Counted: scan.Counted,
	})
}

// table is the draft's line for a table, nil for one that Flannel does not use.
func (d *draft) table(family byte, name []byte) *draftTable {
	i := slices.IndexFunc(d.ids, func(id flannel.ChainID) bool { return protocol(id.Family) == family && id.Table == string(name) })
	if i < 0 {
		return nil
	}
	id := d.ids[i].TableID()
	j := slices.IndexFunc(d.tables, func(t draftTable) bool { return t.id == id })
	if j < 0 {
		j = len(d.tables)
		d.tables = append(d.tables, draftTable{id: id})
	}
	return &d.tables[j]
}

// chain is the draft's line for a chain, nil for one that Flannel does not use.
func (d *draft) chain(family byte, table, name []byte) *draftChain {
	i := slices.IndexFunc(d.ids, func(id flannel.ChainID) bool {
		return protocol(id.Family) == family && id.Table == string(table) && id.Name == string(name)
	})
	if i < 0 {
		return nil
	}
	j := slices.IndexFunc(d.chains, func(c draftChain) bool { return c.id == d.ids[i] })
	if j < 0 {
		j = len(d.chains)
		d.chains = append(d.chains, draftChain{id: d.ids[i]})
	}
	return &d.chains[j]
}
