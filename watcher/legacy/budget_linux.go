package legacy

import (
	"time"

	"flanwatch/flannel"
)

// share is the part of one core that reading may use: one hundredth.
const share = 100

// burst is the CPU time that may be spent ahead, so that a change is read at once even when the last read was just now.
const burst = 100 * time.Millisecond

// Any change to a table makes all its counters fall to zero and come back, after a fifth of a second at most on machines that
// were measured. After a fall a reader looks again soon, for long enough to tell a counter that comes back from one that was
// restarted: two reads far apart can both fall into such moments.
const (
	soon     = 50 * time.Millisecond
	settling = time.Second
)

// budget keeps reading below its share of a core. It counts what was spent and not yet waited for.
type budget struct {
	debt time.Duration
	last time.Duration // cost of the last read
	at   flannel.Time
	fall flannel.Time // when a counter was last seen to fall
}

// spend books a read that began at now.
func (b *budget) spend(now flannel.Time, cost time.Duration, fell bool) {
	b.debt = b.owed(now) + cost
	b.last = cost
	b.at = now
	if fell {
		b.fall = now
	}
}

func (b *budget) owed(now flannel.Time) time.Duration {
	return max(0, b.debt-max(0, now.Sub(b.at))/share)
}

// interval is how long to wait from the last read.
func (b *budget) interval(base time.Duration) time.Duration {
	if !b.fall.IsZero() && b.at.Sub(b.fall) < settling && b.debt < burst {
		return min(base, soon)
	}
	return max(base, share*b.debt)
}
