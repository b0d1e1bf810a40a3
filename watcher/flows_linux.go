package watcher

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"flanwatch/conntrack"
	"flanwatch/conntrack/ctnl"
	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// seldom is the longest time between two looks at the connections while nobody reads the list: what an incident left bare
// goes away slowly.
const seldom = time.Minute

// follower looks at the connections while they are wanted, beside the reading of rules: a look at a large table takes most
// of a second.
type follower struct {
	c    *connections
	now  func() flannel.Time
	send Sink

	wait  time.Duration // between the last look and the next
	next  time.Time     // when to look again
	least time.Time     // not to look before, however much it is wanted
	rules time.Time     // not to search the rules before

	hearing *ctnl.NewFlows
	heard   sync.WaitGroup
}

// follow looks for as long as somebody wants it, until the context ends.
func (c *connections) follow(ctx context.Context, now func() flannel.Time, out chan<- *incident.Observation) {
	f := &follower{c: c, now: now, send: func(o *incident.Observation) { send(ctx, out, o) }}
	defer f.deafen()
	var before *incident.FlowsWanted
	for ctx.Err() == nil {
		wanted := c.wanted.Load()
		if wanted != nil && (before == nil || wanted.Often && !before.Often || wanted.Listen != before.Listen) {
			f.wait, f.next = 0, time.Time{} // at once
		}
		before = wanted
		f.search()
		f.attend(wanted)
		if !f.rest(ctx, wanted) {
			return
		}
	}
}

// search looks for rules that track connections, if they changed and it is time.
func (f *follower) search() {
	if (f.c.uses.Load() == nil || f.c.changed.Load()) && !time.Now().Before(f.rules) {
		took := f.c.findUses()
		f.rules = time.Now().Add(max(trackingEvery, trackingShare*took))
	}
}

// attend listens or does not, as is wanted, and looks if it is time.
func (f *follower) attend(wanted *incident.FlowsWanted) {
	if wanted == nil || !wanted.Listen {
		f.deafen()
	} else {
		f.listen(wanted.Masquerade) // first, so that what is born during the dump is not missed
	}
	now := time.Now()
	if wanted == nil || now.Before(f.next) || now.Before(f.least) {
		return
	}
	took := f.c.survey(wanted.Masquerade, f.now, f.send)
	every := conntrack.Interval(took)
	if f.wait = min(2*f.wait, seldom); wanted.Often || f.wait < every {
		f.wait = every
	}
	f.next, f.least = time.Now().Add(f.wait), time.Now().Add(conntrack.Share(took))
}

// rest waits for the next look or another wish; it says whether the context goes on.
func (f *follower) rest(ctx context.Context, wanted *incident.FlowsWanted) bool {
	var due, search <-chan time.Time
	if wanted != nil {
		at := f.next
		if f.least.After(at) {
			at = f.least
		}
		due = time.After(time.Until(at))
	}
	if f.c.changed.Load() {
		search = time.After(time.Until(f.rules))
	}
	select {
	case <-ctx.Done():
		return false
	case <-f.c.wake:
	case <-due:
	case <-search:
	}
	return true
}

// listen opens the subscription unless it is open. Without it no birth is known, and the list says so.
func (f *follower) listen(masquerade map[flannel.Family]bool) {
	if f.hearing != nil {
		return
	}
	t, err := f.c.topology(f.now())
	if err != nil || len(t.Networks) == 0 {
		return
	}
	t.Masquerade = masquerade
	wanted := ctnl.Wanted{Networks: t.Networks, Inside: t.Inside()}
	hearing, err := within(f.c.ns, func() (*ctnl.NewFlows, error) { return ctnl.Listen(wanted) })
	if err != nil {
		return
	}
	f.hearing = hearing
	f.c.ages.Listen(f.now())
	f.heard.Go(func() { f.hear(hearing, conntrack.NewClassifier(t)) })
}

// hear takes births down until it is woken.
func (f *follower) hear(from *ctnl.NewFlows, judge *conntrack.Classifier) {
	var flow conntrack.Flow
	for {
		err := from.Next(time.Time{}, &flow)
		switch {
		case err == nil:
			f.c.ages.Born(&flow, judge.Kind(&flow), f.now())
		case errors.Is(err, ctnl.ErrLost):
			f.c.ages.Lost()
		case errors.Is(err, os.ErrDeadlineExceeded):
		default:
			return
		}
	}
}

// deafen ends the subscription, if there is one.
func (f *follower) deafen() {
	if f.hearing == nil {
		return
	}
	_ = f.hearing.Wake()
	f.heard.Wait()
	_ = f.hearing.Close()
	f.hearing = nil
	f.c.ages.Deaf()
}
