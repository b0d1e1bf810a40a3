package metrics

import (
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// What began a gap.
const (
	causeRestart = "flannel_restart"
	causeFlush   = "flush"
	causeForeign = "foreign_change"
	causeUnknown = "unknown"
)

var (
	causes = []string{causeRestart, causeFlush, causeForeign, causeUnknown}
	tables = []string{flannel.TableNat, flannel.TableFilter}

	// buckets tell what a person feels: nothing, a retry, a hang, an outage.
	buckets = []float64{0.1, 1, 10, 60}
)

var causeOf = map[incident.Kind]string{
	incident.KindStartup:      causeRestart,
	incident.KindTeardown:     causeRestart,
	incident.KindFlushed:      causeFlush,
	incident.KindRulesetFlush: causeFlush,
	incident.KindTableGone:    causeFlush,
	incident.KindHookLost:     causeForeign,
	incident.KindPartial:      causeForeign,
	incident.KindFlapping:     causeForeign,
}

// gaps sums up incidents that ended while the exporter looked on.
type gaps struct {
	begun   bool // a first picture was seen: what had ended before it is not counted
	counted map[int]bool
	last    map[string]time.Time
	count   map[[2]string]uint64 // by table and cause
	sum     map[string]float64
	total   map[string]uint64
	below   map[string][]bucket
}

func newGaps() gaps {
	g := gaps{
		counted: map[int]bool{}, last: map[string]time.Time{}, count: map[[2]string]uint64{},
		sum: map[string]float64{}, total: map[string]uint64{}, below: map[string][]bucket{},
	}
	for _, t := range tables {
		for _, b := range buckets {
			g.below[t] = append(g.below[t], bucket{bound: b})
		}
	}
	return g
}

// take counts the incidents that ended since the last picture.
func (g *gaps) take(list []incident.Incident) {
	kept := make(map[int]bool, len(list))
	for i := range list {
		inc := &list[i]
		for _, t := range tables {
			if from, _, is := spell(inc, t); is && from.Wall.After(g.last[t]) {
				g.last[t] = from.Wall
			}
		}
		if inc.Open || inc.Kind == incident.KindResidue {
			continue
		}
		kept[inc.Number] = true
		if g.begun && !g.counted[inc.Number] {
			g.add(inc)
		}
	}
	g.begun, g.counted = true, kept
}

func (g *gaps) add(inc *incident.Incident) {
	cause, known := causeOf[inc.Kind]
	if !known {
		cause = causeUnknown
	}
	for _, t := range tables {
		from, to, is := spell(inc, t)
		if !is {
			continue
		}
		seconds := max(0, to.Sub(from).Seconds())
		g.count[[2]string{t, cause}]++
		g.sum[t] += seconds
		g.total[t]++
		for i := range g.below[t] {
			if seconds <= g.below[t][i].bound {
				g.below[t][i].below++
			}
		}
	}
}

// spell gives the time in which chains of a table were not as they should be, from the first to the last. Flannel's native
// chains count with the table whose work they do.
func spell(inc *incident.Incident, table string) (from, to flannel.Time, is bool) {
	for _, sp := range inc.Spells {
		if worksAs(sp.Chain) != table {
			continue
		}
		end := sp.To
		if sp.Open {
			end = sp.From
		}
		if !is || sp.From.Sub(from) < 0 {
			from = sp.From
		}
		if !is || end.Sub(to) > 0 {
			to = end
		}
		is = true
	}
	return from, to, is
}

func worksAs(id flannel.ChainID) string {
	switch {
	case id.Backend != flannel.Nftables:
		return id.Table
	case id.Name == flannel.NativeMasq:
		return flannel.TableNat
	}
	return flannel.TableFilter
}

func (g *gaps) send(p *page) {
	for _, t := range tables {
		p.spread(descGapLength, g.below[t], g.sum[t], g.total[t], t)
		for _, c := range causes {
			p.put(descGaps, float64(g.count[[2]string{t, c}]), t, c)
		}
		at := 0.0
		if last := g.last[t]; !last.IsZero() {
			at = float64(last.UnixMilli()) / 1000
		}
		p.put(descLastGap, at, t)
	}
}
