package watcher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/legacy"
	"flanwatch/watcher/nft"
)

// Sink takes observations, one at a time and in the order in which they were made. It must not keep what it is given.
type Sink func(*incident.Observation)

// hostInterval is how often the node's files, links and processes are looked at.
const hostInterval = 2 * time.Second

// Watcher reads one network namespace.
type Watcher struct {
	clock    clock
	ns       *namespace
	interval atomic.Int64 // time.Duration
	kick     chan struct{}
	hunts    chan struct{}
	nft      nftRules
	host     *hostFacts
	events   *nft.Events // set by the goroutine that listens; nobody else touches it before that has ended
	root     string
	state    string
	probe    *ProbeOptions

	connections *connections
	looker      *looker
	asked       chan asked // connections that somebody wished to try
	paths       *paths
	// wakeLegacy is set by the goroutine that watches the legacy tables; others only wake it.
	wakeLegacy atomic.Pointer[legacy.Events]
	gone       bool // the namespace was reported as gone
	tries      tries
	unprobed   bool   // trying connections was reported as failing
	deaf       bool   // listening for commits was reported as failing
	heard      uint32 // generation of the last commit that was announced, 0 before the first
}

// Open prepares to watch. It opens nothing of the packet filter yet: what cannot be read is an observation, not an error.
func Open(o Options) (*Watcher, error) {
	ns, err := openNamespace(o.NetNS)
	if err != nil {
		return nil, err
	}
	w := &Watcher{
		clock: newClock(), ns: ns, root: o.Root, state: o.State, probe: o.Probe,
		kick: make(chan struct{}, 1), hunts: make(chan struct{}, 1),
	}
	w.interval.Store(int64(o.Interval))
	w.nft.open = func() (*nft.Reader, error) { return within(ns, nft.Open) }
	if w.host, err = openHost(ns, o); err != nil {
		return nil, errors.Join(err, ns.close())
	}
	w.connections = newConnections(ns, w.host.files)
	w.host.told = func(a *about) {
		w.connections.about.Store(a)
		if e := w.wakeLegacy.Load(); e != nil {
			_ = e.Wake() // processes have locks of their own
		}
	}
	w.looker = newLooker()
	w.asked = make(chan asked, 16)
	w.paths = newPaths(ns, w.host)
	return w, nil
}

// within opens something that belongs to a namespace.
func within[T any](ns *namespace, open func() (T, error)) (v T, err error) {
	errNS := ns.do(func() error {
		v, err = open()
		return nil
	})
	if errNS != nil {
		return v, errNS
	}
	return v, err
}

// Now tells the time on the watcher's clocks.
func (w *Watcher) Now() flannel.Time { return w.clock.now() }

// Interval is the time between two readings of the counters.
func (w *Watcher) Interval() time.Duration { return time.Duration(w.interval.Load()) }

// SetInterval changes the time between two readings, from the next one on. It may be called at any time.
func (w *Watcher) SetInterval(d time.Duration) {
	w.interval.Store(int64(d))
	select {
	case w.kick <- struct{}{}:
	default:
	}
	if e := w.wakeLegacy.Load(); e != nil {
		_ = e.Wake()
	}
}

// Once reads everything once. The host comes first, because it says what rules to expect, and again, because rules can be
// all that tells the networks.
func (w *Watcher) Once(sink Sink) {
	w.connections.readTable(w.clock.now, sink)
	w.host.read(w.clock.now(), sink)
	sink = w.holding(sink)
	w.nft.read(w.clock.now, sink)
	w.readLegacy(sink)
	w.host.read(w.clock.now(), sink)
	w.paths.once(w.clock.now, sink)
	w.connections.findUses()
	w.connections.readTable(w.clock.now, sink) // again: two readings tell what goes on
}

// holding lets the host's reader see rules on their way.
func (w *Watcher) holding(sink Sink) Sink {
	return func(o *incident.Observation) {
		if o.Rules != nil && o.Rules.Ruleset.State == flannel.Known {
			w.host.hold(&o.Rules.Ruleset.Value)
		}
		sink(o)
	}
}

// Elsewhere tells why the watched namespace is evidently not the node's, "" if there is no sign of it. Where nothing of
// Flannel is found, that is the likelier explanation.
func (w *Watcher) Elsewhere() string {
	reason, _ := within(w.ns, func() (string, error) {
		reason, _ := w.host.scan.Elsewhere(w.host.links)
		return reason, nil
	})
	return reason
}

