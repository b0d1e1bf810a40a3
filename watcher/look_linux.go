package watcher

import (
	"context"
	"errors"
	"sync"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/legacy"
	"flanwatch/watcher/nft"
)

const (
	// basesInterval is how often base chains are read anew while no rule changes, for the counters of their policies.
	basesInterval = 2 * time.Second
	// lookPause is the least time between two looks, however often the rules change.
	lookPause = 100 * time.Millisecond
	// legacyShare bounds what looks at legacy tables cost: one part in so many of the time.
	legacyShare = 100
)

// looker reads what somebody looks at beside Flannel's chains, on a thread and sockets of its own, so that a large table
// of somebody else never delays the reading of Flannel's chains. It opens nothing until somebody looks.
type looker struct {
	mu     sync.Mutex
	open   bool
	opened *flannel.ChainID
	wake   chan struct{}
	nft    *nft.Browser // set by run, which has ended when it is closed
}

func newLooker() *looker { return &looker{wake: make(chan struct{}, 1)} }

// Look makes Run read all base chains while open is set, and the chain that is given, if any, at every interval. It may be
// called at any time.
func (w *Watcher) Look(open bool, chain *flannel.ChainID) {
	l := w.looker
	l.mu.Lock()
	l.open, l.opened = open, nil
	if open && chain != nil {
		id := *chain
		l.opened = &id
	}
	l.mu.Unlock()
	l.poke()
}

func (l *looker) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *looker) wanted() (open bool, chain *flannel.ChainID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open, l.opened
}

// rulesChanged makes a look that is open take notice of a commit at once.
func (l *looker) rulesChanged() {
	if open, _ := l.wanted(); open {
		l.poke()
	}
}

// run looks for as long as somebody wants it, until the context ends.
func (l *looker) run(ctx context.Context, w *Watcher, out chan<- *incident.Observation) {
	s := &sight{watcher: w, send: func(o *incident.Observation) { send(ctx, out, o) }}
	entered := w.ns.enter()
	defer s.leave(l)
	for ctx.Err() == nil {
		open, chain := l.wanted()
		wait := time.Duration(-1)
		if open && entered != nil {
			s.fail(entered)
		} else if open {
			wait = max(s.look(chain), lookPause)
		} else {
			s.end()
		}
		if !l.rest(ctx, wait) {
			return
		}
	}
}

// rest waits for so long, for ever if that is negative, or until something is wanted; it says whether the context goes on.
func (l *looker) rest(ctx context.Context, wait time.Duration) bool {
	var due <-chan time.Time
	if wait >= 0 {
		if !sleep(ctx, lookPause) {
			return false
		}
		due = time.After(wait - lookPause)
	}
	select {
	case <-ctx.Done():
		return false
	case <-l.wake:
	case <-due:
	}
	return true
}

// sight is what one goroutine looks with.
type sight struct {
	watcher *Watcher
	send    func(*incident.Observation)
	shown   bool // something was handed out since the last end
	chain   *flannel.ChainID

	nft        *nft.Browser
	generation uint32
	nftRead    time.Time                       // of the base chains
	nftMiss    flannel.Reading[incident.Bases] // why there is no browser

	legacy     *legacy.Browser
	legacyRead time.Time
	legacyNext time.Time // not to be read before
	legacyMiss flannel.Reading[incident.Bases]
}

// look reads what is due, and tells how long to wait.
func (s *sight) look(chain *flannel.ChainID) time.Duration {
	s.shown = true
	start := time.Now()
	s.lookNft(start)
	if start.Sub(s.legacyRead) >= basesInterval && !start.Before(s.legacyNext) {
		s.lookLegacy(start)
	}
	s.lookChain(chain)
	due := s.legacyRead.Add(basesInterval)
	if due.Before(s.legacyNext) {
		due = s.legacyNext
	}
	wait := time.Until(earliest(s.nftRead.Add(basesInterval), due))
	if chain != nil {
		wait = min(wait, s.watcher.Interval())
	}
	return wait
}

// lookNft reads the base chains of nf_tables if rules changed, or if it is time.
func (s *sight) lookNft(start time.Time) {
	due := start.Sub(s.nftRead) >= basesInterval
	if s.nft == nil {
		if !due {
			return
		}
		s.nftRead = start
		b, err := nft.Browse()
		if err != nil {
			s.missNft(err)
			return
		}
		s.nft = b
	}
	generation, err := s.nft.Generation()
	if !due && (err != nil || generation == s.generation) {
		return
	}
	s.nftRead = start
	ours, native, err := s.nft.Bases()
	if err != nil {
		s.missNft(err)
		return
	}
	s.generation = generation
	s.bases(flannel.IptablesNft, flannel.Know(ours, nftSource, s.now()))
	s.bases(flannel.Nftables, flannel.Know(native, nftSource, s.now()))
}

