package watcher

import (
	"context"
	"errors"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/legacy"
	"flanwatch/watcher/nft"
)

// eventsReader names the listening for commits in faults.
const eventsReader = "nf_tables events"

// announced is a commit with the time of its receipt, or the trouble of hearing commits. With neither it says that commits
// are heard from now on, and that whatever happened before must be read.
type announced struct {
	at     flannel.Time
	commit *incident.Commit
	err    error
}

// hearCommits listens for nf_tables commits until the context ends. Where it cannot listen it tries again from time to
// time; polling goes on meanwhile and still sees every change that lasts.
//
// The time of a commit is the time of its receipt, so on a busy machine the listener runs ahead of others. It has little to
// do: the filter on its socket lets only Flannel's rules and the ends of commits through.
func (w *Watcher) hearCommits(ctx context.Context, out chan<- announced) {
	_ = legacy.Hurry() // without the privilege, times are as exact as the machine allows
	for w.events == nil {
		events, err := within(w.ns, nft.Subscribe)
		switch {
		case err == nil:
			w.events = events
		case !errors.Is(err, nft.ErrNotPresent) && !errors.Is(err, nft.ErrPrivilege):
			send(ctx, out, announced{at: w.clock.now(), err: err})
		}
		if err != nil && !sleep(ctx, retry) {
			return
		}
	}
	send(ctx, out, announced{at: w.clock.now()})
	w.forward(ctx, out)
}

// forward hands on commits. After an error the same socket is read again: closing it would wait behind a commit and miss
// what follows.
func (w *Watcher) forward(ctx context.Context, out chan<- announced) {
	stop := context.AfterFunc(ctx, func() { _ = w.events.Wake() })
	defer stop()
	for {
		commit, err := w.events.Next(time.Time{})
		at := w.clock.now()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			send(ctx, out, announced{at: at, commit: commit})
		case !errors.Is(err, nft.ErrWoken):
			send(ctx, out, announced{at: at, err: err})
			sleep(ctx, time.Second)
		}
	}
}

// patience is how long a reading waits for the announcements of what it shows, which the kernel makes a moment after a
// commit can be seen.
const patience = 50 * time.Millisecond

// commits hands out a commit and those that came meanwhile, and then reads at once what they changed.
func (w *Watcher) commits(c announced, more <-chan announced, sink Sink) {
	news := w.commit(c, sink)
	for range len(more) {
		news = w.commit(<-more, sink) || news
	}
	if news {
		w.nft.read(w.clock.now, sink)
	}
}

// catchUp hands out the commits up to a generation that has been read: the reading would show what came of them with the
// time of reading in place of theirs, and without their authors. It tells whether there were any.
func (w *Watcher) catchUp(generation uint32, commits <-chan announced, sink Sink) (told bool) {
	for w.heard != 0 && !w.deaf && int32(w.heard-generation) < 0 {
		select {
		case c := <-commits:
			w.commit(c, sink) // the reading at hand shows what it changed
			told = true
		case <-time.After(patience):
			return told
		}
	}
	return told
}

// commit hands out a commit, and tells whether something is to be read.
func (w *Watcher) commit(c announced, sink Sink) bool {
	if c.err != nil {
		w.deaf = true
		sink(&incident.Observation{Time: c.at, Fault: &incident.Fault{Reader: eventsReader, Why: c.err.Error()}})
		return false
	}
	if w.deaf {
		w.deaf = false
		sink(&incident.Observation{Time: c.at, Fault: &incident.Fault{Reader: eventsReader}})
	}
	if c.commit == nil {
		return true
	}
	w.heard = c.commit.Generation
	ours := len(c.commit.Changes) > 0 || len(c.commit.Tables) > 0
	if ours {
		c.commit.Who = w.host.asker.Who(c.commit.Who, c.at)
	}
	sink(&incident.Observation{Time: c.at, Commit: c.commit})
	return ours || c.commit.Lost
}

func send[T any](ctx context.Context, out chan<- T, v T) {
	select {
	case out <- v:
	case <-ctx.Done():
	}
}

// sleep tells whether the time passed without the context ending.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
