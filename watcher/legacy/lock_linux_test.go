package legacy_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/lab/labtest"
	"flanwatch/watcher/legacy"
)

// watch watches the lock file of a namespace from outside, as of a container.
func watch(t testing.TB, n *labtest.Namespace) *legacy.LockWatch {
	t.Helper()
	w, err := legacy.WatchLock([]string{n.Root() + legacy.LockFile})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// spell is a time during which the chain was seen without rules.
type spell struct{ from, to time.Time }

// observer reads at every close of the lock and notes spells and who ended and began them, until it is woken.
type observer struct {
	spells []spell
	named  int // changes whose program was named
	unread int // closes that the budget did not allow to read at
	err    error
	done   chan struct{}
}

func observe(w *legacy.LockWatch, r *legacy.Reader, chain flannel.ChainID) *observer {
	o := &observer{done: make(chan struct{})}
	go func() {
		defer close(o.done)
		o.err = o.run(w, r, chain)
	}()
	return o
}

func (o *observer) run(w *legacy.LockWatch, r *legacy.Reader, chain flannel.ChainID) error {
	if os.Getenv("NOHURRY") == "" {
		if err := legacy.Hurry(); err != nil {
			return err
		}
	}
	empty := false
	for {
		e, err := w.Next(now, time.Time{})
		if errors.Is(err, legacy.ErrWoken) {
			return nil
		}
		if err != nil {
			return err
		}
		if !e.Closed {
			continue
		}
		if !r.Affordable(now()) {
			o.unread++
			continue
		}
		rs, err := r.Read(now())
		if err != nil {
			return err
		}
		if is := len(rs.Chain(chain).Entries) == 0; is != empty {
			empty = is
			if is {
				o.spells = append(o.spells, spell{from: e.Time.Wall})
			} else {
				o.spells[len(o.spells)-1].to = e.Time.Wall
			}
			if strings.HasPrefix(e.Who.Comm, "iptables-legacy") && len(e.Cmdline) > 1 && e.Parent.PID == os.Getpid() {
				o.named++
			}
		}
	}
}

// TestEverySpellWithoutRulesIsCaught empties and refills the chain with the real tools, and holds the observed spells
// against the starts and ends of the tools.
func TestEverySpellWithoutRulesIsCaught(t *testing.T) {
	labtest.RequireTools(t, "iptables-legacy", "iptables-legacy-restore")
	for _, others := range []int{10, 1000} {
		for _, pause := range []time.Duration{0, 5 * time.Millisecond, 50 * time.Millisecond, 500 * time.Millisecond} {
			t.Run(fmt.Sprintf("%v beside %d other rules", pause, others), func(t *testing.T) {
				n := labtest.New(t)
				n.Feed(flannel4, "iptables-legacy-restore", "--noflush")
				n.Feed(services(others), "iptables-legacy-restore", "--noflush")
				r, w := open(t, n), watch(t, n)
				read(t, r)
				o := observe(w, r, id(flannel.IPv4, "nat", "FLANNEL-POSTRTG"))
				times := 15
				if pause > 100*time.Millisecond {
					times = 3
				}
				var emptying, filling []spell // start and end of the tools
				for range times {
					start := time.Now()
					n.Must("iptables-legacy -t nat -F FLANNEL-POSTRTG")
					emptying = append(emptying, spell{start, time.Now()})
					time.Sleep(pause)
					start = time.Now()
					n.Feed(flannelNat4, "iptables-legacy-restore", "--noflush")
					filling = append(filling, spell{start, time.Now()})
				}
				time.Sleep(late)
				if err := w.Wake(); err != nil {
					t.Fatal(err)
				}
				<-o.done
				if o.err != nil {
					t.Fatal(o.err)
				}
				if len(o.spells) != times {
					t.Fatalf("caught %d of %d, %d closes beyond the budget", len(o.spells), times, o.unread)
				}
				for i, s := range o.spells {
					inside(t, fmt.Sprintf("start of spell %d", i), s.from, emptying[i])
					inside(t, fmt.Sprintf("end of spell %d", i), s.to, filling[i])
				}
				t.Logf("%s; program named %d of %d", w.Method(), o.named, 2*times)
			})
		}
	}
}

// late is how long after a tool's exit its close of the lock may be heard of on a busy machine.
const late = 20 * time.Millisecond

func inside(t *testing.T, what string, at time.Time, tool spell) {
	t.Helper()
	if at.Before(tool.from) || at.After(tool.to.Add(late)) {
		t.Errorf("%s: %v after the tool's start, which ran for %v", what, at.Sub(tool.from), tool.to.Sub(tool.from))
	}
}

func TestAnEventNamesTheProgram(t *testing.T) {
	labtest.RequireTools(t, "iptables-legacy")
	n := labtest.New(t)
	n.Must("iptables-legacy -t nat -S")
	w := watch(t, n)
	if !strings.HasPrefix(w.Method(), "fanotify on ") {
		t.Fatalf("method: %s", w.Method())
	}
	events := make(chan legacy.LockEvent, 16)
	go func() {
		defer close(events)
		for {
			e, err := w.Next(now, time.Time{})
			if err != nil {
				return
			}
			events <- e
		}
	}()
	cmd := exec.Command("sh", "-c", "iptables-legacy -t nat -N other; iptables-legacy -w -t nat -S; true")
	if _, err := n.Output(cmd); err != nil {
		t.Fatal(err)
	}
	time.Sleep(late)
	if err := w.Wake(); err != nil {
		t.Fatal(err)
	}
	closes := 0
	for e := range events {
		if e.Who.PID == 0 || e.Time.IsZero() || e.Path != n.Root()+legacy.LockFile {
			t.Errorf("event %+v", e)
		}
		if e.Parent.Comm != "sh" && e.Who.Comm != "" {
			t.Errorf("parent %+v of %+v", e.Parent, e.Who)
		}
		if e.Closed {
			closes++
		}
	}
	if closes != 2 {
		t.Errorf("heard of %d programs, want 2", closes)
	}
}

func TestALockFileThatAppearsIsWatched(t *testing.T) {
	labtest.RequireTools(t, "iptables-legacy")
	n := labtest.New(t)
	w := watch(t, n)
	if want := "waiting for " + n.Root() + legacy.LockFile + " to appear"; w.Method() != want {
		t.Errorf("method %q, want %q", w.Method(), want)
	}
	if _, err := os.Stat(n.Root() + legacy.LockFile); !os.IsNotExist(err) {
		t.Fatalf("the lock file was made: %v", err)
	}
	closes := func() int {
		c := 0
		for {
			e, err := w.Next(now, time.Now().Add(200*time.Millisecond))
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return c
			}
			if err != nil {
				t.Fatal(err)
			}
			if e.Closed {
				c++
			}
		}
	}
	for i := range 2 {
		n.Must("iptables-legacy -t nat -S")
		if closes() == 0 {
			t.Errorf("run %d of the program was not heard", i+1)
		}
		n.Must("iptables-legacy -t nat -S")
		if closes() != 1 {
			t.Errorf("the run after it was not heard once")
		}
		n.Must("rm /run/xtables.lock")
		closes()
	}
}

func TestWhereNothingCanBeWatchedNextTicks(t *testing.T) {
	w, err := legacy.WatchLock([]string{t.TempDir() + "/missing/xtables.lock"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if !strings.HasPrefix(w.Method(), "looking at table sizes 20 times a second") {
		t.Errorf("method: %s", w.Method())
	}
	start := time.Now()
	for range 3 {
		e, err := w.Next(now, start.Add(5*time.Second))
		if err != nil || !e.Closed {
			t.Fatalf("event %+v, %v", e, err)
		}
	}
	if d := time.Since(start); d < 3*legacy.Tick || d > time.Second {
		t.Errorf("three ticks took %v", d)
	}
	if err := w.Wake(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Next(now, time.Time{}); !errors.Is(err, legacy.ErrWoken) {
		t.Errorf("after Wake: %v", err)
	}
}
