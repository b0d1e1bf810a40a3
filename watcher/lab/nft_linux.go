package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
)

// nft is the program of that name: `nft -f -` for flanneld, and what a person types against it.
func nft(_ string, args []string) error {
	s, err := openRuleset()
	if err != nil {
		return err
	}
	defer s.close()
	b := &wire.Batch{}
	switch line := strings.Join(args, " "); {
	case line == "-f -":
		err = s.readNative(b)
	case line == "flush ruleset":
		err = s.deleteAll(b)
	case len(args) == 4 && strings.HasPrefix(line, "delete table "):
		b.DeleteTable(nativeTable(args[2], args[3]))
	case len(args) == 5 && strings.HasPrefix(line, "flush chain "):
		b.FlushChain(chainOf(nativeTable(args[2], args[3]), args[4]))
	default:
		err = fmt.Errorf("syntax error: %s", line)
	}
	if err != nil {
		return err
	}
	return s.commit(b)
}

func nativeTable(family, name string) flannel.TableID {
	t := flannel.TableID{Backend: flannel.Nftables, Family: flannel.IPv4, Name: name}
	if family == flannel.IPv6.String() {
		t.Family = flannel.IPv6
	}
	return t
}

// nativeChain is a base chain of a native table with all its rules.
type nativeChain struct {
	ID    flannel.ChainID
	Base  flannel.BaseChain
	Rules []flannel.Rule
}

// readNative fills a native chain anew. What the lab's flanneld sends is the chain itself, not nft's language.
func (s *ruleset) readNative(b *wire.Batch) error {
	var w nativeChain
	if err := json.NewDecoder(os.Stdin).Decode(&w); err != nil {
		return err
	}
	b.AddTable(w.ID.TableID())
	if err := b.AddBaseChain(w.ID, w.Base); err != nil {
		return err
	}
	b.FlushChain(w.ID)
	for _, r := range w.Rules {
		if err := insert(b, w.ID, r, b.AppendRule); err != nil {
			return err
		}
	}
	return nil
}

func (s *ruleset) deleteAll(b *wire.Batch) error {
	for _, f := range flannel.Families {
		names, err := s.tables(f)
		if err != nil {
			return err
		}
		for _, name := range names {
			b.DeleteTable(flannel.TableID{Backend: flannel.Nftables, Family: f, Name: name})
		}
	}
	return nil
}
