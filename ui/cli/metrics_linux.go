package cli

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/journal"
	"flanwatch/watcher/metrics"
)

// textfileEvery is how often the file for node_exporter is written anew: about as often as it is read.
const textfileEvery = 10 * time.Second

// exportFlags are the flags of record that let others read what it sees.
type exportFlags struct {
	textfile string
	detail   bool
}

func (f *exportFlags) register(s *pflag.FlagSet) {
	s.StringVar(&f.textfile, "textfile", "", "write flanwatch.prom for node_exporter's textfile collector into this `folder`")
	s.BoolVar(&f.detail, "metrics-detail", false, "tell the counters of single rules too")
}

// exports lets others read what record sees.
type exports struct {
	exporter *metrics.Exporter
	file     *metrics.Textfile
	picture  func() (*incident.View, metrics.Journal)

	mu     sync.Mutex
	failed error // why the file could not be written last time
}

// open makes what was asked for; nil if nothing was.
func (f *exportFlags) open(l *live, now func() flannel.Time, r *journal.Recorder) (*exports, error) {
	if f.textfile == "" {
		return nil, nil
	}
	file, err := metrics.OpenTextfile(f.textfile)
	if err != nil {
		return nil, err
	}
	module, commit, _ := versions()
	e := &exports{exporter: metrics.New(metrics.Build{Version: module, Revision: commit}, f.detail), file: file}
	e.picture = func() (*incident.View, metrics.Journal) {
		_, size, trouble := r.State()
		if errors.Is(trouble, journal.ErrBusy) {
			trouble = nil // another process writes it
		}
		return l.view(now()), metrics.Journal{Size: size, Trouble: trouble}
	}
	return e, nil
}

// sink counts what passes on to the next sink.
func (e *exports) sink(next func(*incident.Observation)) func(*incident.Observation) {
	if e == nil {
		return next
	}
	return func(o *incident.Observation) {
		e.exporter.Observe(o)
		next(o)
	}
}

// run writes the file until the context ends.
func (e *exports) run(ctx context.Context) {
	if e == nil {
		return
	}
	tick := time.NewTicker(textfileEvery)
	defer tick.Stop()
	for {
		e.exporter.Update(e.picture())
		err := e.file.Write(e.exporter)
		e.mu.Lock()
		e.failed = err
		e.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// trouble tells why the file could not be written, nil while all is well.
func (e *exports) trouble() error {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.failed
}

// close takes the file away: its values would be read for ever.
func (e *exports) close() error {
	if e == nil {
		return nil
	}
	return e.file.Remove()
}
