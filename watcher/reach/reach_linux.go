package reach

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"flanwatch/conntrack/nfnl"
	"flanwatch/flannel"
	"flanwatch/flannel/path"
	"flanwatch/watcher/legacy"
	"flanwatch/watcher/nft"
)

const (
	// patience bounds how often a reading is begun again that a commit fell into.
	patience = 3
	// mostRead bounds the chains and sets that one reading follows packets into.
	mostRead = 20_000
)

// Reader reads one network namespace, again and again. Sockets are opened by the first reading and kept. The zero value is
// ready for use, by one goroutine at a time.
type Reader struct {
	nft    *nft.Gatherer
	legacy *legacy.Gatherer
	sets   *nft.Sets
}

// HasLegacy tells whether the kernel had legacy tables at the last reading, of which nothing announces every change.
func (r *Reader) HasLegacy() bool { return r.legacy != nil }

// Generation is the number of the last commit to nf_tables, 0 where the kernel has none loaded.
func (r *Reader) Generation() (uint32, error) {
	if r.nft == nil {
		return 0, nil
	}
	return r.nft.Generation()
}

// Read reads base chains, and then what walk says that packets come to and that is not there yet, until it wants nothing
// more and again, which is asked then, does not want it to walk anew. What walk found before its last call counts for
// nothing: the rules may have changed meanwhile. A backend that cannot be read is told in Tables.Unread. It gives the
// generation of nf_tables that was read.
func (r *Reader) Read(walk func(path.Tables) ([]flannel.ChainID, []path.SetID), again func() bool) (uint32, error) {
	var unread []string
	if err := r.openNft(); err != nil {
		unread = append(unread, "nf_tables: "+err.Error())
	}
	if err := r.openLegacy(); err != nil {
		unread = append(unread, "iptables-legacy: "+err.Error())
	}
	for range patience {
		generation, settled, err := r.attempt(unread, walk, again)
		if err != nil || settled {
			return generation, err
		}
	}
	return 0, fmt.Errorf("read rules of all owners: %w", nft.ErrUnsettled)
}

// openNft opens what is not open yet; a kernel without nf_tables is none to complain of.
func (r *Reader) openNft() error {
	if r.nft != nil {
		return nil
	}
	g, err := nft.Gather()
	if err == nil {
		r.nft = g
	}
	if errors.Is(err, nfnl.ErrNotPresent) {
		return nil
	}
	return err
}

func (r *Reader) openLegacy() error {
	if r.legacy != nil {
		return nil
	}
	g, err := legacy.Gather()
	if err == nil {
		r.legacy = g
	}
	if errors.Is(err, legacy.ErrNotLoaded) {
		return nil
	}
	return err
}

// attempt makes one reading, and tells whether no commit fell into it.
func (r *Reader) attempt(unread []string, walk func(path.Tables) ([]flannel.ChainID, []path.SetID), again func() bool) (
	generation uint32, settled bool, err error,
) {
	one := reading{Reader: r, tables: path.Tables{Sets: map[path.SetID]path.Set{}, Unread: unread}, names: map[string]string{}}
	one.asked.chains, one.asked.sets = map[flannel.ChainID]bool{}, map[path.SetID]bool{}
	if err := one.bases(); err != nil {
		return 0, false, err
	}
	for {
		more, err := one.follow(walk(one.tables))
		if err != nil {
			return 0, false, err
		}
		if !more && !again() {
			break
		}
	}
	if r.legacy != nil {
		r.legacy.Rest()
	}
	if r.nft == nil {
		return 0, true, nil
	}
	if settled, err = r.nft.Settled(); err != nil || !settled {
		return 0, false, err
	}
	generation, err = r.nft.Generation()
	return generation, err == nil, err
}

// reading is one reading of what packets come to.
type reading struct {
	*Reader
	tables path.Tables
	names  map[string]string // of ipsets by the number that rules know them by
	asked  struct {
		chains map[flannel.ChainID]bool
		sets   map[path.SetID]bool
	}
}

