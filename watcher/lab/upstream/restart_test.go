package upstream_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/lab/labtest"
)

// watch folds what happens in a namespace until the end of the test, and gives a picture of it at any time.
func watch(t *testing.T, n *labtest.Namespace) func() *incident.View {
	t.Helper()
	w, err := watcher.Open(watcher.Options{NetNS: n.Path(), Root: n.Root(), Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	state := incident.NewState()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- w.Run(ctx, func(o *incident.Observation) {
			mu.Lock()
			defer mu.Unlock()
			state.Apply(o)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return func() *incident.View {
		mu.Lock()
		defer mu.Unlock()
		return state.View(w.Now())
	}
}

// settled waits until every chain of Flannel's is well and no incident is open.
func settled(t *testing.T, view func() *incident.View) *incident.View {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		v := view()
		well := len(v.Chains) == 4
		for _, c := range v.Chains {
			well = well && c.State == flannel.ChainOK
		}
		for _, i := range v.Incidents {
			well = well && !i.Open
		}
		if well {
			return v
		}
	}
	t.Fatalf("not well: %+v", view().Chains)
	return nil
}

func TestASecondStartOfFlannelIsAStartupWindow(t *testing.T) {
	program := build(t, "flanneld", "flanneld")
	for _, c := range []struct {
		name, flavour string
		args          []string
		kinds         []incident.Kind
	}{
		{"with iptables-nft", "nft", nil, []incident.Kind{incident.KindStartup}},
		{"with iptables-legacy", "legacy", nil, []incident.Kind{incident.KindStartup}},
		{"natively", "nft", []string{"--native"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := labtest.New(t)
			n.Must("ip link set lo up")
			n.Write("/run/xtables.lock", "")
			first := flanneld(t, n, program, c.flavour, c.args...)
			view := watch(t, n)
			settled(t, view)
			time.Sleep(time.Second) // until it listens
			before := len(view().Incidents)
			if err := first.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = first.Wait()
			flanneld(t, n, program, c.flavour, c.args...)
			time.Sleep(3 * time.Second) // the new process has been looked for since
			v := settled(t, view)
			var kinds []incident.Kind
			for _, i := range v.Incidents[before:] {
				t.Logf("%s for %v by %s: %q", i.Kind, i.Duration(v.Now), author(i.By), i.Effects)
				kinds = append(kinds, i.Kind)
				if !i.Complete || i.By == nil || i.RecoveredBy == nil {
					t.Errorf("%+v", i)
				}
			}
			if before != 0 || len(kinds) != len(c.kinds) || len(kinds) > 0 && kinds[0] != c.kinds[0] {
				t.Errorf("incidents %q, want %q; %d before the second start", kinds, c.kinds, before)
			}
		})
	}
}

func author(w *incident.Who) string {
	if w == nil {
		return "nobody"
	}
	return w.Comm
}
