package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/journal"
	"flanwatch/watcher/metrics"
)

const (
	// textfileEvery is how often the file for node_exporter is written anew: about as often as it is read.
	textfileEvery = 10 * time.Second
	// httpPatience bounds what a client of the metrics can make the recorder wait for.
	httpPatience = 10 * time.Second
)

// exportFlags are the flags of record that let others read what it sees.
type exportFlags struct {
	textfile string
	listen   listen
	detail   bool
}

func (f *exportFlags) register(s *pflag.FlagSet) {
	s.StringVar(&f.textfile, "textfile", "", "write flanwatch.prom for node_exporter's textfile collector into this `folder`")
	s.Var(&f.listen, "metrics", "serve metrics on this `[HOST:]PORT`; without a host on 127.0.0.1")
	s.BoolVar(&f.detail, "metrics-detail", false, "tell the counters of single rules too")
}

// listen is a value of --metrics.
type listen string

func (l *listen) String() string { return string(*l) }
func (l *listen) Type() string   { return "address" }
func (l *listen) Set(s string) error {
	if !strings.Contains(s, ":") {
		s = ":" + s
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return errors.New("want a port, or an address and a port such as 10.0.0.1:9100")
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("no port: %s", port)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	*l = listen(net.JoinHostPort(host, port))
	return nil
}

// exports lets others read what record sees.
type exports struct {
	exporter *metrics.Exporter
	file     *metrics.Textfile // nil where none was asked for
	server   *http.Server      // likewise
	picture  func() (*incident.View, metrics.Journal)

	mu     sync.Mutex
	failed error // why the file could not be written last time
}

// open makes what was asked for; nil if nothing was.
func (f *exportFlags) open(l *live, now func() flannel.Time, r *journal.Recorder) (*exports, error) {
	if f.textfile == "" && f.listen == "" {
		return nil, nil
	}
	module, commit, _ := versions()
	e := &exports{exporter: metrics.New(metrics.Build{Version: module, Revision: commit}, f.detail)}
	e.picture = func() (*incident.View, metrics.Journal) {
		_, size, trouble := r.State()
		if errors.Is(trouble, journal.ErrBusy) {
			trouble = nil // another process writes it
		}
		return l.view(now()), metrics.Journal{Size: size, Trouble: trouble}
	}
	if f.textfile != "" {
		file, err := metrics.OpenTextfile(f.textfile)
		if err != nil {
			return nil, err
		}
		e.file = file
	}
	if f.listen == "" {
		return e, nil
	}
	return e, e.serve(string(f.listen))
}

// serve answers on an address, and on nothing else than /metrics.
func (e *exports) serve(address string) error {
	socket, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	all := e.exporter.Gatherer()
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{Timeout: httpPatience, MaxRequestsInFlight: 2}))
	fresh := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.exporter.Update(e.picture())
		mux.ServeHTTP(w, r)
	})
	e.server = &http.Server{Handler: fresh, ReadTimeout: httpPatience, WriteTimeout: 2 * httpPatience, MaxHeaderBytes: 16 << 10}
	go func() { _ = e.server.Serve(socket) }()
	return nil
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
	if e == nil || e.file == nil {
		return
	}
	tick := time.NewTicker(textfileEvery)
	defer tick.Stop()
	for {
		e.exporter.Update(e.picture())
		err := e.file.Write(e.exporter.Gatherer())
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
	var failed []error
	if e.server != nil {
		failed = append(failed, e.server.Close())
	}
	if e.file != nil {
		failed = append(failed, e.file.Remove())
	}
	return errors.Join(failed...)
}
