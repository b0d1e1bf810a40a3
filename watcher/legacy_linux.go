package watcher

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/legacy"
)

// legacyNews is a change of the legacy tables, or a reading of their counters, or why there is none.
type legacyNews struct {
	at     flannel.Time
	commit *incident.Commit
	rules  *flannel.Ruleset // a copy; nil if there was no reading
	err    error
}

// watchLegacy reads the legacy tables until the context ends: whenever a program releases their lock, and at every
// interval. It does both on one thread that runs ahead of others, since a chain may be empty for milliseconds only and
// nothing but a reading in time can tell.
func (w *Watcher) watchLegacy(ctx context.Context, out chan<- legacyNews) {
	if err := w.ns.enter(); err != nil {
		send(ctx, out, legacyNews{at: w.clock.now(), err: err})
		return
	}
	_ = legacy.Hurry() // without the privilege it is as quick as the machine allows
	lock, err := legacy.WatchLock([]string{filepath.Join(w.root, legacy.LockFile)})
	if err != nil {
		send(ctx, out, legacyNews{at: w.clock.now(), err: err})
		return
	}
	events := legacy.NewEvents(lock, legacy.Open)
	defer events.Close()
	w.wakeLegacy.Store(events)
	stop := context.AfterFunc(ctx, func() { _ = events.Wake() })
	defer stop()
	events.Also(w.containerLocks())
	due := time.Now()
	for ctx.Err() == nil {
		change, err := events.Next(w.clock.now, due)
		switch {
		case errors.Is(err, legacy.ErrWoken):
			events.Also(w.containerLocks())
			due = time.Now()
			continue
		case errors.Is(err, os.ErrDeadlineExceeded):
			change, err = events.Read(w.clock.now())
			due = time.Now().Add(events.Interval(w.Interval()))
		}
		if err != nil {
			due = time.Now().Add(retry)
		}
		send(ctx, out, newLegacyNews(change, err, w.clock.now()))
	}
}

// containerLocks names the lock files of the containers in which flanneld runs: each can have its own.
func (w *Watcher) containerLocks() (paths []string) {
	about := w.connections.about.Load()
	if about == nil {
		return nil
	}
	for _, p := range about.procs {
		if p.Kind == diagnose.ProcFlanneld {
			paths = append(paths, filepath.Join("/proc", strconv.Itoa(p.PID), "root")+legacy.LockFile)
		}
	}
	return paths
}

func newLegacyNews(c *legacy.Change, err error, now flannel.Time) legacyNews {
	if err != nil {
		return legacyNews{at: now, err: err}
	}
	n := legacyNews{at: c.Time, commit: c.Commit}
	if c.Rules != nil {
		rules := c.Rules.Clone()
		n.rules = &rules
	}
	return n
}

// legacyNews hands out what was heard of the legacy tables.
func (w *Watcher) legacyNews(n legacyNews, sink Sink) {
	if n.err != nil {
		missLegacy(n.err, n.at, sink)
		return
	}
	if n.commit != nil {
		w.paths.changed(true)
		n.commit.Who = w.legacyAuthor(n.commit.Who, n.at)
		sink(&incident.Observation{Time: n.at, Commit: n.commit})
	}
	if n.rules != nil {
		observeRules(flannel.Know(*n.rules, legacySource, n.at), flannel.IptablesLegacy, sink)
	}
}

// legacyAuthor adds what starts of programs tell: many have ended when their lock is heard of, and left only a number.
func (w *Watcher) legacyAuthor(who incident.Who, at flannel.Time) incident.Who {
	if who.PID == 0 {
		return who
	}
	asked := w.host.asker.Who(who, at)
	if who.Origin != nil && asked.Origin.Cmdline.Certainty == "" {
		asked.Origin.Cmdline = who.Origin.Cmdline
	}
	if who.Origin != nil && asked.Origin.Parents.Certainty == "" {
		asked.Origin.Parents = who.Origin.Parents
	}
	return asked
}

const legacySource = "ip_tables"

// readLegacy reads the legacy tables once.
func (w *Watcher) readLegacy(sink Sink) {
	reader, err := within(w.ns, legacy.Open)
	if err != nil {
		missLegacy(err, w.clock.now(), sink)
		return
	}
	defer reader.Close()
	rules, err := reader.Read(w.clock.now())
	if err != nil {
		missLegacy(err, w.clock.now(), sink)
		return
	}
	observeRules(flannel.Know(*rules, legacySource, w.clock.now()), flannel.IptablesLegacy, sink)
}

func missLegacy(err error, at flannel.Time, sink Sink) {
	state, why := flannel.Unreadable, err.Error()
	if errors.Is(err, legacy.ErrNotLoaded) {
		state, why = flannel.Absent, "the kernel has no legacy tables"
	}
	observeRules(flannel.Miss[flannel.Ruleset](state, why, legacySource, at), flannel.IptablesLegacy, sink)
}
