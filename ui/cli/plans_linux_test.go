package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/vt"
	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/ui/cli"
	"flanwatch/watcher"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/journal"
	"flanwatch/watcher/lab"
)

// person sits at a pseudo-terminal on which a command shows its screen.
type person struct {
	*terminal
	t    *testing.T
	mu   sync.Mutex
	emu  *vt.Emulator
	read int // of what is shown
	code chan int
}

// sit starts a command on a terminal of a size.
func sit(t *testing.T, program string, w, h int, args ...string) *person {
	t.Helper()
	p := &person{terminal: newTerminal(t), t: t, emu: vt.NewEmulator(w, h), code: make(chan int, 1)}
	if err := unix.IoctlSetWinsize(int(p.tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(w), Row: uint16(h)}); err != nil {
		t.Fatal(err)
	}
	go io.Copy(p.person, p.emu) //nolint:errcheck // what the terminal answers; it ends with the test
	args = append(args, "--theme", "dark")
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "TERM=xterm-256color")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.tty, p.tty, p.tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() }) //nolint:errcheck // it may have ended
	go func() {
		cmd.Wait() //nolint:errcheck // the exit code tells
		p.code <- cmd.ProcessState.ExitCode()
	}()
	return p
}

// text is what stands on the screen.
func (p *person) text() string {
	shown := p.screen()
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.emu.Write(bytes.Clone([]byte(shown[p.read:])))
	p.read = len(shown)
	var b strings.Builder
	for y := range p.emu.Height() {
		for x := range p.emu.Width() {
			if c := p.emu.CellAt(x, y); c != nil && c.Content != "" {
				b.WriteString(c.Content)
			} else {
				b.WriteByte(' ')
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (p *person) keys(s string) {
	p.t.Helper()
	if _, err := io.WriteString(p.person, s); err != nil {
		p.t.Fatal(err)
	}
}

// shows waits for words on the screen.
func (p *person) shows(words string) string {
	p.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if s := p.text(); strings.Contains(s, words) {
			return s
		}
	}
	p.t.Fatalf("%q is not on the screen:\n%s", words, p.text())
	return ""
}

func (p *person) quits() {
	p.t.Helper()
	p.keys("q")
	select {
	case code := <-p.code:
		if code != cli.ExitOK {
			p.t.Errorf("exit code %d", code)
		}
	case <-time.After(20 * time.Second):
		p.t.Errorf("it does not end:\n%s", p.text())
	}
}

func TestOnTheScreenLeftoversArePurgedAndPutBack(t *testing.T) {
	n := node(t)
	n.Feed(rules4, "iptables-nft-restore")
	n.Feed(rules6, "ip6tables-nft-restore")
	saved := n.Shell("(iptables-nft-save; ip6tables-nft-save) | grep FLANNEL || true")
	state := filepath.Join(t.TempDir(), "state")
	p := sit(t, buildFlanwatch(t), 100, 30, "watch", "--netns", n.Path(), "--root", n.Root(), "--state", state)
	p.shows("r fix")
	p.keys("r")
	p.shows("type purge to go on")
	n.Must("iptables-nft -I FORWARD -s 192.0.2.1/32 -j ACCEPT") // of others: no matter
	p.keys("purge")
	p.shows("enter carries it out")
	p.keys("\r")
	p.shows("verified: the rules are as planned")
	if left := n.Shell("(iptables-nft-save; ip6tables-nft-save) | grep FLANNEL || true"); left != "" {
		t.Errorf("left: %s", left)
	}
	p.keys("u")
	p.shows("type undo to go on")
	p.keys("undo\r")
	p.shows("Result of undo")
	p.shows("verified: the rules are as planned")
	if back := n.Shell("(iptables-nft-save; ip6tables-nft-save) | grep FLANNEL || true"); back != saved {
		t.Errorf("not as before:\n%s\n%s", back, saved)
	}
	p.keys("\r")
	p.shows("undo by ") // on the timeline
	p.quits()
}

func TestActionsOfACommandAreInTheJournalOfAnotherProcess(t *testing.T) {
	n := node(t)
	n.Feed(rules4, "iptables-nft-restore")
	state := filepath.Join(t.TempDir(), "state")
	r := startRecord(t, n, buildFlanwatch(t), state)
	plan := preview(t, n, state, cli.ExitFinding, "purge")
	if got := flanwatch(t, n, state, "purge", "--plan", "0123456789abcdef"); got.code != cli.ExitRefused {
		t.Fatalf("%+v", got)
	}
	if got := flanwatch(t, n, state, "purge", "--plan", plan.ID, "--look-again", "100ms"); got.code != cli.ExitOK {
		t.Fatalf("%+v", got)
	}
	time.Sleep(time.Second)
	r.cmd.Process.Signal(unix.SIGTERM) //nolint:errcheck // Wait tells
	r.cmd.Wait()                       //nolint:errcheck // the journal tells
	rec, err := journal.Load(filepath.Join(state, "journal"))
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, e := range rec.Final.Events {
		if e.Kind == incident.EventAction {
			told = append(told, e.Text)
			if e.Who == nil || e.Who.Comm == "" || len(e.Chains) == 0 && strings.Contains(e.Text, "verified") {
				t.Errorf("%s: by %+v, about %v", e.Text, e.Who, e.Chains)
			}
		}
	}
	all := strings.Join(told, "\n")
	if len(told) != 3 || !strings.Contains(told[0], "refused: the plan is stale") || !strings.Contains(told[1], "carried out and verified: Remove 2 chains") ||
		!strings.Contains(told[2], "still in place at the second look") {
		t.Errorf("told:\n%s", all)
	}
}

// recordScenario plays a story and records it. It gives the journal and what was known at its end.
func recordScenario(t *testing.T, name string) (path string, final *incident.View) {
	t.Helper()
	s, err := lab.LoadScenario(name)
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	path = filepath.Join(t.TempDir(), "story.jsonl")
	w, err := watcher.Open(watcher.Options{NetNS: l.Node.Path(), Root: l.Root(), Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r := journal.NewRecorder(journal.Options{Path: path, Header: journal.Header{Node: name, Session: w.Now().Session}})
	var mu sync.Mutex
	state, last := incident.NewState(), flannel.Time{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- w.Run(ctx, r.Sink(func(o *incident.Observation) {
			mu.Lock()
			defer mu.Unlock()
			state.Apply(o)
			last = o.Time
		}))
	}()
	if err := l.Wait(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.Close() //nolint:errcheck // it has ended
	return path, state.View(last)
}

func TestEveryScenarioIsReplayedWithTheSameIncidents(t *testing.T) {
	type recorded struct {
		path  string
		final *incident.View
	}
	program := buildFlanwatch(t)
	records := map[string]recorded{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, name := range lab.Scenarios() {
		if name == lab.Tour { // which plays the others' stories
			continue
		}
		all.Go(func() {
			path, final := recordScenario(t, name)
			mu.Lock()
			defer mu.Unlock()
			records[name] = recorded{path, final}
		})
	}
	all.Wait()
	for name, r := range records {
		for _, size := range [][2]int{{100, 30}, {80, 24}} {
			t.Run(fmt.Sprintf("%s-%dx%d", name, size[0], size[1]), func(t *testing.T) {
				replayTo(t, program, r.path, r.final, size[0], size[1])
			})
		}
	}
}

// replayTo plays a recording to its end on a screen and compares the incidents with those that were seen live.
func replayTo(t *testing.T, program, path string, live *incident.View, w, h int) {
	rec, err := journal.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := describe(rec.Final), describe(live); got != want {
		t.Errorf("replayed:\n%s\nlive:\n%s", got, want)
	}
	p := sit(t, program, w, h, "replay", path)
	p.shows("REPLAY")
	p.shows("space play")
	p.keys("@+24h\r")
	if h >= 30 { // a smaller screen has no room to say so beside everything else
		p.shows(fmt.Sprintf("observation %d of %d", rec.Count, rec.Count))
	}
	p.keys("i")
	p.shows("─ Incidents ")
	var s string
	rows := -1
	for end := time.Now().Add(10 * time.Second); rows != len(live.Incidents) && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		s, rows = p.text(), 0
		for _, l := range strings.Split(s, "\n") {
			for _, i := range live.Incidents {
				rows += strings.Count(l, fmt.Sprintf(" %d  %s ", i.Number, i.Kind))
			}
		}
	}
	if rows != len(live.Incidents) {
		t.Errorf("%d of %d incidents are on the screen:\n%s", rows, len(live.Incidents), s)
	}
	p.quits()
}

func describe(v *incident.View) string {
	var b strings.Builder
	for _, i := range v.Incidents {
		fmt.Fprintln(&b, i.Number, i.Kind, i.Objects(), i.Start.Wall.UnixNano(), i.Open, i.Duration(v.Now), i.Complete)
	}
	return b.String()
}
