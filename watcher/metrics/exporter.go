// Package metrics tells Prometheus what the watcher sees. Every value is of the newest picture or of counters that only grow:
// the kernel's own counters fall when rules are written anew, and are never exported raw.
//
// There is no label for the node: that is the scraper's to add.
package metrics

import (
	"io"
	"runtime"
	"sync"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// Build is what flanwatch_build_info tells.
type Build struct{ Version, Revision string }

// Journal is the state of the recording.
type Journal struct {
	Size    int64 // of the file in bytes, 0 while none is written
	Trouble error // why nothing is written, nil while all is well
}

// recording is what became of the journal so far.
type recording struct {
	Journal
	written flannel.Time // when it was last seen to have grown, zero if never
	failed  int          // how often writing began to fail
}

func (r *recording) take(j Journal, at flannel.Time) {
	if j.Trouble == nil && j.Size > 0 && j.Size != r.Size {
		r.written = at
	}
	if j.Trouble != nil && r.Trouble == nil {
		r.failed++
	}
	r.Journal = j
}

// Exporter holds the metrics of one watcher. Its methods may be called from any goroutine.
type Exporter struct {
	build  Build
	detail bool

	mu      sync.Mutex
	view    *incident.View // nil until the first picture
	journal recording
	changes changes
	gaps    gaps
	events  map[string]uint64 // by source
	lost    map[string]uint64
}

// New makes an exporter. With detail it tells the counters of single rules too.
func New(b Build, detail bool) *Exporter {
	return &Exporter{
		build: b, detail: detail, changes: changes{}, gaps: newGaps(),
		events: map[string]uint64{sourceNft: 0, sourceLock: 0}, lost: map[string]uint64{sourceNft: 0, sourceLock: 0},
	}
}

// Sources of announcements.
const (
	sourceNft  = "nft"
	sourceLock = "xtables_lock"
)

// Observe counts what is announced. It keeps nothing of what o points to.
func (e *Exporter) Observe(o *incident.Observation) {
	if o.Commit == nil {
		return
	}
	source := sourceNft
	if o.Commit.Backend == flannel.IptablesLegacy {
		source = sourceLock
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events[source]++
	if o.Commit.Lost {
		e.lost[source]++
	}
	e.changes.add(o.Commit)
}

// Update takes the newest picture.
func (e *Exporter) Update(v *incident.View, j Journal) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.view = v
	e.journal.take(j, v.Now)
	e.gaps.take(v.Incidents)
}

// Write writes all metrics of the newest picture in the text format of Prometheus.
func (e *Exporter) Write(w io.Writer) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := newPage()
	p.put(descBuild, 1, e.build.Version, e.build.Revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for source, n := range e.events {
		p.put(descEvents, float64(n), source)
		p.put(descLost, float64(e.lost[source]), source)
	}
	e.changes.send(p)
	e.gaps.send(p)
	p.journal(e.journal)
	if e.view != nil {
		p.flannel(e.view)
		p.readers(e.view)
		p.findings(e.view)
		p.chains(e.view, e.detail)
		p.flows(e.view)
	}
	return p.write(w)
}
