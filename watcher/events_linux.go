package watcher

import (
	"context"
	"errors"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
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
func (w *Watcher) hearCommits(ctx context.Context, out chan<- announced) {
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

// commit hands out a commit, and reads at once what it changed.
func (w *Watcher) commit(c announced, sink Sink) {
	if c.err != nil {
		w.deaf = true
		sink(&incident.Observation{Time: c.at, Fault: &incident.Fault{Reader: eventsReader, Why: c.err.Error()}})
		return
	}
	if w.deaf {
		w.deaf = false
		sink(&incident.Observation{Time: c.at, Fault: &incident.Fault{Reader: eventsReader}})
	}
	if c.commit == nil {
		w.nft.read(w.clock.now, sink)
		return
	}
	ours := len(c.commit.Changes) > 0 || len(c.commit.Tables) > 0
	if ours {
		c.commit.Who = w.host.asker.Who(c.commit.Who, c.at)
	}
	sink(&incident.Observation{Time: c.at, Commit: c.commit})
	if ours || c.commit.Lost {
		w.nft.read(w.clock.now, sink)
	}
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
