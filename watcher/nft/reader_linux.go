package nft

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack/nfnl"
	"flanwatch/flannel"
)

// attempts bounds how often a ruleset that is changed while it is read is read again. One attempt takes about 0.3 ms.
const attempts = 100

// Reader reads Flannel's chains of one network namespace, again and again. It is not safe for concurrent use.
type Reader struct {
	socket *socket
	getGen []byte
	gen    uint32
	read   bool // both sides hold a whole reading, of generation gen
	nft    side
	native side
}

// Open makes a reader for the calling thread's network namespace and asks the kernel once whether it will answer.
func Open() (*Reader, error) {
	r, err := open()
	if err != nil {
		return nil, fmt.Errorf("open nf_tables: %w", err)
	}
	return r, nil
}

func open() (*Reader, error) {
	if err := nfnl.Present(os.DirFS("/"), nfnl.Tables); err != nil {
		return nil, err
	}
	s, err := dial()
	if err != nil {
		return nil, err
	}
	r := &Reader{
		socket: s,
		getGen: request(unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC),
		nft:    newSide(flannel.IptablesNft),
		native: newSide(flannel.Nftables),
	}
	if _, err := r.generation(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return r, nil
}

// Close closes the socket. That waits until the commit at hand in the namespace is over, possibly for seconds.
func (r *Reader) Close() error { return r.socket.close() }

// Read reads the chains that iptables-nft keeps for Flannel and the chains of its native tables, all of one generation.
// Both rulesets are the reader's own and are overwritten by the next Read; while nothing but counters changes, they keep
// their Revision. After an error they are as the last good Read left them.
func (r *Reader) Read() (nft, native *flannel.Ruleset, err error) {
	for range attempts {
		whole, err := r.round()
		if err != nil {
			return nil, nil, err
		}
		if whole {
			return &r.nft.rules, &r.native.rules, nil
		}
	}
	return nil, nil, fmt.Errorf("read nf_tables: %w", ErrUnsettled)
}

// round reads everything once. It tells whether all of it is of one generation; only then it is published.
//
// While the generation is that of the last reading, tables and chains are the same too, and only rules are read, for their
// counters. The generation is asked for once more where something was found changed; rules that are as they were cannot be
// torn.
func (r *Reader) round() (whole bool, err error) {
	gen, err := r.generation()
	if err != nil {
		return false, err
	}
	news := !r.read || gen != r.gen
	for _, s := range []*side{&r.nft, &r.native} {
		if news {
			if err := s.readStructure(r.socket); err != nil {
				return false, err
			}
		}
		if whole, err := s.readRules(r.socket, gen); err != nil || !whole {
			return false, err
		}
	}
	if news || r.nft.changed() || r.native.changed() {
		after, err := r.generation()
		if err != nil || after != gen {
			return false, err
		}
	}
	r.nft.publish(gen)
	r.native.publish(gen)
	r.gen, r.read = gen, true
	return true, nil
}

// generation is the number of the last commit in the namespace.
func (r *Reader) generation() (uint32, error) {
	m, err := r.socket.ask(r.getGen)
	if err != nil {
		return 0, fmt.Errorf("read nf_tables generation: %w", nfnl.Explain(err))
	}
	for a := (attributes{rest: m.body}); a.next(); {
		if a.kind == unix.NFTA_GEN_ID {
			return a.uint32(), nil
		}
	}
	return 0, fmt.Errorf("read nf_tables generation: %w", errMalformed)
}
