package conntrack

import (
	"fmt"
	"time"

	"flanwatch/flannel"
)

// Trend is what the counters did between two readings. A counter that is unknown at either end, or fell (a processor's
// counter wrapped around, or the namespace is another one), has an unknown difference.
type Trend struct {
	Over         time.Duration
	Entries      int64 // gained, or lost if negative; meaningless unless EntriesKnown
	EntriesKnown bool

	Found, Invalid, InsertFailed, Drop, EarlyDrop        Count
	ClashResolve, SearchRestart, ChainTooLong, ICMPError Count
}

// Between compares two readings.
func Between(a, b flannel.Reading[Health]) Trend {
	was, okA := a.Get()
	is, okB := b.Get()
	if !okA || !okB {
		return Trend{}
	}
	t := Trend{Over: b.At.Sub(a.At)}
	if t.Over <= 0 {
		return Trend{}
	}
	if was.Count.Known && is.Count.Known {
		t.Entries, t.EntriesKnown = int64(is.Count.N)-int64(was.Count.N), true
	}
	for _, c := range []struct {
		out      *Count
		was, now Count
	}{
		{&t.Found, was.Found, is.Found},
		{&t.Invalid, was.Invalid, is.Invalid},
		{&t.InsertFailed, was.InsertFailed, is.InsertFailed},
		{&t.Drop, was.Drop, is.Drop},
		{&t.EarlyDrop, was.EarlyDrop, is.EarlyDrop},
		{&t.ClashResolve, was.ClashResolve, is.ClashResolve},
		{&t.SearchRestart, was.SearchRestart, is.SearchRestart},
		{&t.ChainTooLong, was.ChainTooLong, is.ChainTooLong},
		{&t.ICMPError, was.ICMPError, is.ICMPError},
	} {
		if c.was.Known && c.now.Known && c.now.N >= c.was.N {
			*c.out = Counted(c.now.N - c.was.N)
		}
	}
	return t
}

// PerSecond is the speed of a counter of the trend.
func (t Trend) PerSecond(c Count) (float64, bool) {
	if !c.Known || t.Over <= 0 {
		return 0, false
	}
	return float64(c.N) / t.Over.Seconds(), true
}

// FullIn is when the table will be full if it goes on growing as it does; false where it does not grow.
func (t Trend) FullIn(h Health) (time.Duration, bool) {
	if !t.EntriesKnown || t.Entries <= 0 || !h.Count.Known || !h.Max.Known || h.Count.N >= h.Max.N {
		return 0, false
	}
	seconds := float64(h.Max.N-h.Count.N) / (float64(t.Entries) / t.Over.Seconds())
	if seconds > (365 * 24 * time.Hour).Seconds() {
		return 0, false
	}
	return time.Duration(seconds * float64(time.Second)), true
}

// Symptom is one of the four faults that look alike from a pod: connections that now and then do not come about.
type Symptom string

// The four, of which the last is none.
const (
	Full     Symptom = "full"      // new connections are dropped
	Evicting Symptom = "evicting"  // entries not assured make room for new ones
	PortRace Symptom = "port-race" // two connections took one translated tuple; the later one's packet was dropped
	Clash    Symptom = "clash"     // two packets of one connection raced, and both were delivered
)

const (
	// NearlyFull is the fill level above which a table has no room for a burst. Each processor counts for itself what is
	// being set up, so a full table shows a little less than its limit.
	NearlyFull = 0.95
	// raceWorth is how many lost races matter: one connection in a long while is retried by its sender, and a warning for it
	// would be a false alarm.
	raceWorth = 3
)

// Symptoms tells the look-alikes apart. A packet that loses the race for its translation is counted as insert_failed and as
// drop; one that finds the table full as drop alone; so what the two differ by is the table's. early_drop counts evictions
// and clash_resolve the races that end well.
func Symptoms(h Health, t Trend) []Symptom {
	var out []Symptom
	fill, known := h.Fill()
	full := known && fill >= NearlyFull
	refused := t.Drop.Known && t.InsertFailed.Known && t.Drop.N > t.InsertFailed.N
	evicts := t.EarlyDrop.Known && t.EarlyDrop.N > 0
	if full && refused || known && fill >= 1 && !evicts {
		out = append(out, Full)
	}
	if evicts {
		out = append(out, Evicting)
	}
	lost := min(t.InsertFailed.N, t.Drop.N)
	if t.InsertFailed.Known && t.Drop.Known && lost >= raceWorth {
		out = append(out, PortRace)
	}
	if len(out) == 0 && t.ClashResolve.Known && t.ClashResolve.N > 0 {
		out = append(out, Clash)
	}
	return out
}

// Words says in one sentence what a symptom is.
func (s Symptom) Words(h Health, t Trend) string {
	switch s {
	case Full:
		return fmt.Sprintf("the connection table is full (%d of %d): packets of new connections are dropped", h.Count.N, h.Max.N)
	case Evicting:
		return fmt.Sprintf("the connection table evicts %d unanswered connections in %v to make room", t.EarlyDrop.N, rounded(t.Over))
	case PortRace:
		return fmt.Sprintf("%d connections in %v lost the race for a translated port, and their first packet",
			t.InsertFailed.N, rounded(t.Over))
	case Clash:
		return fmt.Sprintf("%d races between packets of one connection in %v ended well: harmless", t.ClashResolve.N, rounded(t.Over))
	}
	return string(s)
}

func rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
