package legacy

import (
	"errors"
	"fmt"
	"os"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// Events hears of changes to legacy tables: it reads whenever a program releases the lock, and tells what is different. One
// goroutine calls Next and Read, best after Hurry; only Wake may be called from others.
type Events struct {
	lock   *LockWatch
	open   func() (*Reader, error)
	reader *Reader // nil while the kernel has no legacy tables
	known  flannel.Ruleset
	taken  map[int]flannel.Time // since when programs hold the lock, by number
}

// Change is what a reading found different from the one before.
type Change struct {
	Time   flannel.Time     // of receipt of the program's release of the lock
	After  flannel.Time     // of receipt of its taking the lock: the change happened in between; zero if that was not heard
	Commit *incident.Commit // the caller's to keep; Lost if the budget allowed no reading, and one is due
	Rules  *flannel.Ruleset // what was read, good until the next Next or Read; nil if Lost
}

// NewEvents takes over a LockWatch, and opens a Reader as soon as there is something to read: open must give one of the
// namespace watched, whatever thread calls it.
func NewEvents(lock *LockWatch, open func() (*Reader, error)) *Events {
	return &Events{lock: lock, open: open, taken: make(map[int]flannel.Time)}
}

// Next waits for the next change. It waits until the deadline, for ever if that is zero, and then returns
// os.ErrDeadlineExceeded; after a Wake it returns ErrWoken. Programs that changed nothing, or nothing of Flannel's, are
// passed over.
func (e *Events) Next(clock func() flannel.Time, deadline time.Time) (*Change, error) {
	for {
		l, err := e.lock.Next(clock, deadline)
		if err != nil {
			return nil, err
		}
		c, err := e.answer(l, clock)
		if c != nil || err != nil {
			return c, err
		}
		if !deadline.IsZero() && time.Now().After(deadline) {
			return nil, os.ErrDeadlineExceeded
		}
	}
}

// Read reads without waiting for a change, as for the counters. What it finds different is a change that no release of the
// lock announced, or that came with it; the Commit is nil if there is none.
func (e *Events) Read(now flannel.Time) (*Change, error) {
	if e.reader == nil {
		r, err := e.open()
		if err != nil {
			return nil, err
		}
		e.reader = r
	}
	rs, err := e.reader.Read(now)
	if err != nil {
		return nil, err
	}
	c := &Change{Time: now, Rules: rs}
	if rs.Revision == e.known.Revision {
		for i := range rs.Chains { // the last values of counters are told of rules that go
			copy(e.known.Chains[i].Entries, rs.Chains[i].Entries)
		}
		return c, nil
	}
	tables, chains := diff(&e.known, rs)
	e.known = rs.Clone()
	if len(tables)+len(chains) > 0 {
		c.Commit = &incident.Commit{Backend: flannel.IptablesLegacy, Tables: tables, Changes: chains}
	}
	return c, nil
}

// Interval is how long to wait until the next Read for the counters.
func (e *Events) Interval(base time.Duration) time.Duration {
	if e.reader == nil {
		return base
	}
	return e.reader.Interval(base)
}

// Also watches further lock files, as LockWatch.Also does.
func (e *Events) Also(paths []string) { e.lock.Also(paths) }

// Method says in words how changes are heard of.
func (e *Events) Method() string { return e.lock.Method() }

// Wake makes the Next that runs, or else the next one that would wait, return ErrWoken.
func (e *Events) Wake() error { return e.lock.Wake() }

// Close closes the LockWatch and the Reader.
func (e *Events) Close() error {
	err := e.lock.Close()
	if e.reader != nil {
		err = errors.Join(err, e.reader.Close())
	}
	return err
}

// answer looks at the tables after an event.
func (e *Events) answer(l LockEvent, clock func() flannel.Time) (*Change, error) {
	pid := l.Who.PID
	after, held := e.taken[pid]
	if l.Opened {
		after, held = l.Time, true
	}
	if !l.Closed {
		e.take(pid, l.Time)
		return nil, nil
	}
	delete(e.taken, pid)
	if e.reader != nil && l.Netns != 0 && l.Netns != e.reader.namespace {
		return nil, nil // all namespaces share the lock
	}
	c, err := e.look(clock())
	switch {
	case errors.Is(err, ErrNotLoaded):
		return nil, nil // the program was one that does not need them
	case err != nil:
		return nil, fmt.Errorf("after a change: %w", err)
	case c.Commit == nil:
		return nil, nil
	}
	c.Time = l.Time
	if held && pid != 0 {
		c.After = after
	}
	c.Commit.Who = l.author()
	return c, nil
}

func (e *Events) take(pid int, at flannel.Time) {
	if pid == 0 {
		return
	}
	if len(e.taken) >= maxCallers {
		clear(e.taken)
	}
	e.taken[pid] = at
}

// look reads if the budget allows. If it does not, a table of another size is still noticed.
func (e *Events) look(now flannel.Time) (*Change, error) {
	if e.reader == nil || e.reader.Affordable(now) {
		return e.Read(now)
	}
	changed, err := e.reader.Changed()
	if err != nil || !changed {
		return &Change{Time: now}, err
	}
	return &Change{Time: now, Commit: &incident.Commit{Backend: flannel.IptablesLegacy, Lost: true}}, nil
}

// author is the program of an event. What was read of it was read while it held the lock, or just after; its parent may have
// changed by then.
func (l LockEvent) author() incident.Who {
	w := l.Who
	if l.Cmdline == nil && l.Parent.PID == 0 {
		return w
	}
	const how = "from /proc, as it took the lock"
	w.Origin = &incident.Origin{}
	if l.Cmdline != nil {
		w.Origin.Cmdline = incident.Fact[[]string]{Value: l.Cmdline, Certainty: incident.Exact, How: how}
	}
	if l.Parent.PID != 0 {
		parent := incident.Ancestor{PID: l.Parent.PID, Comm: l.Parent.Comm}
		w.Origin.Parents = incident.Fact[[]incident.Ancestor]{Value: []incident.Ancestor{parent}, Certainty: incident.Estimate, How: how}
	}
	return w
}
