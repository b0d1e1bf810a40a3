package ui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"flanwatch/flannel"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/term"
)

// Options say what the screen shows and whom it asks.
type Options struct {
	Mailbox  *Mailbox      // where the views come from
	Mode     Mode          // LIVE by default
	Detail   string        // which recording or scenario, "" for none
	Interval time.Duration // time between two readings, for the header
	// SetInterval is told a new interval. It must not wait. Without it the interval cannot be changed here.
	SetInterval func(time.Duration)
	// Look is told what somebody looks at beside Flannel's chains: base chains, and one chain if that is not nil. It must not
	// wait. Without it they cannot be looked at.
	Look func(open bool, chain *flannel.ChainID)
	// Flows is told whether somebody reads the list of connections. It must not wait. Without it they cannot be looked at, and
	// what was seen of them is shown.
	Flows func(open bool)
	// Hunt is told that somebody looks for leftovers, so that files are looked through. It must not wait. Without it what is
	// known of files stays.
	Hunt func()
	// Probe is asked to try one connection: a target such as tcp://192.0.2.80:443, a space, and the pod to try from. It must
	// not wait: how the attempt ended comes with a view. Without it none can be tried. Probed is what is proposed.
	Probe  func(text string) error
	Probed string

	// Status gives one line about what is being recorded and where. It is called for each picture and must not wait.
	Status   func() string
	ReadOnly bool
	// Ask is told what a person wants of plans. It must not wait: what comes of it is put into Answers, more than once if it
	// takes time. Without the two there are no remedies.
	Ask     func(Wish)
	Answers *Box[Answer]
	// Player is asked to move within a recording, nil where there is none.
	Player Player

	Theme    Theme          // auto by default
	ASCII    bool           // draw with ASCII alone
	Dir      string         // where copies and exports are written, the system's folder for temporary files by default
	Location *time.Location // for times on screen, the local one by default
	Environ  []string       // TERM, NO_COLOR and so on, those of the process by default

	// Flush makes what was recorded safe. It is called, from another goroutine, before the program ends without the screen.
	Flush func()

	Input  io.Reader        // the terminal by default
	Output io.Writer        // the terminal by default
	Clock  func() time.Time // time.Now by default
	Exit   func(code int)   // os.Exit by default

	program []tea.ProgramOption // for tests
	model   func(*model)        // for tests: told the model before the program runs
}

// SignalError says that a signal ended the screen.
type SignalError struct{ Signal os.Signal }

func (e *SignalError) Error() string { return "ended by signal: " + e.Signal.String() }

// Code is the exit code that shells expect.
func (e *SignalError) Code() int {
	if s, ok := e.Signal.(syscall.Signal); ok {
		return 128 + int(s)
	}
	return 1
}

// Suits tells whether a screen can be drawn on a terminal of this environment; if not, Lines serves. Whether there is a
// terminal at all is for the caller to see.
func Suits(environ []string) bool {
	t := lookup(environ, "TERM")
	return t != "" && t != "dumb"
}

// grace is how long the screen has to end after a signal. A terminal that has stopped reading never lets it.
const grace = 3 * time.Second

// Run shows the screen until the person quits, the context ends, or a signal comes (SIGINT, SIGTERM, SIGHUP). It gives
// the last picture when the person asked to keep it, for the caller to print.
//
// Whatever ends it, the process is gone at most three seconds later, after Flush, even if the terminal has stopped
// reading.
func Run(ctx context.Context, o Options) (last string, err error) {
	o = o.withDefaults()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	ended := make(chan struct{})
	defer close(ended)
	before, _ := term.GetState(os.Stdin.Fd()) // an error means that there is nothing to put back
	go func() {
		select {
		case s := <-signals:
			cancel(&SignalError{s})
		case <-ctx.Done():
		case <-ended:
			return
		}
		o.insist(ctx, ended, before)
	}()
	m := newModel(ctx, o)
	if o.model != nil {
		o.model(m)
	}
	_, err = tea.NewProgram(m, o.programOptions(ctx)...).Run()
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, tea.ErrProgramKilled) && !errors.Is(err, tea.ErrProgramPanic) {
		return "", cause
	}
	if err != nil {
		return "", fmt.Errorf("draw screen: %w", err)
	}
	return m.lastKept, nil
}

// insist ends the process if the screen does not end by itself. The terminal's mode is put back as far as that goes
// without writing to it.
func (o Options) insist(ctx context.Context, ended <-chan struct{}, before *term.State) {
	select {
	case <-ended:
		return
	case <-time.After(grace):
	}
	if o.Flush != nil {
		o.Flush()
	}
	if before != nil && o.Input == nil {
		_ = term.Restore(os.Stdin.Fd(), before)
	}
	code := 1
	var s *SignalError
	if errors.As(context.Cause(ctx), &s) {
		code = s.Code()
	}
	o.Exit(code)
}

func (o Options) withDefaults() Options {
	if o.Mode == "" {
		o.Mode = ModeLive
	}
	if o.Theme == "" {
		o.Theme = ThemeAuto
	}
	if o.Location == nil {
		o.Location = time.Local
	}
	if o.Environ == nil {
		o.Environ = os.Environ()
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Exit == nil {
		o.Exit = os.Exit
	}
	if o.Mailbox == nil {
		o.Mailbox = NewMailbox()
	}
	return o
}

// fps bounds the pictures written to the terminal.
const fps = 15

func (o Options) programOptions(ctx context.Context) []tea.ProgramOption {
	opts := []tea.ProgramOption{
		tea.WithContext(ctx), tea.WithoutSignalHandler(), tea.WithFPS(fps), tea.WithEnvironment(o.Environ),
		tea.WithColorProfile(o.profile()),
	}
	if o.Input != nil {
		opts = append(opts, tea.WithInput(o.Input))
	}
	if o.Output != nil {
		opts = append(opts, tea.WithOutput(o.Output))
	}
	return append(opts, o.program...)
}

// profile tells how many colours there are, from the environment alone: asking the terminal's multiplexer would run a
// program as root. Any value of NO_COLOR counts, as its convention says.
func (o Options) profile() colorprofile.Profile {
	p := colorprofile.Env(o.Environ)
	if lookup(o.Environ, "NO_COLOR") != "" {
		return min(p, colorprofile.ASCII)
	}
	return p
}

// silentClipboard names the terminals that are known to drop what a program wants to put on the clipboard.
func (o Options) silentClipboard() bool {
	t := lookup(o.Environ, "TERM")
	return lookup(o.Environ, "TMUX") != "" || strings.HasPrefix(t, "screen") || strings.HasPrefix(t, "linux") || strings.HasPrefix(t, "vt")
}

func lookup(environ []string, name string) string {
	for i := len(environ) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(environ[i], name+"="); ok {
			return v
		}
	}
	return ""
}
