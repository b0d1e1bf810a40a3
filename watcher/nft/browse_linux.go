package nft

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack/nfnl"
	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// Bounds of what a Browser tells of. What lies beyond is counted.
const (
	maxBases = 512  // of one backend
	maxRules = 2000 // of one chain
)

// browseAttempts bounds how often a Browser reads again what is changed meanwhile. It is not as stubborn as a Reader: there
// can be ten thousands of chains, and the next look is near.
const browseAttempts = 10

// Browser reads what lies beyond Flannel's own chains, whoever made it, when somebody wants to see it. It takes in tables of
// the families ip, ip6 and inet. It is not safe for concurrent use.
type Browser struct {
	reader    *Reader
	getChains []byte
	chain     chain // the one read last, with its decoded rules
	before    []flannel.Entry
}

// Browse makes a browser for the calling thread's network namespace.
func Browse() (*Browser, error) {
	r, err := Open()
	if err != nil {
		return nil, err
	}
	return &Browser{reader: r, getChains: request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC)}, nil
}

// Close closes the socket, and waits as Reader.Close does.
func (b *Browser) Close() error { return b.reader.Close() }

// Generation is the number of the last commit in the namespace: while it stays, only counters change.
func (b *Browser) Generation() (uint32, error) { return b.reader.generation() }

// Bases reads all base chains: those of tables that iptables-nft would take for its own, and all others. They are sorted by
// ID. A chain of the family inet is listed once for each family, in a table named "inet NAME".
func (b *Browser) Bases() (nft, native incident.Bases, err error) {
	for range browseAttempts {
		list, whole, err := b.dump()
		if err != nil {
			return nft, native, fmt.Errorf("read base chains: %w", nfnl.Explain(err))
		}
		if whole {
			i, _ := slices.BinarySearchFunc(list, flannel.Nftables, func(c incident.Base, n flannel.Backend) int {
				return cmp.Compare(c.ID.Backend, n)
			})
			return bounded(list[:i]), bounded(list[i:]), nil
		}
	}
	return nft, native, fmt.Errorf("read base chains: %w", ErrUnsettled)
}

func bounded(list []incident.Base) incident.Bases {
	n := min(len(list), maxBases)
	return incident.Bases{Chains: list[:n:n], More: len(list) - n}
}

// dump reads the chains of all tables once, since the kernel cannot be asked for base chains alone.
func (b *Browser) dump() (list []incident.Base, whole bool, err error) {
	sock := b.reader.socket
	if err := sock.send(b.getChains); err != nil {
		return nil, false, err
	}
	whole = true
	for {
		m, err := sock.receive()
		if err != nil {
			return nil, false, err
		}
		if m.flags&unix.NLM_F_DUMP_INTR != 0 {
			whole = false
		}
		if m.kind == unix.NLMSG_DONE {
			slices.SortFunc(list, func(a, b incident.Base) int { return a.ID.Compare(b.ID) })
			return list, whole, nil
		}
		if m.kind == kindOf(unix.NFT_MSG_NEWCHAIN) {
			list = append(list, basesOf(m)...)
		}
	}
}

// basesOf gives the chain of a message as it is listed: nothing if it is no base chain.
func basesOf(m message) []incident.Base {
	var h head
	if h.parse(m.body); !h.isBase {
		return nil
	}
	var table, name string
	for a := (attributes{rest: m.body}); a.next(); {
		switch a.kind {
		case unix.NFTA_CHAIN_TABLE:
			table = string(a.text())
		case unix.NFTA_CHAIN_NAME:
			name = string(a.text())
		}
	}
	var list []incident.Base
	for _, t := range tablesOf(m.family, table) {
		list = append(list, h.listed(flannel.ChainID{Backend: t.Backend, Family: t.Family, Table: t.Name, Name: name}))
	}
	return list
}

// listed is a base chain as it is shown. Nothing can jump to a base chain, so every use of it is a rule in it.
func (h *head) listed(id flannel.ChainID) incident.Base {
	return incident.Base{ID: id, BaseChain: h.base, Rules: int(h.uses), Counted: h.counted, Counter: h.counter}
}

// Chain reads one chain with its rules, and tells whether it exists. What it gives is overwritten by the next call.
func (b *Browser) Chain(id flannel.ChainID) (c incident.Opened, present bool, err error) {
	if b.chain.id != id {
		b.chain, b.before = newChain(id, 0), nil
		b.chain.limit = maxRules
	}
	for range browseAttempts {
		whole, err := b.round()
		if err != nil {
			return c, false, err
		}
		if whole {
			return b.opened(), b.chain.present, nil
		}
	}
	return c, false, b.chain.fail(ErrUnsettled)
}

// round reads the chain once, and tells whether all of it is of one generation.
func (b *Browser) round() (whole bool, err error) {
	r, c := b.reader, &b.chain
	gen, err := r.generation()
	if err != nil {
		return false, err
	}
	if err := c.readHead(r.socket); err != nil || !c.present {
		return true, err
	}
	if whole, err := c.readRules(r.socket, gen, b.before); err != nil || !whole {
		return false, err
	}
	after, err := r.generation()
	return after == gen, err
}

func (b *Browser) opened() incident.Opened {
	c := &b.chain
	if !c.present {
		return incident.Opened{}
	}
	b.before, c.entries = c.entries, b.before // the other one is room for the next reading
	o := incident.Opened{Entries: b.before, More: c.more}
	if c.isBase {
		base := c.listed(c.id)
		base.Rules = len(o.Entries) + o.More
		o.Base = &base
	}
	return o
}

// inet marks the name of a table of the family inet, which each address family sees as one of its own.
const inet = "inet "

// tablesOf gives the tables that a table of the kernel stands for: one of each family that its rules apply to.
func tablesOf(protocol byte, name string) []flannel.TableID {
	switch protocol {
	case unix.NFPROTO_IPV4:
		return []flannel.TableID{{Backend: backendOfTable(name), Family: flannel.IPv4, Name: name}}
	case unix.NFPROTO_IPV6:
		return []flannel.TableID{{Backend: backendOfTable(name), Family: flannel.IPv6, Name: name}}
	case unix.NFPROTO_INET:
		return []flannel.TableID{
			{Backend: flannel.Nftables, Family: flannel.IPv4, Name: inet + name},
			{Backend: flannel.Nftables, Family: flannel.IPv6, Name: inet + name},
		}
	}
	return nil
}

// backendOfTable tells by its name whether iptables-nft takes a table for its own.
func backendOfTable(name string) flannel.Backend {
	switch name {
	case "raw", "mangle", "nat", "filter", "security":
		return flannel.IptablesNft
	}
	return flannel.Nftables
}

// address is where the kernel keeps a chain: the reverse of tablesOf.
func address(id flannel.ChainID) (family byte, table string) {
	if name, ok := strings.CutPrefix(id.Table, inet); ok && id.Backend == flannel.Nftables {
		return unix.NFPROTO_INET, name
	}
	return protocol(id.Family), id.Table
}
