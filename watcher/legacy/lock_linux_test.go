package legacy_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
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

// spell is a time during which the chain was seen without rules, or the time that a tool ran.
type spell struct{ from, to time.Time }

// observer notes spells, and whether the program that began or ended one was named, until it is woken.
type observer struct {
	spells []spell
	named  int
	lost   int // changes that the budget did not allow to read
	err    error
	done   chan struct{}
}

func observe(e *legacy.Events, chain flannel.ChainID) *observer {
	o := &observer{done: make(chan struct{})}
	go func() {
		defer close(o.done)
		o.err = o.run(e, chain)
	}()
	return o
}

func (o *observer) run(events *legacy.Events, chain flannel.ChainID) error {
	if err := legacy.Hurry(); err != nil {
		return err
	}
	for {
		c, err := events.Next(now, time.Time{})
		switch {
		case errors.Is(err, legacy.ErrWoken):
			return nil
		case err != nil:
			return err
		case c.Commit.Lost:
			o.lost++
		}
		for _, change := range c.Commit.Changes {
			if change.Chain == chain {
				o.note(c, change.Rules == 0)
			}
		}
	}
}

func (o *observer) note(c *legacy.Change, empty bool) {
	if empty {
		o.spells = append(o.spells, spell{from: c.Time.Wall})
	} else if n := len(o.spells); n > 0 {
		o.spells[n-1].to = c.Time.Wall
	}
	w := c.Commit.Who
	if strings.HasPrefix(w.Comm, "iptables-legacy") && w.Origin != nil && len(w.Origin.Cmdline.Value) > 1 &&
		len(w.Origin.Parents.Value) == 1 && w.Origin.Parents.Value[0].PID == os.Getpid() {
		o.named++
	}
}

