package watcher

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack/nfnl"
	"flanwatch/flannel"
	"flanwatch/flannel/path"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/legacy"
	"flanwatch/watcher/nft"
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
	// pathsPatience bounds how often a reading is begun again that a commit fell into.
	pathsPatience = 3
	// mostRead bounds the chains and sets that one reading follows packets into.
	mostRead = 20_000
)

// paths works out what becomes of typical packets. It reads the base chains of every owner, and then those chains and sets
// alone that such a packet comes to: of tens of thousands that kube-proxy writes, some dozens.
type paths struct {
	ns     *namespace
	host   *hostFacts
	around *surroundings
	nft    *nft.Gatherer
	legacy *legacy.Gatherer
	sets   *nft.Sets

	wake   chan struct{}
	forced atomic.Bool // the legacy tables may have changed
	ended  bool        // no goroutine uses it any more

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
	if p.legacy != nil || p.last.State != flannel.Known {
		age = pathsInterval
	}
	if time.Since(p.read) >= age || !diagnose.SameFacts(facts, p.facts) {
		return true
	}
	if p.nft == nil {
		return false
	}
	generation, err := p.nft.Generation()
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
func (p *paths) evaluate(facts []path.Facts) ([]path.Verdict, error) {
	var unread []string
	if err := p.openNft(); err != nil {
		unread = append(unread, "nf_tables: "+err.Error())
	}
	if err := p.openLegacy(); err != nil {
		unread = append(unread, "iptables-legacy: "+err.Error())
	}
	for range pathsPatience {
		v, settled, err := p.attempt(facts, unread)
		if err != nil || settled {
			return v, err
		}
		runtime.Gosched()
	}
	return nil, fmt.Errorf("read rules of all owners: %w", nft.ErrUnsettled)
}

// openNft opens what is not open yet; a kernel without nf_tables is none to complain of.
func (p *paths) openNft() (err error) {
	if p.nft == nil {
		if p.nft, err = nft.Gather(); errors.Is(err, nfnl.ErrNotPresent) {
			err = nil
		}
	}
	return err
}

func (p *paths) openLegacy() (err error) {
	if p.legacy == nil {
		if p.legacy, err = legacy.Gather(); errors.Is(err, legacy.ErrNotLoaded) {
			err = nil
		}
	}
	return err
}

// attempt makes one reading, and tells whether it is whole.
func (p *paths) attempt(facts []path.Facts, unread []string) (v []path.Verdict, settled bool, err error) {
	r := reading{paths: p, tables: path.Tables{Sets: map[path.SetID]path.Set{}, Unread: unread}}
	r.asked.chains, r.asked.sets = map[flannel.ChainID]bool{}, map[path.SetID]bool{}
	if err := r.bases(); err != nil {
		return nil, false, err
	}
	generation := uint32(0)
	for explored := false; ; {
		var evaluators []*path.Evaluator
		v = v[:0]
		for _, f := range facts {
			e := path.New(r.tables, f)
			evaluators = append(evaluators, e)
			if !explored {
				e.Explore()
				continue
			}
			v = append(v, e.Paths()...)
		}
		more, err := r.follow(evaluators)
		if err != nil {
			return nil, false, err
		}
		if !more && explored {
			break
		}
		explored = !more
	}
	if p.nft != nil {
		if settled, err = p.nft.Settled(); err != nil || !settled {
			return nil, false, err
		}
		generation, err = p.nft.Generation()
	}
	p.generation, p.facts, p.read = generation, facts, time.Now()
	if p.legacy != nil {
		p.legacy.Rest()
	}
	return v, true, err
}

// reading is one reading of what packets come to.
type reading struct {
	*paths
	tables path.Tables
	names  map[string]string // of ipsets by the number that rules know them by
	asked  struct {
		chains map[flannel.ChainID]bool
		sets   map[path.SetID]bool
	}
}

func (r *reading) bases() error {
	if r.nft != nil {
		if err := r.nft.Begin(); err != nil {
			return err
		}
		chains, err := r.nft.Bases()
		if err != nil {
			return err
		}
		r.tables.Chains = append(r.tables.Chains, chains...)
	}
	if r.legacy != nil {
		chains, err := r.legacy.Bases()
		if err != nil {
			return err
		}
		r.tables.Chains = append(r.tables.Chains, chains...)
	}
	for i := range r.tables.Chains {
		r.nameSets(r.tables.Chains[i].Entries)
	}
	return nil
}

// follow reads what the walks so far came to, and tells whether there was anything.
func (r *reading) follow(evaluators []*path.Evaluator) (more bool, err error) {
	for _, e := range evaluators {
		chains, sets := e.Wanted()
		for _, id := range chains {
			if r.asked.chains[id] || len(r.asked.chains) >= mostRead {
				continue
			}
			r.asked.chains[id], more = true, true
			if err := r.chain(id); err != nil {
				return false, err
			}
		}
		for _, id := range sets {
			if r.asked.sets[id] || len(r.asked.sets) >= mostRead {
				continue
			}
			r.asked.sets[id], more = true, true
			r.set(id)
		}
	}
	return more, nil
}

func (r *reading) chain(id flannel.ChainID) (err error) {
	var c flannel.Chain
	switch {
	case id.Backend == flannel.IptablesLegacy && r.legacy != nil:
		c, err = r.legacy.Chain(id)
	case id.Backend != flannel.IptablesLegacy && r.nft != nil:
		c, err = r.nft.Chain(id)
	}
	if err == nil && c.Present {
		r.nameSets(c.Entries)
		r.tables.Chains = append(r.tables.Chains, c)
	}
	return err
}

// set reads a set. One that cannot be read is left out, and what depends on it is not sure.
func (r *reading) set(id path.SetID) {
	var s path.Set
	err := errors.ErrUnsupported
	switch {
	case id.Table != (flannel.TableID{}) && r.nft != nil:
		s, err = r.nft.Set(id)
	case id.Table == (flannel.TableID{}) && r.openSets() == nil:
		s, err = r.sets.Set(id.Name)
	}
	if err == nil {
		r.tables.Sets[id] = s
	}
}

func (p *paths) openSets() (err error) {
	if p.sets == nil {
		p.sets, err = nft.OpenSets()
	}
	return err
}

// nameSets puts the names of ipsets in place of the numbers by which rules know them.
func (r *reading) nameSets(entries []flannel.Entry) {
	for i := range entries {
		for j, m := range entries[i].Rule.Matches {
			before, rest, found := strings.Cut(m.Text, "--match-set #")
			if m.Kind != flannel.MatchExtension || !found {
				continue
			}
			number, fields, _ := strings.Cut(rest, " ")
			matches := append([]flannel.Match(nil), entries[i].Rule.Matches...) // a rule is shared and never changed
			matches[j].Text = before + "--match-set " + r.setName(number) + " " + fields
			entries[i].Rule.Matches = matches
		}
	}
}

func (r *reading) setName(number string) string {
	if name, ok := r.names[number]; ok {
		return name
	}
	name := "#" + number
	if n, err := strconv.ParseUint(number, 10, 16); err == nil && r.openSets() == nil {
		if found, err := r.sets.Name(uint16(n)); err == nil {
			name = found
		}
	}
	if r.names == nil {
		r.names = map[string]string{}
	}
	r.names[number] = name
	return name
}

func (p *paths) close() error {
	var errs []error
	if p.around != nil {
		p.around.close()
	}
	if p.nft != nil {
		errs = append(errs, p.nft.Close())
	}
	if p.sets != nil {
		errs = append(errs, p.sets.Close())
	}
	if p.legacy != nil {
		errs = append(errs, p.legacy.Close())
	}
	return errors.Join(errs...)
}
