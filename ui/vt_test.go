package ui

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/vt"
)

// terminal is one in memory, with the whole program running on it.
type terminal struct {
	t     *testing.T
	mu    sync.Mutex // guards what follows; never held while writing input
	emu   *vt.Emulator
	bytes int
	raw   strings.Builder
	stuck chan struct{} // non-nil: writes wait until it is closed

	box  *Mailbox
	m    *model
	dir  string
	done chan error
	last string
	stop context.CancelFunc
	set  []time.Duration // intervals asked for
	code chan int

	desk  *desk
	looks []string // what somebody looked at: "closed", "open", or a chain
}

// Write does what a cooked terminal does to output: without a tty as input the renderer moves with bare line feeds.
func (tt *terminal) Write(p []byte) (int, error) {
	tt.mu.Lock()
	stuck := tt.stuck
	tt.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	tt.mu.Lock()
	defer tt.mu.Unlock()
	tt.bytes += len(p)
	tt.raw.Write(p)
	_, err := tt.emu.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n")))
	return len(p), err
}

func (tt *terminal) Read(p []byte) (int, error) { return tt.emu.Read(p) }

// keys sends bytes as a keyboard would. It holds no lock: the write waits for the program's reader.
func (tt *terminal) keys(s string) { _, _ = io.WriteString(tt.emu.InputPipe(), s) }

func open(t *testing.T, w, h int, view *incident.View, change func(*Options)) *terminal {
	t.Helper()
	tt := &terminal{t: t, emu: vt.NewEmulator(w, h), box: NewMailbox(), dir: t.TempDir(), done: make(chan error, 1), code: make(chan int, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	tt.stop = cancel
	o := Options{
		Probe:   oneProbe,
		Mailbox: tt.box, Interval: time.Second, Input: tt, Output: tt, Location: time.UTC, Dir: tt.dir,
		Environ: []string{"TERM=xterm-256color", "COLORTERM=truecolor"}, Theme: ThemeDark,
		SetInterval: func(d time.Duration) { tt.mu.Lock(); tt.set = append(tt.set, d); tt.mu.Unlock() },
		Look: func(open bool, chain *flannel.ChainID) {
			what := "closed"
			if chain != nil {
				what = chain.String()
			} else if open {
				what = "open"
			}
			tt.mu.Lock()
			defer tt.mu.Unlock()
			tt.looks = append(tt.looks, what)
		},
		Flows:   func(bool) {},
		Exit:    func(code int) { tt.code <- code },
		program: []tea.ProgramOption{tea.WithWindowSize(w, h)},
		model:   func(m *model) { tt.m = m },
	}
	tt.desk = newDesk(true).empty(nat4)
	o.Ask, o.Answers = tt.desk.ask, tt.desk.answers
	if change != nil {
		change(&o)
	}
	if view != nil {
		tt.box.Put(view)
	}
	go func() {
		last, err := Run(ctx, o)
		tt.last = last
		tt.done <- err
	}()
	t.Cleanup(func() {
		tt.release()
		cancel()
		select {
		case <-tt.done:
		case <-time.After(5 * time.Second):
			t.Error("the screen did not end")
		}
	})
	return tt
}

// release lets a stalled terminal read again.
func (tt *terminal) release() {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	if tt.stuck != nil {
		close(tt.stuck)
		tt.stuck = nil
	}
}

// text is what stands on the screen.
func (tt *terminal) text() string {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	var b strings.Builder
	for y := range tt.emu.Height() {
		var l strings.Builder
		for x := range tt.emu.Width() {
			if c := tt.emu.CellAt(x, y); c == nil || c.Content == "" {
				l.WriteByte(' ')
			} else {
				l.WriteString(c.Content)
			}
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	return b.String()
}

func (tt *terminal) sent() int {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	return tt.bytes
}

const patience = 5 * time.Second

// until waits for the screen to be as asked.
func (tt *terminal) until(what string, ok func(text string) bool) string {
	tt.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if s := tt.text(); ok(s) {
			return s
		}
	}
	tt.t.Fatalf("%s: not on the screen:\n%s", what, tt.text())
	return ""
}

func (tt *terminal) shows(sub string) string {
	tt.t.Helper()
	return tt.until(sub, func(s string) bool { return strings.Contains(s, sub) })
}

func (tt *terminal) hides(sub string) string {
	tt.t.Helper()
	return tt.until("without "+sub, func(s string) bool { return !strings.Contains(s, sub) })
}

// ends waits for the program to end.
func (tt *terminal) ends() error {
	tt.t.Helper()
	select {
	case err := <-tt.done:
		tt.done <- err
		return err
	case <-time.After(patience):
		tt.t.Fatalf("the screen did not end:\n%s", tt.text())
		return nil
	}
}