// lookLegacy reads the base chains of the legacy tables. How seldom depends on how long it takes.
func (s *sight) lookLegacy(start time.Time) {
	s.legacyRead = start
	if s.legacy == nil {
		b, err := legacy.Browse()
		if err != nil {
			s.missLegacy(err)
			return
		}
		s.legacy = b
	}
	began := time.Now()
	list, err := s.legacy.Bases()
	s.spent(began)
	if err != nil {
		s.missLegacy(err)
		return
	}
	s.bases(flannel.IptablesLegacy, flannel.Know(list, legacySource, s.now()))
}

func (s *sight) spent(start time.Time) {
	s.legacyNext = time.Now().Add(legacyShare * time.Since(start))
}

// lookChain reads the chain that is opened. One that was opened just now is read at once, whatever that costs.
func (s *sight) lookChain(id *flannel.ChainID) {
	if s.chain != nil && (id == nil || *id != *s.chain) {
		s.opened(*s.chain, flannel.Reading[incident.Opened]{})
	}
	fresh := id != nil && (s.chain == nil || *id != *s.chain)
	s.chain = id
	if id == nil {
		return
	}
	if id.Backend == flannel.IptablesLegacy {
		if fresh || !time.Now().Before(s.legacyNext) {
			start := time.Now()
			s.opened(*id, s.readLegacyChain(*id))
			s.spent(start)
		}
		return
	}
	s.opened(*id, s.readNftChain(*id))
}

func (s *sight) readNftChain(id flannel.ChainID) flannel.Reading[incident.Opened] {
	if s.nft == nil {
		return s.missing(s.nftMiss.State, s.nftMiss.Why, nftSource)
	}
	c, present, err := s.nft.Chain(id)
	return s.chainReading(c, present, err, nftSource)
}

func (s *sight) readLegacyChain(id flannel.ChainID) flannel.Reading[incident.Opened] {
	if s.legacy == nil {
		return s.missing(s.legacyMiss.State, s.legacyMiss.Why, legacySource)
	}
	c, present, err := s.legacy.Chain(id)
	return s.chainReading(c, present, err, legacySource)
}

func (s *sight) chainReading(c incident.Opened, present bool, err error, source string) flannel.Reading[incident.Opened] {
	switch {
	case err != nil:
		return s.missing(flannel.Unreadable, err.Error(), source)
	case !present:
		return s.missing(flannel.Absent, "the chain does not exist", source)
	}
	c.Entries = append([]flannel.Entry(nil), c.Entries...) // the browser's own
	return flannel.Know(c, source, s.now())
}

func (s *sight) missing(state flannel.ReadState, why, source string) flannel.Reading[incident.Opened] {
	return flannel.Miss[incident.Opened](state, why, source, s.now())
}

func (s *sight) missNft(err error) {
	state, why := flannel.Unreadable, err.Error()
	if errors.Is(err, nft.ErrNotPresent) {
		state, why = flannel.Absent, "the kernel has no nf_tables loaded"
	}
	s.nftMiss = flannel.Miss[incident.Bases](state, why, nftSource, s.now())
	s.bases(flannel.IptablesNft, s.nftMiss)
	s.bases(flannel.Nftables, s.nftMiss)
}

func (s *sight) missLegacy(err error) {
	state, why := flannel.Unreadable, err.Error()
	if errors.Is(err, legacy.ErrNotLoaded) {
		state, why = flannel.Absent, "the kernel has no legacy tables"
	}
	s.legacyMiss = flannel.Miss[incident.Bases](state, why, legacySource, s.now())
	s.bases(flannel.IptablesLegacy, s.legacyMiss)
}

// fail says that nothing can be read at all.
func (s *sight) fail(err error) {
	s.shown = true
	s.missNft(err)
	s.missLegacy(err)
}

// end says that nobody looks any more. Sockets stay open, since closing one can wait behind a commit.
func (s *sight) end() {
	if !s.shown {
		return
	}
	s.lookChain(nil)
	for _, b := range flannel.Backends {
		s.bases(b, flannel.Reading[incident.Bases]{At: s.now()})
	}
	if s.legacy != nil {
		s.legacy.Rest()
	}
	s.shown, s.nftRead, s.legacyRead = false, time.Time{}, time.Time{}
}

// leave closes what closes at once, and leaves the rest for whoever can wait.
func (s *sight) leave(l *looker) {
	l.nft = s.nft
	if s.legacy != nil {
		_ = s.legacy.Close()
	}
}

func (l *looker) close() error {
	if l.nft == nil {
		return nil
	}
	return l.nft.Close()
}

func (s *sight) now() flannel.Time { return s.watcher.clock.now() }

func (s *sight) bases(b flannel.Backend, r flannel.Reading[incident.Bases]) {
	s.send(&incident.Observation{Time: s.now(), Bases: &incident.BasesRead{Backend: b, Bases: r}})
}

func (s *sight) opened(id flannel.ChainID, r flannel.Reading[incident.Opened]) {
	s.send(&incident.Observation{Time: s.now(), Opened: &incident.OpenedRead{ID: id, Chain: r}})
}
