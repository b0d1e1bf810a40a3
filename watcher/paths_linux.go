package watcher

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/flannel/path"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/reach"
)

const (
	// pathsInterval is how often links, routes and legacy tables are looked at again while nothing is announced.
	pathsInterval = 15 * time.Second
	// pathsAge is the same where there are no legacy tables: of all others every change is announced.
	pathsAge = time.Minute
	// pathsPause is the least time between two readings, however often rules change.
	pathsPause = 250 * time.Millisecond
	// pathsShare bounds what the readings cost: one part in so many of a core.
	pathsShare = 120
)

// paths works out what becomes of typical packets. It reads the base chains of every owner, and then those chains and sets
// alone that such a packet comes to: of tens of thousands that kube-proxy writes, some dozens.
type paths struct {
	ns     *namespace
	host   *hostFacts
	around *surroundings
	reach  reach.Reader

	wake   chan struct{}
	forced atomic.Bool // the legacy tables may have changed

	generation uint32
	facts      []path.Facts
	read       time.Time
	last       flannel.Reading[diagnose.Paths]
}

func newPaths(ns *namespace, host *hostFacts) *paths {
	return &paths{ns: ns, host: host, wake: make(chan struct{}, 1)}
}

// changed lets a reading be made as soon as the budget allows. Of legacy tables nothing tells afterwards that they changed.
func (p *paths) changed(legacy bool) {
	if legacy {
		p.forced.Store(true)
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run reads until the context ends: when something changed, within a bound of what it costs.
func (p *paths) run(ctx context.Context, now func() flannel.Time, out chan<- *incident.Observation) {
	if err := p.ns.enter(); err != nil {
		send(ctx, out, pathsObservation(flannel.Miss[diagnose.Paths](flannel.Unreadable, err.Error(), pathsSource, now())))
		return
	}
	for ctx.Err() == nil {
		start := threadTime()
		r, news := p.look(now)
		if news {
			send(ctx, out, pathsObservation(r))
		}
		pause := max(pathsPause, pathsShare*(threadTime()-start))
		if !sleep(ctx, pause) {
			return
		}
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-time.After(pathsInterval):
		}
	}
}

// threadTime is the CPU time of the calling thread, to which its goroutine is bound.
func threadTime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

func pathsObservation(r flannel.Reading[diagnose.Paths]) *incident.Observation {
	return &incident.Observation{Time: r.At, Paths: &r}
}

// once makes one reading, whatever it costs.
func (p *paths) once(now func() flannel.Time, sink Sink) {
	var r flannel.Reading[diagnose.Paths]
	p.forced.Store(true)
	err := p.ns.do(func() error {
		r, _ = p.look(now)
		return nil
	})
	if err != nil {
		r = flannel.Miss[diagnose.Paths](flannel.Unreadable, err.Error(), pathsSource, now())
	}
	sink(pathsObservation(r))
}

const pathsSource = "rules of all owners"

// look makes a reading if anything may have changed, and tells whether it says something new.
func (p *paths) look(now func() flannel.Time) (r flannel.Reading[diagnose.Paths], news bool) {
	facts, err := p.findFacts()
	if err == nil {
		forced := p.forced.Swap(false)
		if !forced && !p.due(facts) {
			return p.last, false
		}
		var v []path.Verdict
		if v, err = p.evaluate(facts); err == nil {
			r = flannel.Know(diagnose.Paths{Facts: facts, Verdicts: v}, pathsSource, now())
		}
	}
	if err != nil {
		r = flannel.Miss[diagnose.Paths](flannel.Unreadable, err.Error(), pathsSource, now())
	}
	news = !diagnose.SamePaths(p.last, r)
	p.last = r
	return r, news
}

// due tells whether rules or facts changed since the last reading, or it is old.
func (p *paths) due(facts []path.Facts) bool {
	age := pathsAge
	if p.reach.HasLegacy() || p.last.State != flannel.Known {
		age = pathsInterval
	}
	if time.Since(p.read) >= age || !diagnose.SameFacts(facts, p.facts) {
		return true
	}
	generation, err := p.reach.Generation()
	return err != nil || generation != p.generation
}

func (p *paths) findFacts() ([]path.Facts, error) {
	if p.around == nil {
		around, err := openSurroundings()
		if err != nil {
			return nil, err
		}
		p.around = around
	}
	l, err := p.around.readLayout()
	if err != nil {
		return nil, err
	}
	node := p.host.seen.Load()
	if node == nil {
		node = &flannel.Node{}
	}
	var out []path.Facts
	for _, f := range flannel.Families {
		out = append(out, l.facts(node, f))
	}
	return out, nil
}

// evaluate reads what packets come to, and says what becomes of them.
func (p *paths) evaluate(facts []path.Facts) (v []path.Verdict, err error) {
	explored := false
	generation, err := p.reach.Read(func(t path.Tables) (chains []flannel.ChainID, sets []path.SetID) {
		v = nil
		for _, f := range facts {
			e := path.New(t, f)
			if explored {
				v = append(v, e.Paths()...)
			} else {
				e.Explore()
			}
			c, s := e.Wanted()
			chains, sets = append(chains, c...), append(sets, s...)
		}
		return chains, sets
	}, func() bool {
		again := !explored
		explored = true
		return again
	})
	p.generation, p.facts, p.read = generation, facts, time.Now()
	return v, err
}

func (p *paths) close() error {
	if p.around != nil {
		p.around.close()
	}
	return p.reach.Close()
}
