package nft

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack/nfnl"
	"flanwatch/flannel"
	"flanwatch/flannel/wire"
)

// chain reads one chain. head and entries hold what the round at hand found.
type chain struct {
	id       flannel.ChainID
	table    int // index among the tables of its side
	getChain []byte
	getRules []byte

	head
	entries []flannel.Entry
	limit   int // how many rules are kept, 0 for all
	more    int // how many there are beyond
}

// head is a chain without its rules.
type head struct {
	present bool
	handle  uint64
	isBase  bool
	base    flannel.BaseChain
	uses    uint32 // rules in it and jumps to it
	counted bool   // the policy has a counter
	counter flannel.Counter
}

func newChain(id flannel.ChainID, table int) chain {
	family, name := address(id)
	return chain{
		id: id, table: table,
		getChain: request(unix.NFT_MSG_GETCHAIN, 0, family,
			stringAttr{unix.NFTA_CHAIN_TABLE, name}, stringAttr{unix.NFTA_CHAIN_NAME, id.Name}),
		getRules: request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, family,
			stringAttr{unix.NFTA_RULE_TABLE, name}, stringAttr{unix.NFTA_RULE_CHAIN, id.Name}),
	}
}

func (c *chain) fail(err error) error {
	return fmt.Errorf("read %s %s %s: %w", c.id.Family, c.id.Table, c.id.Name, nfnl.Explain(err))
}

// readHead finds out whether the chain exists, which a dump of its rules does not tell: an absent chain has none either.
func (c *chain) readHead(sock *socket) error {
	m, err := sock.ask(c.getChain)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return c.fail(err)
	}
	c.head = head{present: err == nil}
	if c.present {
		c.parse(m.body)
	}
	return nil
}

// alive tells whether rules stand in the chain or lead to it.
func (h *head) alive() bool { return h.present && h.uses > 0 }

func (h *head) parse(body []byte) {
	for a := (attributes{rest: body}); a.next(); {
		switch a.kind {
		case unix.NFTA_CHAIN_HANDLE:
			h.handle = a.uint64()
		case unix.NFTA_CHAIN_TYPE:
			h.base.Type = typeName(a.text())
		case unix.NFTA_CHAIN_POLICY:
			h.base.Policy = "drop"
			if a.uint32() == nfAccept {
				h.base.Policy = "accept"
			}
		case unix.NFTA_CHAIN_HOOK:
			h.isBase = true
			h.parseHook(a.data)
		case unix.NFTA_CHAIN_USE:
			h.uses = a.uint32()
		case unix.NFTA_CHAIN_COUNTERS:
			h.counted = true
			h.parseCounter(a.data)
		}
	}
}

func (h *head) parseCounter(body []byte) {
	for a := (attributes{rest: body}); a.next(); {
		switch a.kind {
		case unix.NFTA_COUNTER_PACKETS:
			h.counter.Packets = a.uint64()
		case unix.NFTA_COUNTER_BYTES:
			h.counter.Bytes = a.uint64()
		}
	}
}

func (h *head) parseHook(body []byte) {
	for a := (attributes{rest: body}); a.next(); {
		switch a.kind {
		case unix.NFTA_HOOK_HOOKNUM:
			h.base.Hook = hookName(a.uint32())
		case unix.NFTA_HOOK_PRIORITY:
			h.base.Priority = int32(a.uint32())
		}
	}
}

// typeName spares an allocation for the types that there are.
func typeName(b []byte) string {
	switch string(b) {
	case "nat":
		return "nat"
	case "filter":
		return "filter"
	case "route":
		return "route"
	}
	return string(b)
}

// nfAccept is NF_ACCEPT, the policy of a chain that lets through what no rule decided.
const nfAccept = 1

// ingressHook is NF_INET_INGRESS, which only tables of the family inet have.
const ingressHook = unix.NF_INET_NUMHOOKS

func hookName(n uint32) string {
	names := [...]string{
		unix.NF_INET_PRE_ROUTING: "prerouting", unix.NF_INET_LOCAL_IN: "input", unix.NF_INET_FORWARD: "forward",
		unix.NF_INET_LOCAL_OUT: "output", unix.NF_INET_POST_ROUTING: "postrouting", ingressHook: "ingress",
	}
	if int(n) >= len(names) {
		return fmt.Sprintf("hook %d", n)
	}
	return names[n]
}