// Run reads until the context ends: counters at every interval, changes as they are announced.
func (w *Watcher) Run(ctx context.Context, sink Sink) error {
	var listeners sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer listeners.Wait()
	defer cancel()
	commits := make(chan announced, 256)
	tables := make(chan legacyNews, 64)
	looks := make(chan *incident.Observation, 8)
	listeners.Go(func() { w.hearCommits(ctx, commits) })
	listeners.Go(func() { w.watchLegacy(ctx, tables) })
	probes := make(chan probed, 64)
	if w.probe != nil {
		defer func() { w.untold(w.clock.now(), *w.probe, sink) }()
		listeners.Go(func() { w.keepProbing(ctx, *w.probe, probes) })
	}
	listeners.Go(func() { w.looker.run(ctx, w, looks) })
	ways := make(chan *incident.Observation, 2)
	actions := make(chan acted, 16)
	if w.state != "" {
		listeners.Go(func() { w.followActions(ctx, w.state, actions) })
	}
	listeners.Go(func() { w.connections.follow(ctx, w.clock.now, looks) })

	sink = w.holding(sink)
	w.nft.shows = func(generation uint32) bool { return w.catchUp(generation, commits, sink) }
	defer func() { w.nft.shows = nil }()
	w.host.read(w.clock.now(), sink)
	listeners.Go(func() { w.paths.run(ctx, w.clock.now, ways) })
	nextNft, nextHost, nextTable := time.Now(), time.Now(), time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		if !now.Before(nextNft) {
			w.nft.read(w.clock.now, sink)
			nextNft = next(nextNft, now, w.Interval())
		}
		if !now.Before(nextHost) {
			w.host.read(w.clock.now(), sink)
			w.paths.changed(false) // links and routes announce nothing
			w.checkNamespace(sink)
			nextHost = now.Add(hostInterval)
		}
		if !now.Before(nextTable) {
			w.connections.readTable(w.clock.now, sink)
			nextTable = next(nextTable, now, max(tableInterval, w.Interval()))
		}
		timer.Reset(time.Until(earliest(nextNft, nextHost, nextTable)))
		select {
		case <-ctx.Done():
			return nil
		case c := <-commits:
			w.commits(c, commits, sink)
			w.looker.rulesChanged()
			w.paths.changed(false)
			w.connections.rulesChanged()
		case o := <-looks:
			sink(o)
		case o := <-ways:
			sink(o)
		case n := <-tables:
			w.legacyNews(n, sink)
			w.connections.rulesChanged()
		case a := <-w.asked:
			w.answer(a, sink)
		case p := <-probes:
			w.probed(p, *w.probe, sink)
		case a := <-actions:
			w.acted(a, sink)
		case <-w.hunts:
			w.Hunt(sink)
		case <-w.kick:
			nextNft = time.Now()
		case <-timer.C:
		}
	}
}

// next keeps readings on a steady beat, and drops beats that were missed.
func next(due, now time.Time, every time.Duration) time.Time {
	if due = due.Add(every); due.After(now) {
		return due
	}
	return now.Add(every)
}

func earliest(first time.Time, others ...time.Time) time.Time {
	for _, t := range others {
		if t.Before(first) {
			first = t
		}
	}
	return first
}

// checkNamespace reports, once, that the namespace was deleted, or is back.
func (w *Watcher) checkNamespace(sink Sink) {
	why := w.ns.gone()
	if (why != "") == w.gone {
		return
	}
	w.gone = why != ""
	sink(&incident.Observation{Time: w.clock.now(), Fault: &incident.Fault{Reader: "namespace", Why: why}})
}

// Close frees what Open and Run opened. Closing a netlink socket can wait for seconds behind a large commit of somebody
// else, so a program that ends anyway had better just end.
func (w *Watcher) Close() error {
	var errs []error
	if w.nft.reader != nil {
		errs = append(errs, w.nft.reader.Close())
	}
	if w.events != nil {
		errs = append(errs, w.events.Close())
	}
	errs = append(errs, w.looker.close(), w.paths.close(), w.connections.close(), w.host.close(), w.ns.close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close watcher: %w", err)
	}
	return nil
}
