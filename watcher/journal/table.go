package journal

import (
	"fmt"

	"flanwatch/conntrack"
	"flanwatch/flannel"
)

// tableCode stands in place of a backend in lines that tell the counters of connection tracking. Behind the times follow the
// differences of all of them, in the order of figures.
const tableCode = 4

// table is the last reading of connection tracking's counters.
type table struct {
	flannel.Reading[conntrack.Health]
	whole bool // it was told in full, and no line since is missing
}

// figures lists the numbers of a reading.
func figures(h *conntrack.Health) [11]*conntrack.Count {
	return [...]*conntrack.Count{
		&h.Count, &h.Max, &h.Found, &h.Invalid, &h.InsertFailed, &h.Drop, &h.EarlyDrop, &h.ClashResolve, &h.SearchRestart,
		&h.ChainTooLong, &h.ICMPError,
	}
}

// sameTable tells whether two readings differ in nothing but numbers and time.
func sameTable(a, b *flannel.Reading[conntrack.Health]) bool {
	if a.State != b.State || a.Why != b.Why || a.Source != b.Source || a.Value.Source != b.Value.Source ||
		a.Value.Use4 != b.Value.Use4 || a.Value.Use6 != b.Value.Use6 {
		return false
	}
	was, is := figures(&a.Value), figures(&b.Value)
	for i := range was {
		if was[i].Known != is[i].Known {
			return false
		}
	}
	return true
}

// move adds differences to the figures.
func (t *table) move(list []int64) error {
	f := figures(&t.Value)
	if len(list) > len(f) {
		return fmt.Errorf("%d figures of connection tracking", len(list))
	}
	for i, d := range list {
		f[i].N += uint64(d)
	}
	return nil
}