// readRules dumps the chain's rules. Those that were there before (the same handle and body) keep their decoded form. It
// tells whether the dump is whole: not interrupted by a commit, and of the given generation.
func (c *chain) readRules(sock *socket, gen uint32, before []flannel.Entry) (whole bool, err error) {
	c.entries, c.more = c.entries[:0], 0
	if err := sock.send(c.getRules); err != nil {
		return false, c.fail(err)
	}
	whole = true
	for {
		m, err := sock.receive()
		if err != nil {
			return false, c.fail(err)
		}
		// The kernel flags an interrupted dump on whichever message comes next: for a short one that is DONE.
		if m.flags&unix.NLM_F_DUMP_INTR != 0 {
			whole = false
		}
		if m.kind == unix.NLMSG_DONE {
			return whole, nil
		}
		if m.kind != kindOf(unix.NFT_MSG_NEWRULE) {
			continue
		}
		if m.gen != uint16(gen) {
			whole = false
		}
		if err := c.add(m.body, before); err != nil {
			return false, c.fail(err)
		}
	}
}

// add takes in one rule of the dump.
func (c *chain) add(body []byte, before []flannel.Entry) error {
	if c.limit > 0 && len(c.entries) == c.limit {
		c.more++
		return nil
	}
	r := parseRule(body)
	scan, err := wire.ScanRule(r.exprs)
	if err != nil {
		return err
	}
	e := flannel.Entry{Handle: r.handle, Body: scan.Body, Counter: scan.Counter, Counted: scan.Counted}
	if old := find(before, len(c.entries), e); old != nil {
		e.Rule = old.Rule
	} else {
		e.Rule = wire.Decode(c.id.Family, r.exprs)
	}
	c.entries = append(c.entries, e)
	return nil
}

// find looks for a rule among those read before, at its likely place first.
func find(before []flannel.Entry, at int, e flannel.Entry) *flannel.Entry {
	if at < len(before) && sameRule(before[at], e) {
		return &before[at]
	}
	i := slices.IndexFunc(before, func(b flannel.Entry) bool { return sameRule(b, e) })
	if i < 0 {
		return nil
	}
	return &before[i]
}

// sameRule tells whether two entries are one rule. A handle alone does not: it survives a replacement.
func sameRule(a, b flannel.Entry) bool {
	return a.Handle == b.Handle && a.Body == b.Body && a.Counted == b.Counted
}

func (c *chain) changed(shown *flannel.Chain) bool {
	if c.present != shown.Present || c.isBase != (shown.Base != nil) || c.isBase && c.base != *shown.Base {
		return true
	}
	return !slices.EqualFunc(c.entries, shown.Entries, sameRule)
}

func (c *chain) publishCounters(shown []flannel.Entry) {
	for i := range shown {
		shown[i].Counter = c.entries[i].Counter
	}
}

// publish shows the chain as it was read. The rules shown before become the room for the next read. A BaseChain is never
// overwritten: clones of the ruleset share it.
func (c *chain) publish(shown *flannel.Chain) {
	shown.Present = c.present
	if !c.isBase {
		shown.Base = nil
	} else if shown.Base == nil || *shown.Base != c.base {
		base := c.base
		shown.Base = &base
	}
	shown.Entries, c.entries = c.entries, shown.Entries
}

// rule is the part of a rule's message that is looked at.
type rule struct {
	table, chain []byte
	handle       uint64
	position     uint64 // handle of the rule before it
	exprs        []byte
}

func parseRule(body []byte) rule {
	var r rule
	for a := (attributes{rest: body}); a.next(); {
		switch a.kind {
		case unix.NFTA_RULE_TABLE:
			r.table = a.text()
		case unix.NFTA_RULE_CHAIN:
			r.chain = a.text()
		case unix.NFTA_RULE_HANDLE:
			r.handle = a.uint64()
		case unix.NFTA_RULE_POSITION:
			r.position = a.uint64()
		case unix.NFTA_RULE_EXPRESSIONS:
			r.exprs = a.data
		}
	}
	return r
}
