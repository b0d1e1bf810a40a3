package incident

import (
	"maps"
	"slices"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// Bounds of what a State remembers. What lies beyond them is forgotten, oldest first, or not followed at all.
const (
	maxChains  = 200
	maxRules   = 2000 // of one chain; further ones are there, and not counted
	maxEvents  = 10000
	maxSpans   = 1000 // of one lane
	maxCommits = 256
	maxFaults  = 32
	maxStarts  = 32
)

const (
	// startsWindow is how far back starts of Flannel matter: three within it are a crash loop.
	startsWindow = 5 * time.Minute
	// reviewEvery is how often an unsettled picture (starting, empty, crash-looping) is judged anew as time passes.
	reviewEvery = time.Second
)

// State is everything that observations have told so far. It is not safe for concurrent use; the views that it hands out
// are.
type State struct {
	started  flannel.Time
	facts    diagnose.Facts
	backends [len(backendSlots)]backend
	chains   map[flannel.ChainID]*chain
	verdict  diagnose.Assessment
	judged   flannel.Time     // when verdict was reached
	before   diagnose.Flannel // the last verdict that found a dialect in use
	starts   []flannel.Time
	stopped  flannel.Time             // when the last process of Flannel was found gone, zero while one runs or none was seen
	holds    map[finding]flannel.Time // since when each finding holds
	stops    []flannel.Time           // when Flannel was found gone
	ended    []ended                  // processes of Flannel that were found gone
	events   []Event
	commits  []commit
	author   *Who                     // of the news being folded
	bodies   map[uint64]flannel.Entry // rules by their hash
	bases    map[flannel.ChainID]*flannel.BaseChain
	faults   []Fault
	table    table

	masquerade map[flannel.Family]bool // families in which pods are meant to be masqueraded; replaced, never changed

	probe ProbeView
	look  look

	incidents        []Incident
	incidentsSeen    int
	incidentsChanged bool       // since the last picture
	picture          []Incident // as views hold it
}

// finding is the identity of a diagnose.Finding over time.
type finding struct{ id, object string }

// backendSlots gives every backend its place in arrays.
var backendSlots = [...]flannel.Backend{flannel.IptablesNft, flannel.IptablesLegacy, flannel.Nftables}

// NewState is a state that knows nothing yet.
func NewState() *State {
	s := &State{
		chains: map[flannel.ChainID]*chain{}, holds: map[finding]flannel.Time{},
		bodies: map[uint64]flannel.Entry{}, bases: map[flannel.ChainID]*flannel.BaseChain{},
	}
	s.facts.Rules = map[flannel.Backend]flannel.Reading[flannel.Ruleset]{}
	for i, b := range backendSlots {
		s.backends[i].name = b
	}
	return s
}

// Apply folds one observation into the state. It keeps nothing of what o points to.
func (s *State) Apply(o *Observation) {
	if s.started.IsZero() {
		s.started = o.Time
	}
	if o.Time.Session != s.facts.At.Session {
		s.faults = nil // of a watcher that is no more
	}
	s.facts.At = o.Time
	switch {
	case o.Rules != nil:
		s.applyRules(o.Rules, o.Time)
	case o.Commit != nil:
		s.applyCommit(o.Commit, o.Time)
	case o.Node != nil:
		s.facts.Node = cloneNode(o.Node)
		s.judge(o.Time)
	case o.Procs != nil:
		s.applyProcs(o.Procs, o.Time)
	case o.Links != nil:
		s.applyLinks(o.Links, o.Time)
	case o.Around != nil:
		s.applyAround(o.Around, o.Time)
	case o.Remains != nil:
		s.facts.Remains = *o.Remains
		s.facts.Remains.Value = o.Remains.Value.Clone()
		s.judge(o.Time)
	case o.Table != nil:
		s.applyTable(*o.Table, o.Time)
	case o.Flows != nil:
		s.applyFlows(o.Flows, o.Time)
	case o.Paths != nil:
		s.applyPaths(o.Paths, o.Time)
	case o.Bases != nil:
		s.look.bases(o.Bases, o.Time)
	case o.Opened != nil:
		s.look.open(o.Opened, s.started, o.Time)
	case o.Fault != nil:
		s.applyFault(*o.Fault, o.Time)
	case o.Probe != nil:
		s.applyProbe(o.Probe, o.Time)
	case o.Action != nil:
		s.applyAction(o.Action, o.Time)
	}
	if s.unsettled() && o.Time.Sub(s.judged) >= reviewEvery {
		s.judge(o.Time)
	}
}

// unsettled tells whether the mere passing of time can change the verdict.
func (s *State) unsettled() bool {
	switch s.verdict.Flannel.State {
	case diagnose.FlannelStarting, diagnose.FlannelCrashing:
		return true
	}
	if s.facts.Around.Lock.State == flannel.Known {
		return true // a lock that is held for long
	}
	for _, c := range s.chains {
		if c.listed && c.wasGood && bad(c.diff.State) && c.spell == 0 {
			return true // it was written for networks that no file names yet
		}
	}
	return !s.stopped.IsZero() || slices.ContainsFunc(s.verdict.Findings, func(f diagnose.Finding) bool {
		return f.ID == "chain-empty"
	})
}

func (s *State) applyProcs(r *flannel.Reading[[]diagnose.Process], at flannel.Time) {
	before := s.facts.Procs
	s.facts.Procs = *r
	s.facts.Procs.Value = cloneProcs(r.Value)
	if r.State == before.State && r.Why == before.Why && slices.EqualFunc(r.Value, before.Value, sameProcess) {
		return
	}
	s.noteStarts(r.Value, at)
	s.noteEnds(before, *r, at)
	switch {
	case len(r.Value) > 0:
		s.stopped = flannel.Time{}
	case r.State == flannel.Known && len(before.Value) > 0:
		s.stopped = at
		s.stops = append(s.stops, at)[max(0, len(s.stops)+1-maxStarts):]
	}
	s.judge(at)
	s.reconsiderRecent()
}

// noteStarts remembers when processes were started, each once, as far back as they matter.
func (s *State) noteStarts(procs []diagnose.Process, at flannel.Time) {
	for _, p := range procs {
		if !slices.Contains(s.starts, p.Started) {
			s.starts = append(s.starts, p.Started)
		}
	}
	s.starts = slices.DeleteFunc(s.starts, func(t flannel.Time) bool { return at.Sub(t) > startsWindow })
	s.starts = s.starts[max(0, len(s.starts)-maxStarts):]
}

// ended is a process of Flannel that was found gone.
type ended struct {
	pid int
	at  flannel.Time
}

func (s *State) noteEnds(before, now flannel.Reading[[]diagnose.Process], at flannel.Time) {
	if now.State != flannel.Known {
		return
	}
	for _, p := range before.Value {
		if !slices.ContainsFunc(now.Value, func(q diagnose.Process) bool { return q.PID == p.PID }) {
			s.ended = append(s.ended, ended{p.PID, at})[max(0, len(s.ended)+1-maxStarts):]
		}
	}
}

func (s *State) applyLinks(r *flannel.Reading[[]diagnose.Link], at flannel.Time) {
	before := s.facts.Links
	s.facts.Links = *r
	s.facts.Links.Value = slices.Clone(r.Value)
	if r.State != before.State || r.Why != before.Why || !slices.Equal(r.Value, before.Value) {
		s.judge(at)
	}
}

// applyPaths folds what becomes of typical packets.
func (s *State) applyPaths(r *flannel.Reading[diagnose.Paths], at flannel.Time) {
	before := s.facts.Paths
	s.facts.Paths = *r
	s.facts.Paths.Value.Facts = slices.Clone(r.Value.Facts)
	s.facts.Paths.Value.Verdicts = slices.Clone(r.Value.Verdicts)
	if !diagnose.SamePaths(before, *r) {
		s.judge(at)
	}
}

// applyFault opens, changes or closes the trouble of one reader.
func (s *State) applyFault(f Fault, at flannel.Time) {
	i := slices.IndexFunc(s.faults, func(g Fault) bool { return g.Reader == f.Reader })
	faults := slices.Clone(s.faults) // a view may hold the old list
	switch {
	case f.Why == "" && i < 0:
		return
	case f.Why == "":
		s.faults = slices.Delete(faults, i, i+1)
		s.note(Event{Time: at, Kind: EventReadBack, Severity: diagnose.Info, Text: f.Reader + " is well again"})
	case i >= 0:
		faults[i] = f
		s.faults = faults
	case len(faults) < maxFaults:
		s.faults = append(faults, f)
		s.note(Event{Time: at, Kind: EventReadFail, Severity: diagnose.Warning, Text: f.Reader + ": " + f.Why})
	}
}

// judge reaches a new verdict and folds what it says of chains and findings into the state.
func (s *State) judge(at flannel.Time) {
	s.judged = at
	s.verdict = diagnose.Assess(s.facts, s.history(at))
	if s.verdict.Flannel.Dialect != diagnose.DialectNone {
		s.before = s.verdict.Flannel
	}
	for _, c := range s.chains {
		c.listed = false
	}
	for _, d := range s.verdict.Chains {
		if c := s.track(d.ID); c != nil {
			c.listed = true
			c.setState(d, at)
		}
	}
	s.followSpells(at)
	s.rememberMasquerade()
	now := make(map[finding]flannel.Time, len(s.verdict.Findings))
	for i := range s.verdict.Findings {
		f := &s.verdict.Findings[i]
		key := finding{f.ID, f.Object}
		since, held := s.holds[key]
		if !held {
			since = at
			if !f.Since.IsZero() {
				since = f.Since
			}
		}
		now[key], f.Since = since, since
	}
	s.holds = now
}

func (s *State) history(at flannel.Time) diagnose.History {
	h := diagnose.History{Since: make(map[flannel.ChainID]flannel.Time, len(s.chains)), Stopped: s.stopped, Flannel: s.before}
	h.Resync, h.Flapping = s.repairPeriod(), s.flapping(at)
	h.FlannelStarts = slices.DeleteFunc(slices.Clone(s.starts), func(t flannel.Time) bool {
		return at.Sub(t) > startsWindow
	})
	for id, c := range s.chains {
		if c.listed && own(id) {
			h.Since[id] = c.bare
		}
	}
	h.Conntrack = s.table.window()
	h.HostPorts = s.hostPortsLost()
	return h
}

func sameProcess(a, b diagnose.Process) bool {
	return a.PID == b.PID && a.Started == b.Started && a.Kind == b.Kind && a.Version == b.Version &&
		slices.Equal(a.Cmdline, b.Cmdline) && maps.Equal(a.Env, b.Env)
}

func cloneProcs(list []diagnose.Process) []diagnose.Process {
	out := slices.Clone(list)
	for i := range out {
		out[i].Cmdline = slices.Clone(out[i].Cmdline)
		out[i].Env = maps.Clone(out[i].Env)
	}
	return out
}

func cloneNode(n *flannel.Node) flannel.Node {
	c := *n
	c.Networks.Value = slices.Clone(n.Networks.Value)
	c.Subnets.Value = slices.Clone(n.Subnets.Value)
	c.Problems = slices.Clone(n.Problems)
	c.Others = slices.Clone(n.Others)
	for i := range c.Others {
		c.Others[i].Networks = slices.Clone(c.Others[i].Networks)
		c.Others[i].Subnets = slices.Clone(c.Others[i].Subnets)
	}
	return c
}
