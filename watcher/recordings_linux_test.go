package watcher_test

import (
	"compress/gzip"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/watcher"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/journal"
	"flanwatch/watcher/lab"
	"flanwatch/watcher/lab/labtest"
)

// recordingsFolder holds what the demo plays where no lab can be built.
const recordingsFolder = "../assets/recordings"

// TestRecordTheLab records each story of the lab anew where FLANWATCH_RECORD=1 asks for it, as `make recordings` does.
func TestRecordTheLab(t *testing.T) {
	if os.Getenv("FLANWATCH_RECORD") != "1" {
		t.Skip("the recordings are there; make recordings makes them anew")
	}
	labtest.RequireRoot(t)
	for _, name := range lab.Scenarios() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := recordStory(t, name); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func recordStory(t *testing.T, name string) error {
	s, err := lab.LoadScenario(name)
	if err != nil {
		return err
	}
	l, err := lab.Start(t.Context(), s)
	if err != nil {
		return err
	}
	defer l.Close()
	w, err := watcher.Open(watcher.Options{NetNS: l.Node.Path(), Root: l.Root(), Interval: time.Second})
	if err != nil {
		return err
	}
	defer w.Close()
	path := filepath.Join(t.TempDir(), name+journal.Suffix)
	r := journal.NewRecorder(journal.Options{Path: path, Header: journal.Header{
		Version: "lab", Node: lab.NodeName, BootID: "lab", Session: w.Now().Session, Kernel: "the lab's", OS: "the lab",
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, onlyLab(r.Observe)) }()
	told := make(chan error, 1)
	go func() { told <- l.Wait() }()
	select {
	case err = <-told:
		time.Sleep(3 * time.Second)
	case <-time.After(100 * time.Second):
	}
	cancel()
	err = errors.Join(err, <-ended)
	r.Close()
	return errors.Join(err, pack(path, filepath.Join(recordingsFolder, name+journal.Suffix+".gz")))
}

// onlyLab leaves out who started the lab.
func onlyLab(next watcher.Sink) watcher.Sink {
	return func(o *incident.Observation) {
		if o.Commit != nil && o.Commit.Who.Origin != nil {
			parents := &o.Commit.Who.Origin.Parents.Value
			if i := slices.IndexFunc(*parents, func(a incident.Ancestor) bool { return a.Comm == "watcher.test" }); i >= 0 {
				*parents = (*parents)[:i]
			}
			if line := &o.Commit.Who.Origin.Cmdline; slices.ContainsFunc(line.Value, func(s string) bool { return strings.Contains(s, "watcher.test") }) {
				*line = incident.Fact[[]string]{}
			}
		}
		next(o)
	}
}

func pack(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	w, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(text)
	}
	return errors.Join(err, w.Close(), f.Close())
}
