package incident

import (
	"time"

	"flanwatch/flannel"
)

// HoldTime is how long a fallen legacy counter may take to come back. The longest spell measured was 0.2 s, beside 10,000
// rules.
const HoldTime = time.Second

// Hold follows one counter of iptables-legacy. Any change to a legacy table replaces it as a whole: every counter drops to
// zero and gets its old value back a moment later. So a fall decides nothing at once: the last value is held, and the
// counter either comes back (a dip, nothing was lost) or was really restarted. The zero value is ready for use.
type Hold struct {
	last    flannel.Counter // last value believed
	fell    flannel.Time    // when it fell below last
	pending bool
}

// Growth is what one reading adds.
type Growth struct {
	Delta   flannel.Counter // counted since the last reading believed; a lower bound if Reset
	Reset   bool            // the counter was restarted
	Pending bool            // fallen, and not yet known whether it comes back; Delta is zero
}

// Start takes v as the value from which growth is counted.
func (h *Hold) Start(v flannel.Counter) { *h = Hold{last: v} }

// Next takes the value read at a time and gives the growth.
func (h *Hold) Next(v flannel.Counter, at flannel.Time) Growth {
	switch {
	case v.Packets >= h.last.Packets && v.Bytes >= h.last.Bytes:
		d := minus(v, h.last)
		h.Start(v)
		return Growth{Delta: d}
	case !h.pending:
		h.pending, h.fell = true, at
		return Growth{Pending: true}
	case at.Sub(h.fell) <= HoldTime:
		return Growth{Pending: true}
	}
	return h.restart(v)
}

// restart believes that the counter began again from zero, so that v is the least it has counted since.
func (h *Hold) restart(v flannel.Counter) Growth {
	h.Start(v)
	return Growth{Delta: v, Reset: true}
}

func minus(a, b flannel.Counter) flannel.Counter {
	return flannel.Counter{Packets: a.Packets - b.Packets, Bytes: a.Bytes - b.Bytes}
}

func plus(a, b flannel.Counter) flannel.Counter {
	return flannel.Counter{Packets: a.Packets + b.Packets, Bytes: a.Bytes + b.Bytes}
}