func (r *reading) bases() error {
	if r.nft != nil {
		if err := r.nft.Begin(); err != nil {
			return err
		}
		chains, err := r.nft.Bases()
		if err != nil {
			return err
		}
		r.tables.Chains = append(r.tables.Chains, chains...)
	}
	if r.legacy != nil {
		chains, err := r.legacy.Bases()
		if err != nil {
			return err
		}
		r.tables.Chains = append(r.tables.Chains, chains...)
	}
	for i := range r.tables.Chains {
		r.nameSets(r.tables.Chains[i].Entries)
	}
	return nil
}

// follow reads what a walk came to, and tells whether there was anything.
func (r *reading) follow(chains []flannel.ChainID, sets []path.SetID) (more bool, err error) {
	for _, id := range chains {
		if r.asked.chains[id] || len(r.asked.chains) >= mostRead {
			continue
		}
		r.asked.chains[id], more = true, true
		if err := r.chain(id); err != nil {
			return false, err
		}
	}
	for _, id := range sets {
		if r.asked.sets[id] || len(r.asked.sets) >= mostRead {
			continue
		}
		r.asked.sets[id], more = true, true
		r.set(id)
	}
	return more, nil
}

func (r *reading) chain(id flannel.ChainID) (err error) {
	var c flannel.Chain
	switch {
	case id.Backend == flannel.IptablesLegacy && r.legacy != nil:
		c, err = r.legacy.Chain(id)
	case id.Backend != flannel.IptablesLegacy && r.nft != nil:
		c, err = r.nft.Chain(id)
	}
	if err == nil && c.Present {
		r.nameSets(c.Entries)
		r.tables.Chains = append(r.tables.Chains, c)
	}
	return err
}

// set reads a set. One that cannot be read is left out, and what depends on it is not sure.
func (r *reading) set(id path.SetID) {
	var s path.Set
	err := errors.ErrUnsupported
	switch {
	case id.Table != (flannel.TableID{}) && r.nft != nil:
		s, err = r.nft.Set(id)
	case id.Table == (flannel.TableID{}) && r.openSets() == nil:
		s, err = r.sets.Set(id.Name)
	}
	if err == nil {
		r.tables.Sets[id] = s
	}
}

func (r *Reader) openSets() error {
	if r.sets != nil {
		return nil
	}
	s, err := nft.OpenSets()
	if err == nil {
		r.sets = s
	}
	return err
}

// nameSets puts the names of ipsets in place of the numbers by which rules know them.
func (r *reading) nameSets(entries []flannel.Entry) {
	for i := range entries {
		for j, m := range entries[i].Rule.Matches {
			before, rest, found := strings.Cut(m.Text, "--match-set #")
			if m.Kind != flannel.MatchExtension || !found {
				continue
			}
			number, fields, _ := strings.Cut(rest, " ")
			matches := append([]flannel.Match(nil), entries[i].Rule.Matches...) // a rule is shared and never changed
			matches[j].Text = before + "--match-set " + r.setName(number) + " " + fields
			entries[i].Rule.Matches = matches
		}
	}
}

func (r *reading) setName(number string) string {
	if name, ok := r.names[number]; ok {
		return name
	}
	name := "#" + number
	if n, err := strconv.ParseUint(number, 10, 16); err == nil && r.openSets() == nil {
		if found, err := r.sets.Name(uint16(n)); err == nil {
			name = found
		}
	}
	r.names[number] = name
	return name
}

// Close closes what readings opened. Closing a netlink socket waits until the commit at hand in the namespace is over.
func (r *Reader) Close() error {
	var errs []error
	if r.nft != nil {
		errs = append(errs, r.nft.Close())
	}
	if r.sets != nil {
		errs = append(errs, r.sets.Close())
	}
	if r.legacy != nil {
		errs = append(errs, r.legacy.Close())
	}
	return errors.Join(errs...)
}
