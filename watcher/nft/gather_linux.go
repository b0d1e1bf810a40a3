package nft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack/nfnl"
	"flanwatch/flannel"
	"flanwatch/flannel/wire"
)

// Gatherer reads the chains and sets that a packet comes to, one by one as they are asked for, whoever made them. It takes in
// tables of the families ip, ip6 and inet; a chain of the family inet stands once for each family in a table named "inet
// NAME". It is not safe for concurrent use.
type Gatherer struct {
	reader    *Reader
	getTables []byte
	getChains []byte

	gen   uint32
	known map[bodyID]flannel.Rule // decoded in this reading
	last  map[bodyID]flannel.Rule // decoded in the one before
}

// bodyID names the text of a rule: the same bytes can mean different things in different families.
type bodyID struct {
	family flannel.Family
	body   uint64
}

// Gather makes a gatherer for the calling thread's network namespace.
func Gather() (*Gatherer, error) {
	r, err := Open()
	if err != nil {
		return nil, err
	}
	return &Gatherer{
		reader:    r,
		getTables: request(unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC),
		getChains: request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC),
	}, nil
}

// Close closes the socket, and waits as Reader.Close does.
func (g *Gatherer) Close() error { return g.reader.Close() }

// Generation is the number of the last commit in the namespace: while it stays, only counters and the elements of dynamic
// sets change.
func (g *Gatherer) Generation() (uint32, error) { return g.reader.generation() }

// Begin begins a reading, of which Settled tells in the end whether all of it is of one generation.
func (g *Gatherer) Begin() error {
	gen, err := g.reader.generation()
	g.gen, g.last, g.known = gen, g.known, map[bodyID]flannel.Rule{}
	return err
}

// Settled tells whether no commit fell into the reading.
func (g *Gatherer) Settled() (bool, error) {
	gen, err := g.reader.generation()
	return gen == g.gen, err
}

// Bases reads all base chains that the kernel calls, with their rules.
func (g *Gatherer) Bases() ([]flannel.Chain, error) {
	dormant, err := g.dormant()
	if err != nil {
		return nil, fmt.Errorf("read tables: %w", nfnl.Explain(err))
	}
	var list []flannel.Chain
	err = g.dump(g.getChains, unix.NFT_MSG_NEWCHAIN, func(m message) {
		for _, b := range basesOf(m) {
			if family, name := address(b.ID); !dormant[tableKey{family, name}] {
				base := b.BaseChain
				list = append(list, flannel.Chain{ID: b.ID, Present: true, Base: &base})
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read base chains: %w", nfnl.Explain(err))
	}
	for i := range list {
		if list[i].Entries, err = g.rules(list[i].ID); err != nil {
			return nil, err
		}
	}
	return list, nil
}

type tableKey struct {
	family byte
	name   string
}

// dormant lists the tables that are switched off.
func (g *Gatherer) dormant() (map[tableKey]bool, error) {
	list := map[tableKey]bool{}
	err := g.dump(g.getTables, unix.NFT_MSG_NEWTABLE, func(m message) {
		name, flags := "", uint32(0)
		for a := (attributes{rest: m.body}); a.next(); {
			switch a.kind {
			case unix.NFTA_TABLE_NAME:
				name = string(a.text())
			case unix.NFTA_TABLE_FLAGS:
				flags = a.uint32()
			}
		}
		if flags&unix.NFT_TABLE_F_DORMANT != 0 {
			list[tableKey{m.family, name}] = true
		}
	})
	return list, err
}

// dump asks for a list and hands on its messages.
func (g *Gatherer) dump(request []byte, command uint16, do func(message)) error {
	sock := g.reader.socket
	if err := sock.send(request); err != nil {
		return err
	}
	for {
		m, err := sock.receive()
		if err != nil {
			return err
		}
		switch m.kind {
		case unix.NLMSG_DONE:
			return nil
		case kindOf(command):
			do(m)
		}
	}
}

// Chain reads a chain that some rule leads to.
func (g *Gatherer) Chain(id flannel.ChainID) (flannel.Chain, error) {
	entries, err := g.rules(id)
	return flannel.Chain{ID: id, Present: true, Entries: entries}, err
}

// rules reads the rules of a chain. One whose body was read before keeps its decoded form, though its handle be another:
// kube-proxy writes all of its rules anew, most of them as they were.
func (g *Gatherer) rules(id flannel.ChainID) ([]flannel.Entry, error) {
	c := newChain(id, 0)
	var list []flannel.Entry
	var broken error
	err := g.dump(c.getRules, unix.NFT_MSG_NEWRULE, func(m message) {
		r := parseRule(m.body)
		scan, err := wire.ScanRule(r.exprs)
		if err != nil {
			broken = err
			return
		}
		list = append(list, flannel.Entry{
			Rule: g.rule(id.Family, scan.Body, r.exprs), Handle: r.handle, Body: scan.Body, Counter: scan.Counter, Counted: scan.Counted,
		})
	})
	if err = errors.Join(err, broken); err != nil {
		return nil, c.fail(err)
	}
	return list, nil
}

func (g *Gatherer) rule(f flannel.Family, body uint64, exprs []byte) flannel.Rule {
	id := bodyID{f, body}
	r, ok := g.known[id]
	if ok {
		return r
	}
	if r, ok = g.last[id]; !ok {
		r = wire.Decode(f, exprs)
	}
	g.known[id] = r
	return r
}