// subscribe gives the Events of a namespace, which know what is there now.
func subscribe(t testing.TB, n *labtest.Namespace) *legacy.Events {
	t.Helper()
	w, err := legacy.WatchLock([]string{n.Root() + legacy.LockFile})
	if err != nil {
		t.Fatal(err)
	}
	events := legacy.NewEvents(w, func() (*legacy.Reader, error) {
		var r *legacy.Reader
		err := n.Do(func() error {
			var err error
			r, err = legacy.Open()
			return err
		})
		return r, err
	})
	t.Cleanup(func() {
		if err := events.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := events.Read(now()); err != nil {
		t.Fatal(err)
	}
	return events
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
				events := subscribe(t, n)
				o := observe(events, id(flannel.IPv4, "nat", "FLANNEL-POSTRTG"))
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
				if err := events.Wake(); err != nil {
					t.Fatal(err)
				}
				<-o.done
				if o.err != nil {
					t.Fatal(o.err)
				}
				if len(o.spells) != times {
					t.Fatalf("caught %d of %d, %d changes beyond the budget", len(o.spells), times, o.lost)
				}
				for i, s := range o.spells {
					inside(t, fmt.Sprintf("start of spell %d", i), s.from, emptying[i])
					inside(t, fmt.Sprintf("end of spell %d", i), s.to, filling[i])
				}
				t.Logf("%s; program named %d of %d times", events.Method(), o.named, 2*times)
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
		if err := legacy.Hurry(); err != nil {
			t.Error(err)
		}
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
		if e.Parent.Comm != "sh" && e.Parent.Comm != "" { // it may have ended
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

func TestWithoutFanotifyInotifyHears(t *testing.T) {
	labtest.RequireTools(t, "iptables-legacy")
	n := labtest.New(t)
	n.Must("iptables-legacy -t nat -S")
	weak := labtest.New(t) // its thread gives up its privileges
	var w *legacy.LockWatch
	err := weak.Do(func() error {
		var none [2]unix.CapUserData
		path := "/proc/self/fd/" + fmt.Sprint(dirOf(t, n)) + "/xtables.lock"
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
			return err
		}
		var err error
		w, err = legacy.WatchLock([]string{path})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if !strings.HasPrefix(w.Method(), "inotify on ") || !strings.Contains(w.Method(), "names no process") {
		t.Fatalf("method: %s", w.Method())
	}
	n.Must("iptables-legacy -t nat -S")
	for closed := false; !closed; {
		e, err := w.Next(now, time.Now().Add(5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if e.Who.PID != 0 {
			t.Errorf("event %+v", e)
		}
		closed = e.Closed
	}
}

// dirOf opens the directory of the lock file of a namespace.
func dirOf(t *testing.T, n *labtest.Namespace) int {
	t.Helper()
	fd, err := unix.Open(n.Root()+"/run", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func TestChangesAreToldLikeCommits(t *testing.T) {
	labtest.RequireTools(t, "iptables-legacy", "ip6tables-legacy")
	n := labtest.New(t)
	n.Feed(flannel4, "iptables-legacy-restore", "--noflush")
	n.Feed("*nat\nCOMMIT\n", "iptables-legacy-restore", "--noflush")
	events := subscribe(t, n)
	for _, step := range []struct{ command, want string }{
		{"iptables-legacy -t nat -A PREROUTING -j ACCEPT", ""},
		{"iptables-legacy -t nat -L -n", ""},
		{"iptables-legacy -t nat -D FLANNEL-POSTRTG 2", "iptables-legacy ip nat FLANNEL-POSTRTG -1 +0 =5"},
		{"iptables-legacy -t nat -F FLANNEL-POSTRTG", "iptables-legacy ip nat FLANNEL-POSTRTG -5 +0 =0"},
		{"iptables-legacy -t nat -A FLANNEL-POSTRTG -j RETURN", "iptables-legacy ip nat FLANNEL-POSTRTG -0 +1 =1"},
		{"iptables-legacy -t nat -R FLANNEL-POSTRTG 1 -j ACCEPT", "iptables-legacy ip nat FLANNEL-POSTRTG -1 +1 =1"},
		{"iptables-legacy -t nat -F POSTROUTING", "iptables-legacy ip nat POSTROUTING -1 +0 =0"},
		{"iptables-legacy -P FORWARD DROP", "iptables-legacy ip filter FORWARD -0 +0 =1"},
		{"iptables-legacy -t nat -F", "iptables-legacy ip nat FLANNEL-POSTRTG -1 +0 =0"},
		{"iptables-legacy -t nat -X", "iptables-legacy ip nat FLANNEL-POSTRTG deleted -0 +0 =0"},
		{"ip6tables-legacy -t nat -N FLANNEL-POSTRTG", "iptables-legacy ip6 nat created, " +
			"iptables-legacy ip6 nat FLANNEL-POSTRTG created -0 +0 =0, iptables-legacy ip6 nat POSTROUTING created -0 +0 =0"},
	} {
		before := now()
		n.Must(step.command)
		c, err := events.Next(now, time.Now().Add(50*time.Millisecond))
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if step.want != "" {
				t.Errorf("%s: nothing was heard", step.command)
			}
			continue
		case err != nil:
			t.Fatal(err)
		}
		if got := told(c.Commit); got != step.want {
			t.Errorf("%s\n got %s\nwant %s", step.command, got, step.want)
		}
		if c.Time.Sub(before) < 0 || c.After.Sub(c.Time) > 0 || c.Commit.Who.PID == 0 {
			t.Errorf("%s: %+v", step.command, c)
		}
	}
}

func told(c *incident.Commit) string {
	var parts []string
	word := func(is bool, s string) string {
		if is {
			return s
		}
		return ""
	}
	for _, t := range c.Tables {
		parts = append(parts, t.Table.String()+word(t.Created, " created")+word(t.Deleted, " deleted"))
	}
	for _, ch := range c.Changes {
		parts = append(parts, fmt.Sprintf("%s%s%s -%d +%d =%d", ch.Chain, word(ch.Created, " created"), word(ch.Deleted, " deleted"),
			len(ch.Removed), len(ch.Added), ch.Rules))
	}
	return strings.Join(parts, ", ")
}
