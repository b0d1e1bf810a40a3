package legacy

import (
	"testing"
	"time"

	"flanwatch/flannel"
)

func at(d time.Duration) flannel.Time { return flannel.Time{Boot: time.Hour + d, Session: "test"} }

func TestTheIntervalIsAHundredTimesTheCost(t *testing.T) {
	for _, c := range []struct{ cost, base, want time.Duration }{
		{40 * time.Microsecond, time.Second, time.Second},
		{15 * time.Millisecond, time.Second, 1500 * time.Millisecond},
		{15 * time.Millisecond, 10 * time.Second, 10 * time.Second},
		{74 * time.Millisecond, 100 * time.Millisecond, 7400 * time.Millisecond},
		{0, 100 * time.Millisecond, 100 * time.Millisecond},
	} {
		var b budget
		b.spend(at(0), c.cost, false)
		if got := b.interval(c.base); got != c.want {
			t.Errorf("cost %v, base %v: interval %v, want %v", c.cost, c.base, got, c.want)
		}
	}
}

func TestReadingStaysBelowOnePercent(t *testing.T) {
	for _, cost := range []time.Duration{30 * time.Microsecond, 3 * time.Millisecond, 74 * time.Millisecond} {
		for _, gap := range []time.Duration{time.Millisecond, 20 * time.Millisecond, time.Second} { // between changes
			var b budget
			var spent, now, poll time.Duration
			for ; now < 10*time.Minute; now += gap {
				if now < poll && b.owed(at(now)) >= burst {
					continue
				}
				fell := spent%2 == 0
				b.spend(at(now), cost, fell)
				spent += cost
				poll = now + b.interval(time.Second)
			}
			if allowed := now/share + burst + cost; spent > allowed {
				t.Errorf("cost %v, changes every %v: spent %v in %v, allowed %v", cost, gap, spent, now, allowed)
			}
		}
	}
}

func TestAfterAFallReadsComeSoonForASecond(t *testing.T) {
	var b budget
	b.spend(at(0), time.Millisecond, true)
	reads, now := 0, time.Duration(0)
	for {
		wait := b.interval(2 * time.Second)
		if wait > soon {
			break
		}
		now += wait
		b.spend(at(now), time.Millisecond, false)
		reads++
	}
	if reads != int(settling/soon) || now != settling {
		t.Errorf("%d reads in %v", reads, now)
	}
	if got := b.interval(10 * time.Millisecond); got != max(10*time.Millisecond, share*b.debt) {
		t.Errorf("afterwards the interval is %v at a debt of %v", got, b.debt)
	}
}

func TestACounterThatFallsDoesNotOverdraw(t *testing.T) {
	var b budget
	b.spend(at(0), 2*burst, true)
	if got := b.interval(time.Second); got != share*2*burst {
		t.Errorf("interval %v", got)
	}
}
