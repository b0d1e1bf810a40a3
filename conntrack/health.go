package conntrack

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Count is a figure that may be unknown. Unknown is null in JSON, never 0.
type Count struct {
	N     uint64
	Known bool
}

// Counted is a known figure.
func Counted(n uint64) Count { return Count{n, true} }

// MarshalJSON writes the figure, or null.
func (c Count) MarshalJSON() ([]byte, error) {
	if !c.Known {
		return []byte("null"), nil
	}
	return strconv.AppendUint(nil, c.N, 10), nil
}

// UnmarshalJSON reads a figure or null.
func (c *Count) UnmarshalJSON(b []byte) error {
	*c = Count{}
	if string(b) == "null" {
		return nil
	}
	if err := json.Unmarshal(b, &c.N); err != nil {
		return fmt.Errorf("read count: %w", err)
	}
	c.Known = true
	return nil
}

// add takes one more part of a sum.
func (c *Count) add(n uint64) { c.N, c.Known = c.N+n, true }

// Where health is read.
const (
	SourceNetlink = "netlink"
	SourceProcfs  = "procfs"
)

// Health is the state of the table in one network namespace. The counters below Max run since the namespace was made,
// summed over the processors; each processor's is a 32-bit number in the kernel and wraps around. A kernel that lacks one
// leaves it unknown.
type Health struct {
	Source string `json:"source"`
	Count  Count  `json:"count"` // entries now
	Max    Count  `json:"max"`   // net.netfilter.nf_conntrack_max

	Found         Count `json:"found"`
	Invalid       Count `json:"invalid"`
	InsertFailed  Count `json:"insertFailed"`  // a connection lost the race for its translated tuple, or its hash chain was full
	Drop          Count `json:"drop"`          // packets dropped for want of an entry
	EarlyDrop     Count `json:"earlyDrop"`     // entries not assured, evicted to make room
	ClashResolve  Count `json:"clashResolve"`  // races that ended well
	SearchRestart Count `json:"searchRestart"` // look-ups begun anew, while the table was resized
	ChainTooLong  Count `json:"chainTooLong"`
	ICMPError     Count `json:"icmpError"`

	// Whether a rule of each family makes the kernel track connections.
	Use4 Use `json:"use4,omitempty"`
	Use6 Use `json:"use6,omitempty"`
}

// Use tells whether some rule of a family uses connection tracking. Without one the kernel looks no packet up: entries that
// are there are inert until they expire, and no new ones come.
type Use uint8

// The zero value is "not known".
const (
	UseUnknown Use = iota
	UseNone
	UseRules
)

// Inert tells whether no rule is known to use connection tracking in either family.
func (h *Health) Inert() bool { return h.Use4 == UseNone && h.Use6 == UseNone }

// Fill is the share of the table in use; known only where both figures are and there is a limit.
func (h *Health) Fill() (float64, bool) {
	if !h.Count.Known || !h.Max.Known || h.Max.N == 0 {
		return 0, false
	}
	return float64(h.Count.N) / float64(h.Max.N), true
}

// Numbers of CTA_STATS_*, whose places in Health these are.
func (h *Health) byStat(kind uint16) *Count {
	switch kind {
	case 2:
		return &h.Found
	case 4:
		return &h.Invalid
	case 9:
		return &h.InsertFailed
	case 10:
		return &h.Drop
	case 11:
		return &h.EarlyDrop
	case 12:
		return &h.ICMPError
	case 13:
		return &h.SearchRestart
	case 14:
		return &h.ClashResolve
	case 15:
		return &h.ChainTooLong
	}
	return nil
}

// AddStats adds the counters of one processor, the attributes of an answer to CT_GET_STATS_CPU. The number of entries that
// an older kernel sends along is that of the whole table, once for each processor, and is left alone.
func (h *Health) AddStats(b []byte) error {
	a := attributes{rest: b}
	for a.next() {
		if c := h.byStat(a.kind); c != nil {
			c.add(uint64(a.uint32()))
		}
	}
	if a.bad {
		return fmt.Errorf("conntrack statistics: %w", ErrMalformed)
	}
	return nil
}

// SetGlobal takes the figures of the table, the attributes of an answer to CT_GET_STATS.
func (h *Health) SetGlobal(b []byte) error {
	const entries, limit = 1, 2
	a := attributes{rest: b}
	for a.next() {
		switch a.kind {
		case entries:
			h.Count = Counted(uint64(a.uint32()))
		case limit: // since Linux 4.18
			h.Max = Counted(uint64(a.uint32()))
		}
	}
	if a.bad {
		return fmt.Errorf("conntrack statistics: %w", ErrMalformed)
	}
	return nil
}

// columns names the counters in the head line of /proc/net/stat/nf_conntrack. Kernels differ in which they have, and in
// the place of clashres and chainlength.
func (h *Health) byColumn(name string) *Count {
	switch name {
	case "found":
		return &h.Found
	case "invalid":
		return &h.Invalid
	case "insert_failed":
		return &h.InsertFailed
	case "drop":
		return &h.Drop
	case "early_drop":
		return &h.EarlyDrop
	case "icmp_error":
		return &h.ICMPError
	case "search_restart":
		return &h.SearchRestart
	case "clashres":
		return &h.ClashResolve
	case "chainlength", "chaintoolong":
		return &h.ChainTooLong
	}
	return nil
}

// errNoProc is a /proc/net/stat/nf_conntrack without its head line.
var errNoProc = errors.New("no table of columns")

// AddProc takes the text of /proc/net/stat/nf_conntrack: a line of names, then one line of hexadecimal numbers for each
// processor. The first column, the number of entries, is the same in each.
func (h *Health) AddProc(text string) error {
	head, rest, _ := strings.Cut(text, "\n")
	names := strings.Fields(head)
	if len(names) == 0 || names[0] != "entries" {
		return fmt.Errorf("conntrack statistics: %w", errNoProc)
	}
	lines := 0
	for line := range strings.Lines(rest) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		lines++
		for i := range min(len(names), len(fields)) {
			n, err := strconv.ParseUint(fields[i], 16, 64)
			if err != nil {
				return fmt.Errorf("conntrack statistics: column %s: %w", names[i], err)
			}
			switch c := h.byColumn(names[i]); {
			case i == 0:
				h.Count = Counted(n)
			case c != nil:
				c.add(n)
			}
		}
	}
	if lines == 0 {
		return fmt.Errorf("conntrack statistics: %w", errNoProc)
	}
	return nil
}
