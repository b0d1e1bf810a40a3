package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"flanwatch/flannel"
)

const (
	// defaultResync is flanneld's repair period where nothing else is known.
	defaultResync = 5 * time.Second
	// settling is how much longer than its repair period a young flanneld counts as starting.
	settling = 5 * time.Second
	// crashStarts within crashWindow are a crash loop.
	crashStarts = 3
	crashWindow = 5 * time.Minute
	// mourning is how long after the end of a flanneld that we saw running its rules still count as due: a pod that is
	// started again takes up to five minutes between two tries.
	mourning = 10 * time.Minute
)

// The dialects.
const (
	DialectIptables = "iptables"
	DialectNftables = "nftables"
	DialectNone     = "none"
)

// judgeFlannel decides whether Flannel runs here, and how.
func (j *judgement) judgeFlannel() {
	fl := &j.flannel
	fl.Backends = []flannel.Backend{}
	fl.State = j.state()
	fl.Dialect = j.dialect()
	for _, b := range flannel.Backends {
		if j.inUse(b) {
			fl.Backends = append(fl.Backends, b)
		}
	}
	fl.Generation = string(j.generationInUse())
	for _, p := range j.procs() {
		fl.Version, fl.Iptables = p.Version, p.Iptables
	}
	fl.Evidence = j.evidence()
}

// procs gives the processes that run Flannel here: k3s can be told to run none.
func (j *judgement) procs() []Process {
	return slices.DeleteFunc(slices.Clone(j.facts.Procs.Value), func(p Process) bool {
		return p.Kind == ProcK3s && withoutFlannel(p.Cmdline)
	})
}

func withoutFlannel(cmdline []string) bool {
	return slices.Contains(cmdline, "--flannel-backend=none") ||
		strings.Contains(strings.Join(cmdline, "\x00"), "--flannel-backend\x00none")
}

func (j *judgement) state() FlannelState {
	procs := j.procs()
	known := j.facts.Procs.State == flannel.Known || j.facts.Procs.State == flannel.Absent
	switch {
	case !known && len(procs) == 0:
		return FlannelUnknown
	case j.crashLooping():
		return FlannelCrashing
	case len(procs) > 0 && j.facts.At.Sub(youngest(procs)) < j.resync()+settling:
		return FlannelStarting
	case len(procs) > 0:
		return FlannelLive
	case slices.ContainsFunc(j.sights, sight.any), slices.ContainsFunc(j.facts.Links.Value, Link.flannels):
		return FlannelLeftover
	case len(j.unread()) > 0:
		return FlannelUnknown
	}
	return FlannelAbsent
}

func (j *judgement) crashLooping() bool {
	var recent []flannel.Time
	for _, t := range j.history.FlannelStarts {
		if age := j.facts.At.Sub(t); age >= 0 && age <= crashWindow && !slices.Contains(recent, t) {
			recent = append(recent, t)
		}
	}
	return len(recent) >= crashStarts
}

func youngest(procs []Process) flannel.Time {
	return slices.MaxFunc(procs, func(a, b Process) int { return int(a.Started.Sub(b.Started)) }).Started
}

// resync is the repair period: told by flags, seen, or flanneld's default.
func (j *judgement) resync() time.Duration {
	if d, known := j.facts.Node.Resync.Get(); known && d > 0 {
		return d
	}
	if j.history.Resync > 0 {
		return j.history.Resync
	}
	return defaultResync
}

// due tells whether Flannel's rules should be there: it runs, may run, or has gone while we watched and may come back.
func (j *judgement) due() bool {
	switch j.flannel.State {
	case FlannelLive, FlannelStarting, FlannelCrashing, FlannelUnknown:
		return true
	}
	return j.bereft()
}

// name is a chain as a person reads it: with its backend where Flannel has left traces in more than one.
func (j *judgement) name(id flannel.ChainID) string {
	if j.seen(func(s sight) bool { return s.any() && s.backend != id.Backend }) {
		return id.Backend.String() + " " + id.Short()
	}
	return id.Short()
}

// undecided tells whether rules are due of which no trace, file or memory tells the dialect.
func (j *judgement) undecided() bool {
	return j.runs() && j.flannel.Dialect == DialectNone && len(j.unread()) == 0
}

// bereft tells whether Flannel was running a moment ago.
func (j *judgement) bereft() bool {
	at := j.history.Stopped
	return !at.IsZero() && j.facts.At.Sub(at) < mourning
}

