package watcher_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"flanwatch/flannel"
	"flanwatch/watcher"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/journal"
	"flanwatch/watcher/lab"
	"flanwatch/watcher/lab/labtest"
	"flanwatch/watcher/probe"
)

// actionLine is what a command of flanwatch writes down of itself.
const actionLine = `{"plan":"3f2a","kind":"reapply","title":"put back 6 rules","result":"verified","user":"root",` +
	`"who":{"pid":4711,"comm":"flanwatch"}}` + "\n"

// TestReplayLeadsToTheSameStateOnEveryScenario watches each story of the lab, with connections tried, the table of
// connections read and an action of flanwatch's own beside it, and compares the state with what its journal leads to.
// FLANWATCH_FULL=1 watches the stories to their ends.
func TestReplayLeadsToTheSameStateOnEveryScenario(t *testing.T) {
	labtest.RequireRoot(t)
	slots := make(chan struct{}, 3)
	for _, name := range lab.Scenarios() {
		if name == lab.Tour { // plays the others' stories
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			replayScenario(t, name)
		})
	}
}

func replayScenario(t *testing.T, name string) {
	s, err := lab.LoadScenario(name)
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	live, seen, path := recordLab(t, l)
	state, reader, err := journal.OpenState(path)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if reader.Damaged+reader.Skipped+reader.Unknown > 0 {
		t.Errorf("%+v", reader.Report)
	}
	t.Logf("%v; %d incidents, %d events", seen, len(live.Incidents), len(live.Events))
	for _, sort := range []string{"Rules", "Node", "Procs", "Table", "Flows", "Probe", "Action"} {
		if seen[sort] == 0 {
			t.Errorf("no observation of %s", sort)
		}
	}
	if diff := cmp.Diff(live, state.View(live.Now), sameView); diff != "" {
		t.Errorf("-live +journal\n%.4000s", diff)
	}
}

// recordLab watches a lab and gives the state that led to, what was observed how often, and the journal of it.
func recordLab(t *testing.T, l *lab.Lab) (*incident.View, map[string]int, string) {
	t.Helper()
	dir, path := t.TempDir(), filepath.Join(t.TempDir(), "story.jsonl")
	w, err := watcher.Open(watcher.Options{
		NetNS: l.Node.Path(), Root: l.Root(), State: dir, Interval: 200 * time.Millisecond,
		Probe: &watcher.ProbeOptions{Target: probe.Target{Scheme: "icmp", Addr: netip.MustParseAddr("192.0.2.80")}, From: l.Node.Path()},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.WantFlows(&incident.FlowsWanted{Listen: true, Often: true, Masquerade: map[flannel.Family]bool{flannel.IPv4: true}})
	r := journal.NewRecorder(journal.Options{Path: path, Header: journal.Header{Session: w.Now().Session}})
	var mu sync.Mutex
	state, seen := incident.NewState(), map[string]int{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- w.Run(ctx, r.Sink(func(o *incident.Observation) {
			mu.Lock()
			defer mu.Unlock()
			state.Apply(o)
			count(seen, o)
		}))
	}()
	time.Sleep(2 * time.Second)
	if err := os.WriteFile(filepath.Join(dir, "actions.jsonl"), []byte(actionLine), 0o600); err != nil {
		t.Fatal(err)
	}
	told := make(chan struct{})
	go func() { _ = l.Wait(); close(told) }()
	longest := 8 * time.Second
	if full() {
		longest = time.Minute
	}
	select {
	case <-told:
		time.Sleep(4 * time.Second)
	case <-time.After(longest):
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	r.Close()
	defer w.Close()
	return state.View(w.Now()), seen, path
}

// count counts an observation by what it holds.
func count(seen map[string]int, o *incident.Observation) {
	v := reflect.ValueOf(*o)
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			seen[v.Type().Field(i).Name]++
		}
	}
}

// sameView compares every field, those of other packages among them. Moments are compared by what they say.
var sameView = cmp.Options{
	cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) }),
	cmp.Comparer(func(a, b flannel.Rule) bool { return a.String() == b.String() }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b float64) bool { return a == b || a != a && b != b }),
	cmp.Comparer(func(a, b float32) bool { return a == b || a != a && b != b }),
	cmp.Exporter(func(reflect.Type) bool { return true }),
}
