package watcher_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flanwatch/watcher"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/lab/labtest"
)

// follow watches a namespace with a state directory, and gives the channel on which actions come.
func follow(t *testing.T, state string) <-chan incident.Action {
	t.Helper()
	n := labtest.New(t)
	w, err := watcher.Open(watcher.Options{NetNS: n.Path(), Root: "/", State: state, Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan incident.Action, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- w.Run(ctx, func(o *incident.Observation) {
			if o.Action != nil {
				out <- *o.Action
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		w.Close() //nolint:errcheck // the test is over
	})
	time.Sleep(300 * time.Millisecond)
	return out
}

func write(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func nextAction(t *testing.T, c <-chan incident.Action, within time.Duration) string {
	t.Helper()
	select {
	case a := <-c:
		return a.Kind + " " + string(a.Result)
	case <-time.After(within):
		return "none"
	}
}

func TestActionsOfThisNodeAreObservedAsTheyAreWritten(t *testing.T) {
	state := t.TempDir()
	file := filepath.Join(state, "actions.jsonl")
	write(t, file, `{"kind":"old","result":"verified"}`+"\n")
	c := follow(t, state)
	write(t, file, `{"kind":"reapply","result":"started","who":{"pid":1,"comm":"flanwatch"}}`+"\n"+`{"kind":"reapply","result":"verified"}`+"\n{\"kind\":")
	for _, want := range []string{"reapply started", "reapply verified", "none"} {
		if got := nextAction(t, c, 500*time.Millisecond); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	}
	write(t, file, `"purge","result":"refused"}`+"\nno JSON\n")
	if got := nextAction(t, c, time.Second); got != "purge refused" {
		t.Errorf("a line written in two parts: %s", got)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	write(t, file, `{"kind":"undo","result":"verified"}`+"\n")
	if got := nextAction(t, c, time.Second); got != "undo verified" {
		t.Errorf("from a new file: %s", got)
	}
}

func TestActionsAreFoundInAStateDirectoryThatComesLater(t *testing.T) {
	state := filepath.Join(t.TempDir(), "later")
	c := follow(t, state)
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(state, "actions.jsonl"), `{"kind":"purge","result":"verified"}`+"\n")
	if got := nextAction(t, c, 5*time.Second); got != "purge verified" {
		t.Errorf("%s", got)
	}
	write(t, filepath.Join(state, "actions.jsonl"), strings.Repeat("x", 1<<20)+"\n"+`{"kind":"undo","result":"verified"}`+"\n")
	if got := nextAction(t, c, 2*time.Second); got != "undo verified" {
		t.Errorf("behind a line without end: %s", got)
	}
}

func TestAFileOfActionsThatIsALinkIsNotFollowed(t *testing.T) {
	state, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
	write(t, other, "")
	if err := os.Symlink(other, filepath.Join(state, "actions.jsonl")); err != nil {
		t.Fatal(err)
	}
	c := follow(t, state)
	write(t, other, `{"kind":"purge","result":"verified"}`+"\n")
	if got := nextAction(t, c, 300*time.Millisecond); got != "none" {
		t.Errorf("%s", got)
	}
}