// runs tells whether a process of Flannel is known to be here.
func (j *judgement) runs() bool {
	switch j.flannel.State {
	case FlannelLive, FlannelStarting, FlannelCrashing:
		return true
	}
	return false
}

// dialect tells which of its two ways Flannel uses. net-conf.json decides where it is known; else the rules tell, since
// every start in one mode leaves the other's masquerading rules empty or removed (from v0.27.0 on; before that both can be
// in force, and then nothing tells).
func (j *judgement) dialect() string {
	if native, known := j.facts.Node.NFTables.Get(); known && (j.due() || j.trace(native)) {
		return dialectOf(native)
	}
	iptables := j.seen(func(s sight) bool { return s.backend != flannel.Nftables && s.any() })
	masquerades := j.seen(func(s sight) bool { return s.backend != flannel.Nftables && s.masquerades() })
	table := j.seen(func(s sight) bool { return s.table })
	filled := j.seen(func(s sight) bool { return s.backend == flannel.Nftables && s.filled() })
	switch {
	case table && (!masquerades || filled && j.cleansAtStart()):
		return DialectNftables
	case iptables:
		return DialectIptables
	}
	if before := j.history.Flannel.Dialect; before != "" && j.due() {
		return before // nothing is left of what was there before
	}
	return DialectNone
}

func dialectOf(native bool) string {
	if native {
		return DialectNftables
	}
	return DialectIptables
}

// trace tells whether anything of a dialect is there.
func (j *judgement) trace(native bool) bool {
	return j.seen(func(s sight) bool { return s.any() && (s.backend == flannel.Nftables) == native })
}

func (j *judgement) seen(what func(sight) bool) bool { return slices.ContainsFunc(j.sights, what) }

// cleansAtStart tells whether a flanneld runs that empties the rules of the mode it does not use: v0.27.0 and later.
func (j *judgement) cleansAtStart() bool {
	return slices.ContainsFunc(j.procs(), func(p Process) bool { return atLeast(p.Version, 0, 27) })
}

func atLeast(version string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(version, "v%d.%d", &a, &b); n < 2 {
		return false
	}
	return a > major || a == major && b >= minor
}

// inUse tells whether Flannel's rules of its dialect lie in the backend. Empty chains count only where no other backend
// of the dialect holds rules.
func (j *judgement) inUse(b flannel.Backend) bool {
	if j.flannel.Dialect == DialectNone || (b == flannel.Nftables) != (j.flannel.Dialect == DialectNftables) {
		return false
	}
	if b == flannel.Nftables {
		return true
	}
	filled := func(s sight) bool { return s.backend != flannel.Nftables && s.filled() }
	if j.seen(filled) {
		return j.seen(func(s sight) bool { return s.backend == b && filled(s) })
	}
	if traced := func(s sight) bool { return s.backend != flannel.Nftables && s.any() }; j.seen(traced) {
		return j.seen(func(s sight) bool { return s.backend == b && traced(s) })
	}
	return b == j.likeliest()
}

// likeliest is the iptables backend to expect Flannel in where nothing tells: the one it was in before, else nft, if it can
// be read.
func (j *judgement) likeliest() flannel.Backend {
	if before := j.history.Flannel.Backends; len(before) > 0 && before[0] != flannel.Nftables {
		return before[0]
	}
	if _, known := j.facts.ruleset(flannel.IptablesNft); !known {
		if _, known := j.facts.ruleset(flannel.IptablesLegacy); known {
			return flannel.IptablesLegacy
		}
	}
	return flannel.IptablesNft
}

// generationInUse is that of the rules in use, the newest of the dialect where they do not tell, "" without Flannel.
func (j *judgement) generationInUse() flannel.Generation {
	if j.flannel.Dialect == DialectNftables {
		return flannel.GenV0250
	}
	var guess flannel.Generation
	for _, s := range j.sights {
		if !slices.Contains(j.flannel.Backends, s.backend) {
			continue
		}
		for _, t := range s.traces() {
			if !t.Guessed {
				return t.Generation
			}
			guess = t.Generation
		}
	}
	return guess
}

// traces gives the generations seen, that of Flannel's own chains first.
func (s sight) traces() []flannel.Trace {
	if s.own == nil {
		return s.bare
	}
	return append([]flannel.Trace{*s.own}, s.bare...)
}

// flannels tells whether the interface is one that a backend of Flannel makes.
func (l Link) flannels() bool { return strings.HasPrefix(l.Name, "flannel") }

func fromSubnetEnv(source string) bool { return strings.HasSuffix(source, "subnet.env") }
