package nft

import (
	"slices"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// ledger keeps account of Flannel's tables and chains from commit to commit: how many rules each chain holds after each. It
// is fed with messages and has no IO.
type ledger struct {
	gen     uint32 // the account is as of this generation
	fresh   bool   // it is the first account, and no later commit was heard of yet
	certain bool   // no announcement was lost since the account was balanced
	tables  map[flannel.TableID]bool
	chains  map[flannel.ChainID]account
	draft   draft
}

// account is what is known of a chain that exists.
type account struct {
	handle uint64 // a chain of the same name with another handle is a new one
	rules  int
}

// balance starts the account anew from a whole reading. What was announced of a commit that has not ended is dropped, since
// its beginning may be missing.
func (l *ledger) balance(r *Reader) {
	l.gen, l.certain, l.fresh = r.gen, true, l.chains == nil
	l.tables, l.chains = map[flannel.TableID]bool{}, map[flannel.ChainID]account{}
	l.draft.reset()
	for _, s := range []*side{&r.nft, &r.native} {
		for _, id := range s.rules.Tables {
			l.tables[id] = true
		}
		for i, c := range s.rules.Chains {
			if c.Present {
				l.chains[c.ID] = account{handle: s.chains[i].handle, rules: len(c.Entries)}
			}
		}
	}
}

// add takes in one announcement. Where it ends a commit, that is returned.
func (l *ledger) add(m message) *incident.Commit {
	if m.kind != kindOf(unix.NFT_MSG_NEWGEN) {
		l.draft.add(m)
		return nil
	}
	defer l.draft.reset()
	c := newCommit(m)
	if l.fresh && behind(c.Generation, l.gen) {
		return nil // happened before anybody watched
	}
	l.fresh = false
	c.Lost = !l.follows(c.Generation)
	for _, t := range l.draft.tables {
		c.Tables = append(c.Tables, l.bookTable(t, c.Lost))
	}
	for _, d := range l.draft.chains {
		c.Changes = append(c.Changes, l.bookChain(d, c.Lost))
	}
	c.Backend = backendOf(c)
	return c
}

// follows moves the account on to the next generation. A commit that was announced before the account was balanced, and
// read after it, is in the account already; one that skips a generation shows that announcements were lost.
func (l *ledger) follows(gen uint32) bool {
	next := max(l.gen+1, 1) // the kernel skips 0
	switch {
	case !l.certain || behind(gen, l.gen):
		return false
	case gen != next:
		l.certain = false
		return false
	}
	l.gen = gen
	return true
}

// behind tells whether generation a came before b or is it, on a counter that wraps around.
func behind(a, b uint32) bool { return int32(a-b) <= 0 }

func (l *ledger) bookTable(d draftTable, lost bool) incident.TableChange {
	c := incident.TableChange{Table: d.id, Created: d.deleted && !d.gone, Deleted: d.gone}
	if lost {
		return c
	}
	c.Created = !d.gone && (d.deleted || !l.tables[d.id])
	l.tables[d.id] = !d.gone
	return c
}

func (l *ledger) bookChain(d draftChain, lost bool) incident.ChainChange {
	c := incident.ChainChange{
		Chain: d.id, Created: d.deleted && !d.gone, Deleted: d.gone, Removed: d.removed, Added: d.added, Rules: -1,
	}
	if lost {
		return c
	}
	a, known := l.chains[d.id]
	if d.gone {
		c.Rules = 0
		delete(l.chains, d.id)
		return c
	}
	c.Created = d.handle != 0 && (d.deleted || !known || a.handle != d.handle)
	if c.Created {
		a = account{handle: d.handle}
	} else if !known {
		return c
	}
	a.rules = max(a.rules+d.net, 0)
	l.chains[d.id] = a
	c.Rules = a.rules
	return c
}

func newCommit(m message) *incident.Commit {
	c := &incident.Commit{}
	for a := (attributes{rest: m.body}); a.next(); {
		switch a.kind {
		case unix.NFTA_GEN_ID:
			c.Generation = a.uint32()
		case unix.NFTA_GEN_PROC_PID:
			c.Who.PID = int(a.uint32())
		case unix.NFTA_GEN_PROC_NAME:
			c.Who.Comm = string(a.text())
		}
	}
	return c
}

// backendOf is Nftables for a commit that touched nothing of interest but native tables.
func backendOf(c *incident.Commit) flannel.Backend {
	foreign := func(b flannel.Backend) bool { return b != flannel.Nftables }
	switch {
	case len(c.Changes)+len(c.Tables) == 0,
		slices.ContainsFunc(c.Changes, func(c incident.ChainChange) bool { return foreign(c.Chain.Backend) }),
		slices.ContainsFunc(c.Tables, func(t incident.TableChange) bool { return foreign(t.Table.Backend) }):
		return flannel.IptablesNft
	}
	return flannel.Nftables
}
