// Package metrics tells Prometheus what the watcher sees. Every value is of the newest picture or of counters that only grow:
// the kernel's own counters fall when rules are written anew, and are never exported raw.
//
// There is no label for the node: that is the scraper's to add.
package metrics

import (
	"runtime"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

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
	registry *prometheus.Registry
	detail   bool

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
	e := &Exporter{
		registry: prometheus.NewRegistry(), detail: detail, changes: changes{}, gaps: newGaps(),
		events: map[string]uint64{sourceNft: 0, sourceLock: 0}, lost: map[string]uint64{sourceNft: 0, sourceLock: 0},
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "flanwatch_build_info",
		Help: "A metric with a constant '1' value labeled by version, revision, goversion, goos and goarch of this flanwatch.",
		ConstLabels: prometheus.Labels{
			"version": b.Version, "revision": b.Revision, "goversion": runtime.Version(), "goos": runtime.GOOS, "goarch": runtime.GOARCH,
		},
	})
	build.Set(1)
	e.registry.MustRegister(build, (*collector)(e))
	return e
}

// Gatherer gives all metrics.
func (e *Exporter) Gatherer() prometheus.Gatherer { return e.registry }

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

// collector hides the methods that a registry calls from the users of an Exporter.
type collector Exporter

// Describe tells the registry which metrics there are.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range descriptions {
		out <- d
	}
}

// Collect gives all metrics of the newest picture.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := sender{out}
	for source, n := range c.events {
		s.counter(descEvents, float64(n), source)
		s.counter(descLost, float64(c.lost[source]), source)
	}
	c.changes.send(s)
	c.gaps.send(s)
	s.journal(c.journal)
	if c.view == nil {
		return
	}
	s.flannel(c.view)
	s.readers(c.view)
	s.findings(c.view)
	s.chains(c.view, c.detail)
	s.flows(c.view)
}

// sender puts metrics into the registry's channel.
type sender struct{ out chan<- prometheus.Metric }

func (s sender) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s sender) counter(d *prometheus.Desc, v float64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

func (s sender) yes(d *prometheus.Desc, yes bool, labels ...string) {
	v := 0.0
	if yes {
		v = 1
	}
	s.gauge(d, v, labels...)
}
