package lab

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
)

// change is one operation on a table, as an iptables command line or a line for iptables-restore names it.
type change struct {
	verb  string // "-A", "-I", "-D", "-C", "-N", "-F", "-X", or ":" for a chain's line in restore's input
	chain string // "" for a whole table
	place int    // of "-I", from 1
	rule  flannel.Rule
}

// iptables is the program of that name, for the operations that Flannel and the scenarios use.
func iptables(name string, args []string) error {
	table := flannel.TableID{Backend: flannel.IptablesNft, Family: familyOf(name), Name: flannel.TableFilter}
	var words []string
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "-t":
			i++
			if i == len(args) {
				return errors.New(`option "-t" requires an argument`)
			}
			table.Name = args[i]
		case "-w", "--wait":
		default:
			words = append(words, args[i])
		}
	}
	c, err := parseChange(words)
	if err != nil {
		return err
	}
	s, err := openRuleset()
	if err != nil {
		return err
	}
	defer s.close()
	if c.verb == "-C" {
		return s.check(table, c)
	}
	b := &wire.Batch{}
	if err := s.add(b, table, c, map[string][]placed{}); err != nil {
		return err
	}
	return s.commit(b)
}

// parseChange reads an operation from its words, which need no quotes any more.
func parseChange(words []string) (change, error) {
	if len(words) == 0 {
		return change{}, errors.New("no command specified")
	}
	c := change{verb: words[0]}
	words = words[1:]
	if len(words) > 0 {
		c.chain, words = words[0], words[1:]
	}
	if c.verb == "-I" {
		c.place = 1
		if len(words) > 0 {
			if n, err := strconv.Atoi(words[0]); err == nil {
				c.place, words = n, words[1:]
			}
		}
	}
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = w
		if strings.ContainsAny(w, " \t\"") {
			quoted[i] = strconv.Quote(w)
		}
	}
	var err error
	c.rule, err = flannel.ParseRule(strings.Join(quoted, " "))
	return c, err
}

var errNoRule = errors.New("bad rule (does a matching rule exist in that chain?)")

func (s *ruleset) check(t flannel.TableID, c change) error {
	rules, err := s.rules(chainOf(t, c.chain))
	if err != nil {
		return err
	}
	if _, ok := find(rules, c.rule); !ok {
		return errNoRule
	}
	return nil
}

// add puts an operation into a batch. Rules that the batch deletes are taken out of known, which holds what the chains
// had before it.
func (s *ruleset) add(b *wire.Batch, t flannel.TableID, c change, known map[string][]placed) error {
	id := chainOf(t, c.chain)
	switch c.verb {
	case ":", "-N", "-A", "-I":
		if b.Len() == 0 {
			if err := s.prepare(b, t); err != nil {
				return err
			}
		}
	}
	switch c.verb {
	case ":":
		return s.declare(b, id)
	case "-N":
		return s.create(b, id)
	case "-F":
		return s.flush(b, t, c.chain)
	case "-X":
		b.DeleteChain(id)
		return nil
	}
	if _, ok := known[c.chain]; !ok {
		rules, err := s.rules(id)
		if err != nil {
			return err
		}
		known[c.chain] = rules
	}
	switch c.verb {
	case "-A":
		return insert(b, id, c.rule, b.AppendRule)
	case "-I":
		return insertAt(b, id, c, known[c.chain])
	case "-D":
		return remove(b, id, c, known)
	}
	return fmt.Errorf("unknown option %q", c.verb)
}

func chainOf(t flannel.TableID, name string) flannel.ChainID {
	return flannel.ChainID{Backend: t.Backend, Family: t.Family, Table: t.Name, Name: name}
}

// declare makes a chain or empties it, as a chain's line does for iptables-restore --noflush. Built-in chains stay.
func (s *ruleset) declare(b *wire.Batch, id flannel.ChainID) error {
	for _, c := range builtIn[id.Table] {
		if c.name == id.Name {
			return nil
		}
	}
	present, err := s.has(id)
	if err != nil {
		return err
	}
	b.AddChain(id)
	if present {
		b.FlushChain(id)
	}
	return nil
}

func (s *ruleset) create(b *wire.Batch, id flannel.ChainID) error {
	present, err := s.has(id)
	if err == nil && present {
		err = errors.New("chain already exists")
	}
	b.AddChain(id)
	return err
}

func (s *ruleset) flush(b *wire.Batch, t flannel.TableID, chain string) error {
	if chain != "" {
		b.FlushChain(chainOf(t, chain))
		return nil
	}
	chains, err := s.chains(t)
	for _, id := range chains {
		b.FlushChain(id)
	}
	return err
}

func insert(b *wire.Batch, id flannel.ChainID, r flannel.Rule, add func(flannel.ChainID, []byte)) error {
	exprs, err := encode(id, r)
	if err == nil {
		add(id, exprs)
	}
	return err
}

func insertAt(b *wire.Batch, id flannel.ChainID, c change, rules []placed) error {
	if c.place <= 1 {
		return insert(b, id, c.rule, b.PrependRule)
	}
	if c.place > len(rules)+1 {
		return errors.New("index of insertion too big")
	}
	return insert(b, id, c.rule, func(id flannel.ChainID, exprs []byte) {
		b.AddRuleAfter(id, rules[c.place-2].handle, exprs)
	})
}

func remove(b *wire.Batch, id flannel.ChainID, c change, known map[string][]placed) error {
	p, ok := find(known[c.chain], c.rule)
	if !ok {
		return errNoRule
	}
	b.DeleteRule(id, p.handle)
	var rest []placed
	for _, q := range known[c.chain] {
		if q.handle != p.handle {
			rest = append(rest, q)
		}
	}
	known[c.chain] = rest
	return nil
}
