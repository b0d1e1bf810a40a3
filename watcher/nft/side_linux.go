package nft

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack/nfnl"
	"flanwatch/flannel"
)

// side reads the tables and chains of one backend into its ruleset. chains[i] reads what rules.Chains[i] shows.
type side struct {
	tables []table
	chains []chain
	others []chain // of other owners, of which only the heads are read; others[i] reads what rules.Others[i] shows
	rules  flannel.Ruleset
}

func newSide(b flannel.Backend) side {
	s := side{rules: flannel.Ruleset{Backend: b}}
	for _, id := range watched() {
		if id.Backend != b {
			continue
		}
		if n := len(s.tables); n == 0 || s.tables[n-1].id != id.TableID() {
			s.tables = append(s.tables, newTable(id.TableID()))
		}
		s.chains = append(s.chains, newChain(id, len(s.tables)-1))
		s.rules.Chains = append(s.rules.Chains, flannel.Chain{ID: id})
	}
	for _, id := range flannel.Marks(b) {
		at := slices.IndexFunc(s.tables, func(t table) bool { return t.id == id.TableID() })
		s.others = append(s.others, newChain(id, at))
		s.rules.Others = append(s.rules.Others, flannel.Mark{ID: id})
	}
	return s
}

// readStructure finds out which tables and chains exist.
func (s *side) readStructure(sock *socket) error {
	for i := range s.tables {
		if err := s.tables[i].read(sock); err != nil {
			return err
		}
	}
	for _, chains := range [][]chain{s.chains, s.others} {
		for i := range chains {
			c := &chains[i]
			if !s.tables[c.table].present {
				c.head = head{}
				continue
			}
			if err := c.readHead(sock); err != nil {
				return err
			}
		}
	}
	return nil
}

// readRules reads the rules of all chains that exist. It tells whether all are of the given generation, as far as messages
// came that say so.
func (s *side) readRules(sock *socket, gen uint32) (whole bool, err error) {
	for i := range s.chains {
		c := &s.chains[i]
		if !c.present {
			c.entries = c.entries[:0]
			continue
		}
		if whole, err := c.readRules(sock, gen, s.rules.Chains[i].Entries); err != nil || !whole {
			return false, err
		}
	}
	return true, nil
}

// changed tells whether more than counters differs from what the ruleset shows.
func (s *side) changed() bool {
	for i := range s.tables {
		if t := &s.tables[i]; t.present != s.rules.HasTable(t.id) {
			return true
		}
	}
	for i := range s.chains {
		if s.chains[i].changed(&s.rules.Chains[i]) {
			return true
		}
	}
	for i := range s.others {
		if s.others[i].alive() != s.rules.Others[i].Alive {
			return true
		}
	}
	return false
}

// publish makes the ruleset show what was read.
func (s *side) publish(gen uint32) {
	s.rules.Generation = gen
	if s.rules.Revision != 0 && !s.changed() {
		for i := range s.chains {
			s.chains[i].publishCounters(s.rules.Chains[i].Entries)
		}
		return
	}
	s.rules.Revision++
	s.rules.Tables = s.rules.Tables[:0]
	for i := range s.tables {
		if t := &s.tables[i]; t.present {
			s.rules.Tables = append(s.rules.Tables, t.id)
		}
	}
	for i := range s.chains {
		s.chains[i].publish(&s.rules.Chains[i])
	}
	for i := range s.others {
		s.rules.Others[i].Alive = s.others[i].alive()
	}
}

// table finds out whether a table exists.
type table struct {
	id      flannel.TableID
	get     []byte
	present bool
}

func newTable(id flannel.TableID) table {
	return table{id: id, get: request(unix.NFT_MSG_GETTABLE, 0, protocol(id.Family), stringAttr{unix.NFTA_TABLE_NAME, id.Name})}
}

func (t *table) read(sock *socket) error {
	_, err := sock.ask(t.get)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("read table %s %s: %w", t.id.Family, t.id.Name, nfnl.Explain(err))
	}
	t.present = err == nil
	return nil
}
