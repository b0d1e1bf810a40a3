package legacy

import (
	"time"

	"flanwatch/flannel"
)

// share is the part of one core that reading may use: one hundredth.
const share = 100

// burst is the CPU time that may be spent ahead, so that a change is read at once even when the last read was just now.
const burst = 100 * time.Millisecond

// budget keeps reading below its share of a core. It counts what was spent and not yet waited for.
type budget struct {
	debt time.Duration
	last time.Duration // cost of the last read
	at   flannel.Time
}

// spend books a read that began at now.
func (b *budget) spend(now flannel.Time, cost time.Duration) {
	b.debt = b.owed(now) + cost
	b.last = cost
	b.at = now
}

func (b *budget) owed(now flannel.Time) time.Duration {
	return max(0, b.debt-max(0, now.Sub(b.at))/share)
}
