package apply

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
	"flanwatch/remediate"
)

// Attributes of linux/netfilter/nf_tables.h that package unix lacks.
const (
	nftaTableUserdata = 6
	nftaChainUserdata = 12
)

// rawRule is a rule as the kernel holds it.
type rawRule struct {
	handle uint64
	raw    remediate.Raw
}

// rules dumps a chain; one that is not there has no rules.
func (s *socket) rules(id flannel.ChainID) ([]rawRule, error) {
	messages, err := s.ask(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, id.Family,
		attr{unix.NFTA_RULE_TABLE, id.Table}, attr{unix.NFTA_RULE_CHAIN, id.Name})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("dump %s: %w", id, err)
	}
	var out []rawRule
	for _, m := range messages {
		var r rawRule
		each(m, func(kind uint16, data []byte) {
			switch {
			case kind == unix.NFTA_RULE_HANDLE && len(data) == 8:
				r.handle = binary.BigEndian.Uint64(data)
			case kind == unix.NFTA_RULE_EXPRESSIONS:
				r.raw.Exprs = data
			case kind == unix.NFTA_RULE_USERDATA:
				r.raw.Userdata = data
			}
		})
		out = append(out, r)
	}
	return out, nil
}

// userdata is the comment of a table or chain, nil where there is none.
func (s *socket) userdata(command uint16, f flannel.Family, want uint16, attrs ...attr) ([]byte, error) {
	messages, err := s.ask(command, 0, f, attrs...)
	if errors.Is(err, unix.ENOENT) || err == nil && len(messages) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []byte
	each(messages[0], func(kind uint16, data []byte) {
		if kind == want {
			out = data
		}
	})
	return out, nil
}

// chains lists the names of the chains of a table.
func (s *socket) chains(t flannel.TableID) ([]string, error) {
	messages, err := s.ask(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, t.Family)
	if err != nil {
		return nil, fmt.Errorf("dump chains of %s: %w", t, err)
	}
	var out []string
	for _, m := range messages {
		var table, name string
		each(m, func(kind uint16, data []byte) {
			switch kind {
			case unix.NFTA_CHAIN_TABLE:
				table = strings.TrimRight(string(data), "\x00")
			case unix.NFTA_CHAIN_NAME:
				name = strings.TrimRight(string(data), "\x00")
			}
		})
		if table == t.Name {
			out = append(out, name)
		}
	}
	return out, nil
}

// fill takes down, as bytes, what the plan will remove from nf_tables. Rules that have changed meanwhile keep what they had:
// the batch is refused then.
func (r *run) fill(p *remediate.Plan) error {
	for i := range p.Tables {
		t := &p.Tables[i]
		if !t.Delete {
			continue
		}
		if err := r.onlyFlannels(t.Table); err != nil {
			return err
		}
		var err error
		if t.Userdata, err = r.socket.userdata(unix.NFT_MSG_GETTABLE, t.Table.Family, nftaTableUserdata,
			attr{unix.NFTA_TABLE_NAME, t.Table.Name}); err != nil {
			return fmt.Errorf("read table %s: %w", t.Table, err)
		}
	}
	for i := range p.Edits {
		e := &p.Edits[i]
		if e.Chain.Backend == flannel.IptablesLegacy || e.Count(remediate.Remove) == 0 && !e.Delete {
			continue
		}
		if err := r.fillEdit(e); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) fillEdit(e *remediate.Edit) error {
	raw, err := r.socket.rules(e.Chain)
	if err != nil {
		return err
	}
	for i := range e.Lines {
		l := &e.Lines[i]
		if l.Mark != remediate.Remove {
			continue
		}
		at := slices.IndexFunc(raw, func(x rawRule) bool { return x.handle == l.Handle })
		if at < 0 {
			continue
		}
		if scan, err := wire.ScanRule(raw[at].raw.Exprs); err == nil && scan.Body == l.Body {
			l.Raw = &raw[at].raw
		}
	}
	if e.Delete {
		e.Userdata, err = r.socket.userdata(unix.NFT_MSG_GETCHAIN, e.Chain.Family, nftaChainUserdata,
			attr{unix.NFTA_CHAIN_TABLE, e.Chain.Table}, attr{unix.NFTA_CHAIN_NAME, e.Chain.Name})
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", e.Chain, err)
	}
	return nil
}

// onlyFlannels refuses to remove a native table in which somebody else made a chain.
func (r *run) onlyFlannels(t flannel.TableID) error {
	names, err := r.socket.chains(t)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name != flannel.NativeMasq && name != flannel.NativeForward {
			return &RefusedError{[]remediate.Refusal{{
				Name: remediate.GuardForeign, Change: "move that chain elsewhere first",
				Why: fmt.Sprintf("Table %s %s holds a chain that Flannel did not make: %s.", t.Family, t.Name, flannel.Printable(name)),
			}}}
		}
	}
	return nil
}

// dumpText is the part of the backup for nf_tables: the rules of the chains concerned as bytes.
func (r *run) dumpText() string {
	var b strings.Builder
	b.WriteString("# rules of the chains concerned, as nf_tables expressions in base64\n")
	for _, e := range r.plan.Edits {
		for _, l := range e.Lines {
			if l.Raw != nil {
				fmt.Fprintf(&b, "# %s handle %d %s\n", e.Chain, l.Handle, base64.StdEncoding.EncodeToString(l.Raw.Exprs))
			}
		}
	}
	return b.String()
}
