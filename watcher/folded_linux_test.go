package watcher_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher"
	"flanwatch/watcher/incident"
)

// folded watches a namespace and folds what it hears, as every command does.
type folded struct {
	*watcher.Watcher
	t     *testing.T
	mu    sync.Mutex
	state *incident.State
	lost  int // announcements of lost announcements
	heard int // commits
	old   int // number of the process that is taken to have run for long
}

// watchFolded watches until the end of the test, and returns when everything has been read and is listened to.
func watchFolded(t *testing.T, o watcher.Options) *folded {
	t.Helper()
	f := &folded{t: t, state: incident.NewState()}
	f.Watcher = run(t, o, f.sink)
	f.wait("first readings", func() bool {
		known := 0
		for _, b := range f.view().Backends {
			if b.State == flannel.Known || b.State == flannel.Absent {
				known++
			}
		}
		return known == len(flannel.Backends)
	})
	time.Sleep(200 * time.Millisecond) // until it listens
	return f
}

// run runs a watcher until the end of the test.
func run(t *testing.T, o watcher.Options, sink watcher.Sink) *watcher.Watcher {
	t.Helper()
	w, err := watcher.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, sink) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (f *folded) sink(o *incident.Observation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.Procs != nil && f.old != 0 {
		o = f.aged(o)
	}
	f.state.Apply(o)
	if o.Commit != nil {
		f.heard++
		if o.Commit.Lost {
			f.lost++
		}
	}
}

// startOld starts a process that is taken to have run for long: what happens soon after a start is easily taken for a part
// of it.
func (f *folded) startOld(start func() *exec.Cmd) *exec.Cmd {
	f.mu.Lock()
	defer f.mu.Unlock()
	cmd := start()
	f.old = cmd.Process.Pid
	return cmd
}

func (f *folded) aged(o *incident.Observation) *incident.Observation {
	procs := *o.Procs
	procs.Value = slices.Clone(procs.Value)
	for i := range procs.Value {
		if p := &procs.Value[i]; p.PID == f.old {
			p.Started = p.Started.Add(-time.Hour)
		}
	}
	return &incident.Observation{Time: o.Time, Procs: &procs}
}

func (f *folded) view() *incident.View {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state.View(f.Now())
}

func (f *folded) incidents() []incident.Incident { return f.view().Incidents }

// wait waits for something to come true, and says whether it did.
func (f *folded) wait(what string, is func() bool) bool {
	f.t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if is() {
			return true
		}
	}
	f.t.Errorf("waited in vain for %s", what)
	return false
}

// full tells whether to test at length.
func full() bool { return os.Getenv("FLANWATCH_FULL") == "1" }

// ownName is the name that the kernel gives this process.
func ownName(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/thread-self/comm")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}
