package watcher

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/legacy"
	"flanwatch/watcher/nft"
)

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
	for ctx.Err() == nil {
		events, err := within(w.ns, nft.Subscribe)
		if err == nil {
			w.events = events
			send(ctx, out, announced{at: w.clock.now()})
			if err = w.forward(ctx, out); ctx.Err() != nil {
				return // closing is for Close: it can wait for seconds behind a commit of somebody else
			}
			_ = events.Close()
			w.events = nil
		}
		if !errors.Is(err, nft.ErrNotPresent) && !errors.Is(err, nft.ErrPrivilege) {
			send(ctx, out, announced{at: w.clock.now(), err: err})
		}
		sleep(ctx, retry)
	}
}

func (w *Watcher) forward(ctx context.Context, out chan<- announced) error {
	stop := context.AfterFunc(ctx, func() { _ = w.events.Wake() })
	defer stop()
	for {
		commit, err := w.events.Next(time.Time{})
		if errors.Is(err, nft.ErrWoken) && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		send(ctx, out, announced{at: w.clock.now(), commit: commit})
	}
}

// commit hands out a commit, and reads at once what it changed.
func (w *Watcher) commit(c announced, sink Sink) {
	if c.err != nil {
		sink(&incident.Observation{Time: c.at, Fault: &incident.Fault{Reader: "nf_tables events", Why: c.err.Error()}})
		return
	}
	if c.commit == nil {
		w.nft.read(w.clock.now, sink)
		return
	}
	sink(&incident.Observation{Time: c.at, Commit: c.commit})
	if c.commit.Lost || len(c.commit.Changes) > 0 || len(c.commit.Tables) > 0 {
		w.nft.read(w.clock.now, sink)
	}
}

// hearLocks listens for programs that may have changed legacy tables.
func (w *Watcher) hearLocks(ctx context.Context, out chan<- legacy.LockEvent) {
	lock, err := legacy.WatchLock([]string{filepath.Join(w.root, legacy.LockFile)})
	if err != nil {
		return // out of files: the interval still finds what lasts
	}
	defer lock.Close()
	stop := context.AfterFunc(ctx, func() { _ = lock.Wake() })
	defer stop()
	send(ctx, out, legacy.LockEvent{}) // what happened before must be read
	for {
		e, err := lock.Next(w.clock.now, time.Time{})
		if err != nil {
			return
		}
		if e.Closed {
			send(ctx, out, e)
		}
	}
}

func send[T any](ctx context.Context, out chan<- T, v T) {
	select {
	case out <- v:
	case <-ctx.Done():
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
