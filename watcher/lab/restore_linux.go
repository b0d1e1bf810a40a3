package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
)

// iptablesRestore is iptables-restore --noflush: each table of its input becomes one transaction.
func iptablesRestore(name string, _ []string) error {
	s, err := openRuleset()
	if err != nil {
		return err
	}
	defer s.close()
	return s.restore(os.Stdin, familyOf(name))
}

func (s *ruleset) restore(in io.Reader, f flannel.Family) error {
	var open *transaction
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		var err error
		if open, err = s.restoreLine(open, line, f); err != nil {
			return fmt.Errorf("line %d: %s: %w", n, line, err)
		}
	}
	if open != nil {
		return errors.New("COMMIT expected at the end")
	}
	return lines.Err()
}

// transaction is a table of restore's input.
type transaction struct {
	table flannel.TableID
	batch *wire.Batch
	known map[string][]placed
}

func (s *ruleset) restoreLine(t *transaction, line string, f flannel.Family) (*transaction, error) {
	switch {
	case line[0] == '*':
		table := flannel.TableID{Backend: flannel.IptablesNft, Family: f, Name: line[1:]}
		return &transaction{table, &wire.Batch{}, map[string][]placed{}}, nil
	case t == nil:
		return nil, errors.New("no table is open")
	case line == "COMMIT":
		return nil, s.commit(t.batch)
	case line[0] == ':':
		name, _, _ := strings.Cut(line[1:], " ")
		return t, s.add(t.batch, t.table, change{verb: ":", chain: name}, t.known)
	}
	c, err := parseLine(line)
	if err != nil {
		return nil, err
	}
	return t, s.add(t.batch, t.table, c, t.known)
}

// parseLine reads an operation as iptables-save writes it, quotes and all.
func parseLine(line string) (c change, err error) {
	verb, rest, _ := strings.Cut(line, " ")
	chain, rule, _ := strings.Cut(rest, " ")
	c = change{verb: verb, chain: chain, place: 1}
	c.rule, err = flannel.ParseRule(rule)
	return c, err
}
