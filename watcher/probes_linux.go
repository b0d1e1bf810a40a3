package watcher

import (
	"context"
	"errors"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/probe"
)

// probeReader names the attempts to connect in faults.
const probeReader = "probe"

// probed is an attempt to connect with the time of its end, or why there are none.
type probed struct {
	at      flannel.Time
	attempt probe.Attempt
	err     error
}

// keepProbing tries connections until the context ends. A pod that is not there, or not any more, is looked for again.
func (w *Watcher) keepProbing(ctx context.Context, o ProbeOptions, out chan<- probed) {
	if o.Every == 0 {
		o.Every = probe.Every
	}
	for ctx.Err() == nil {
		if err := w.probeOne(ctx, o, out); err != nil {
			send(ctx, out, probed{at: w.clock.now(), err: err})
		}
		sleep(ctx, retry)
	}
}

// probeOne tries connections from one pod, until one cannot even be begun.
func (w *Watcher) probeOne(ctx context.Context, o ProbeOptions, out chan<- probed) error {
	p, err := probe.Open(o.Target, o.From)
	if err != nil {
		return err
	}
	defer p.Close()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	p.Run(ctx, o.Every, func(a probe.Attempt) {
		if errors.Is(a.Err, probe.ErrNotTried) {
			end(a.Err)
			return
		}
		send(ctx, out, probed{at: w.clock.now(), attempt: a})
	})
	if cause := context.Cause(ctx); errors.Is(cause, probe.ErrNotTried) {
		return cause
	}
	return nil
}

// probed hands out an attempt to connect, or that none can be made. That is no failure to connect: nothing is known then.
func (w *Watcher) probed(p probed, o ProbeOptions, sink Sink) {
	err := p.err
	if errors.Is(p.attempt.Err, probe.ErrNotTried) {
		err = p.attempt.Err
	}
	if err != nil {
		w.unprobed = true
		w.untold(p.at, o, sink)
		sink(&incident.Observation{Time: p.at, Fault: &incident.Fault{Reader: probeReader, Why: err.Error()}})
		return
	}
	if w.unprobed {
		w.unprobed = false
		sink(&incident.Observation{Time: p.at, Fault: &incident.Fault{Reader: probeReader}})
	}
	seen := incident.Probe{Target: o.Target.String(), From: o.From, Took: p.attempt.Took.Truncate(time.Microsecond)}
	if p.attempt.Err != nil {
		seen.Why = p.attempt.Err.Error()
	}
	w.tries.add(seen, p.at, sink)
}

// untold hands out attempts that were gathered.
func (w *Watcher) untold(now flannel.Time, o ProbeOptions, sink Sink) {
	w.tries.tell(incident.Probe{Target: o.Target.String(), From: o.From}, now, sink)
}

// ProbeOnce tries one connection.
func (w *Watcher) ProbeOnce(o ProbeOptions, sink Sink) {
	p, err := probe.Open(o.Target, o.From)
	if err != nil {
		w.probed(probed{at: w.clock.now(), err: err}, o, sink)
		return
	}
	defer p.Close()
	attempt := p.Once()
	w.probed(probed{at: w.clock.now(), attempt: attempt}, o, sink)
}

// asked is an attempt that somebody wished for, and how it ended.
type asked struct {
	options ProbeOptions
	probed
}

// Try tries one connection while Run runs, which tells how it ended. It does not wait for that; an error says why it cannot
// be begun.
func (w *Watcher) Try(o ProbeOptions) error {
	p, err := probe.Open(o.Target, o.From)
	if err != nil {
		return err
	}
	go func() {
		defer p.Close()
		attempt := p.Once()
		select {
		case w.asked <- asked{o, probed{at: w.clock.now(), attempt: attempt}}:
		default: // nobody is told any more
		}
	}()
	return nil
}

// answer tells of an attempt that was asked for, at once, after those that were gathered before.
func (w *Watcher) answer(a asked, sink Sink) {
	if w.probe != nil {
		w.untold(a.at, *w.probe, sink)
	}
	w.probed(a.probed, a.options, sink)
	w.untold(a.at, a.options, sink)
}
