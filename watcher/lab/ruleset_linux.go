package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ruleset is nf_tables of the namespace, as the lab's programs read and change it.
type ruleset struct{ conn *netlink.Conn }

func openRuleset() (*ruleset, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open nf_tables: %w", err)
	}
	return &ruleset{conn}, nil
}

func (s *ruleset) close() { s.conn.Close() } //nolint:errcheck // nothing was left to send

func (s *ruleset) commit(b *wire.Batch) error { return wire.Commit(s.conn, b) }

// placed is a rule in a chain.
type placed struct {
	handle uint64
	rule   flannel.Rule
}

// rules gives the rules of a chain in order, none for a chain that is absent.
func (s *ruleset) rules(id flannel.ChainID) ([]placed, error) {
	answers, err := s.ask(unix.NFT_MSG_GETRULE, netlink.Dump, id.Family, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_TABLE, id.Table)
		e.String(unix.NFTA_RULE_CHAIN, id.Name)
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", id, err)
	}
	var found []placed
	for _, attrs := range answers {
		var p placed
		var exprs []byte
		for attrs.Next() {
			switch attrs.Type() {
			case unix.NFTA_RULE_HANDLE:
				p.handle = attrs.Uint64()
			case unix.NFTA_RULE_EXPRESSIONS:
				exprs = attrs.Bytes()
			}
		}
		p.rule = wire.Decode(id.Family, exprs)
		found = append(found, p)
	}
	return found, nil
}

// has tells whether a chain exists.
func (s *ruleset) has(id flannel.ChainID) (bool, error) {
	_, err := s.ask(unix.NFT_MSG_GETCHAIN, 0, id.Family, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_CHAIN_TABLE, id.Table)
		e.String(unix.NFTA_CHAIN_NAME, id.Name)
	})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// chains lists the chains of a table, sorted.
func (s *ruleset) chains(t flannel.TableID) ([]flannel.ChainID, error) {
	answers, err := s.ask(unix.NFT_MSG_GETCHAIN, netlink.Dump, t.Family, nil)
	if err != nil {
		return nil, fmt.Errorf("list chains of %s: %w", t, err)
	}
	var found []flannel.ChainID
	for _, attrs := range answers {
		id := flannel.ChainID{Backend: t.Backend, Family: t.Family}
		for attrs.Next() {
			switch attrs.Type() {
			case unix.NFTA_CHAIN_TABLE:
				id.Table = attrs.String()
			case unix.NFTA_CHAIN_NAME:
				id.Name = attrs.String()
			}
		}
		if id.Table == t.Name {
			found = append(found, id)
		}
	}
	slices.SortFunc(found, flannel.ChainID.Compare)
	return found, nil
}

// tables lists the tables of a family by name.
func (s *ruleset) tables(f flannel.Family) ([]string, error) {
	answers, err := s.ask(unix.NFT_MSG_GETTABLE, netlink.Dump, f, nil)
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	var found []string
	for _, attrs := range answers {
		for attrs.Next() {
			if attrs.Type() == unix.NFTA_TABLE_NAME {
				found = append(found, attrs.String())
			}
		}
	}
	return found, nil
}

// ask sends one request and gives the attributes of each answer.
func (s *ruleset) ask(kind uint16, flags netlink.HeaderFlags, f flannel.Family, body func(*netlink.AttributeEncoder)) ([]*netlink.AttributeDecoder, error) {
	family := byte(unix.NFPROTO_IPV4)
	if f == flannel.IPv6 {
		family = unix.NFPROTO_IPV6
	}
	e := netlink.NewAttributeEncoder()
	if body != nil {
		body(e)
	}
	attrs, err := e.Encode()
	if err != nil {
		return nil, err
	}
	const genHeader = 4
	answers, err := s.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | netlink.HeaderType(kind), Flags: netlink.Request | flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...),
	})
	if err != nil {
		return nil, err
	}
	var found []*netlink.AttributeDecoder
	for _, m := range answers {
		d, err := netlink.NewAttributeDecoder(m.Data[min(genHeader, len(m.Data)):])
		if err != nil {
			return nil, err
		}
		d.ByteOrder = binary.BigEndian
		found = append(found, d)
	}
	return found, nil
}

// builtIn are the chains that iptables-nft makes in a table of its own.
var builtIn = map[string][]struct {
	name string
	base flannel.BaseChain
}{
	flannel.TableNat: {
		{"PREROUTING", flannel.BaseChain{Type: "nat", Hook: "prerouting", Priority: -100, Policy: "accept"}},
		{"INPUT", flannel.BaseChain{Type: "nat", Hook: "input", Priority: 100, Policy: "accept"}},
		{"OUTPUT", flannel.BaseChain{Type: "nat", Hook: "output", Priority: -100, Policy: "accept"}},
		{flannel.ChainPostrouting, flannel.BaseChain{Type: "nat", Hook: "postrouting", Priority: 100, Policy: "accept"}},
	},
	flannel.TableFilter: {
		{"INPUT", flannel.BaseChain{Type: "filter", Hook: "input", Policy: "accept"}},
		{flannel.ChainForward, flannel.BaseChain{Type: "filter", Hook: "forward", Policy: "accept"}},
		{"OUTPUT", flannel.BaseChain{Type: "filter", Hook: "output", Policy: "accept"}},
	},
}

// prepare adds to the batch what a table of iptables-nft lacks. Chains that are there keep their policy.
func (s *ruleset) prepare(b *wire.Batch, t flannel.TableID) error {
	chains, ok := builtIn[t.Name]
	if !ok {
		return fmt.Errorf("%s: no such table in the lab", t)
	}
	b.AddTable(t)
	for _, c := range chains {
		id := flannel.ChainID{Backend: t.Backend, Family: t.Family, Table: t.Name, Name: c.name}
		present, err := s.has(id)
		if err != nil {
			return err
		}
		if present {
			continue
		}
		if err := b.AddBaseChain(id, c.base); err != nil {
			return err
		}
	}
	return nil
}

// find gives the first rule of a chain that says the same, or ok = false.
func find(rules []placed, r flannel.Rule) (p placed, ok bool) {
	i := slices.IndexFunc(rules, func(p placed) bool { return p.rule.Equal(r) })
	if i < 0 {
		return placed{}, false
	}
	return rules[i], true
}

// encode gives the expressions of a rule, also of the few with matches that flanwatch understands and does not write.
func encode(id flannel.ChainID, r flannel.Rule) ([]byte, error) {
	var raw []byte
	understood := slices.DeleteFunc(slices.Clone(r.Matches), func(m flannel.Match) bool {
		known, ok := rawMatches[m.Text]
		if m.Kind != flannel.MatchExtension || !ok {
			return false
		}
		raw = append(raw, known()...)
		return true
	})
	exprs, err := wire.Encode(id, flannel.Rule{Matches: understood, Target: r.Target})
	if err != nil {
		return nil, err
	}
	return append(raw, exprs...), nil
}

// familyOf tells the family from the name of an iptables program.
func familyOf(program string) flannel.Family {
	if strings.HasPrefix(program, "ip6") {
		return flannel.IPv6
	}
	return flannel.IPv4
}
