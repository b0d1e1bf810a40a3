package nft

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack/nfnl"
	"flanwatch/flannel"
	"flanwatch/flannel/path"
	"flanwatch/flannel/wire"
)

// Attributes and flags of linux/netfilter/nf_tables.h that x/sys does not have.
const (
	elemKeyEnd      = 10 // NFTA_SET_ELEM_KEY_END
	elemExpressions = 11 // NFTA_SET_ELEM_EXPRESSIONS
	elemCatchall    = 2  // NFT_SET_ELEM_CATCHALL
	setConcat       = 128
)

// mostElements bounds what is kept of a set.
const mostElements = 200_000

// Set reads a set of a native table, or a map from keys to verdicts. A map to anything else is refused.
func (g *Gatherer) Set(id path.SetID) (path.Set, error) {
	s, err := g.set(id)
	if err != nil {
		return path.Set{}, fmt.Errorf("read set %s of %s %s: %w", id.Name, id.Table.Family, id.Table.Name, nfnl.Explain(err))
	}
	return s, nil
}

func (g *Gatherer) set(id path.SetID) (path.Set, error) {
	family, table := address(flannel.ChainID{Backend: id.Table.Backend, Family: id.Table.Family, Table: id.Table.Name})
	m, err := g.reader.socket.ask(request(unix.NFT_MSG_GETSET, 0, family,
		stringAttr{unix.NFTA_SET_TABLE, table}, stringAttr{unix.NFTA_SET_NAME, id.Name}))
	if err != nil {
		return path.Set{}, err
	}
	kind := setKind{}
	for a := (attributes{rest: m.body}); a.next(); {
		switch a.kind {
		case unix.NFTA_SET_FLAGS:
			kind.flags = a.uint32()
		case unix.NFTA_SET_KEY_LEN:
			kind.width = int(a.uint32())
		}
	}
	var elements []element
	var broken error
	dump := request(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, family,
		stringAttr{unix.NFTA_SET_ELEM_LIST_TABLE, table}, stringAttr{unix.NFTA_SET_ELEM_LIST_SET, id.Name})
	err = g.dump(dump, unix.NFT_MSG_NEWSETELEM, func(m message) {
		for a := (attributes{rest: m.body}); a.next(); {
			if a.kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				continue
			}
			for e := (attributes{rest: a.data}); e.next(); {
				if len(elements) == mostElements {
					broken = fmt.Errorf("more than %d elements", mostElements)
					return
				}
				elements = append(elements, parseElement(e.data))
			}
		}
	})
	switch {
	case err != nil:
		return path.Set{}, err
	case broken != nil:
		return path.Set{}, broken
	}
	return kind.build(elements), nil
}

// setKind is what a set says of its elements.
type setKind struct {
	flags uint32
	width int // bytes of a key
}

// element is one as the kernel lists it: of a range without parts the end is an element of its own, which lies behind it.
type element struct {
	path.Element
	end  bool
	rest bool
}

func parseElement(body []byte) element {
	var e element
	e.Target.Kind = flannel.TargetNone
	for a := (attributes{rest: body}); a.next(); {
		switch a.kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.Low = keyOf(a.data)
		case elemKeyEnd:
			e.High = keyOf(a.data)
		case unix.NFTA_SET_ELEM_DATA:
			e.Target = targetOf(a.data)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.end = a.uint32()&unix.NFT_SET_ELEM_INTERVAL_END != 0
			e.rest = a.uint32()&elemCatchall != 0
		case unix.NFTA_SET_ELEM_EXPR:
			e.Unsure = e.Unsure || !counts(a.data)
		case elemExpressions:
			for x := (attributes{rest: a.data}); x.next(); {
				e.Unsure = e.Unsure || !counts(x.data)
			}
		}
	}
	return e
}

func keyOf(data []byte) string {
	for a := (attributes{rest: data}); a.next(); {
		if a.kind == unix.NFTA_DATA_VALUE {
			return string(a.data)
		}
	}
	return ""
}

// targetOf is the verdict of an element, opaque where its datum is no verdict.
func targetOf(data []byte) flannel.Target {
	for a := (attributes{rest: data}); a.next(); {
		if a.kind == unix.NFTA_DATA_VERDICT {
			return wire.DecodeVerdict(a.data)
		}
	}
	return flannel.Target{Text: "[datum of a map]"}
}

// counts tells an expression that holds whatever comes.
func counts(data []byte) bool {
	for a := (attributes{rest: data}); a.next(); {
		if a.kind == unix.NFTA_EXPR_NAME {
			return string(a.text()) == "counter" || string(a.text()) == "last"
		}
	}
	return false
}

// build makes a set of what was listed.
func (k setKind) build(list []element) path.Set {
	var s path.Set
	list = slices.DeleteFunc(list, func(e element) bool {
		if e.rest {
			rest := e.Element
			s.Rest = &rest
		}
		return e.rest
	})
	slices.SortStableFunc(list, func(a, b element) int {
		if c := strings.Compare(a.Low, b.Low); c != 0 {
			return c
		}
		return boolInt(b.end) - boolInt(a.end) // one range ends where the next begins
	})
	ranges := k.flags&unix.NFT_SET_INTERVAL != 0 && k.flags&setConcat == 0
	for i, e := range list {
		switch {
		case e.end:
			continue
		case e.High != "": // the end came with it
		case !ranges:
			e.High = e.Low
		case i+1 < len(list):
			e.High = below(list[i+1].Low)
		default:
			e.High = strings.Repeat("\xff", k.width)
		}
		s.Ranges = s.Ranges || e.High != e.Low
		s.Elements = append(s.Elements, e.Element)
	}
	return s
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// below is the key before another one.
func below(key string) string {
	b := bytes.Clone([]byte(key))
	for i := len(b) - 1; i >= 0; i-- {
		b[i]--
		if b[i] != 0xff {
			break
		}
	}
	return string(b)
}
