package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"flanwatch/flannel"
	"flanwatch/ui"
	"flanwatch/watcher"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

func newWatch(o *options, std Streams) *cobra.Command {
	var probe probeFlags
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show Flannel's chains live (the default command)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.probe, err = probe.options(); err != nil {
				return err
			}
			return watch(cmd.Context(), o, std, ui.Options{})
		},
	}
	probe.register(cmd.Flags())
	return cmd
}

// watch opens a watcher and shows what it sees, on a screen or as lines.
func watch(ctx context.Context, o *options, std Streams, screen ui.Options) error {
	if o.output == "json" {
		return exit(ExitUsage, errors.New("watch has no JSON output; use check -o json"))
	}
	watcher.SpareProcessors()
	w, err := watcher.Open(o.watcher())
	if err != nil {
		return exit(ExitUnreadable, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := newLive()
	l.wantFlows = w.WantFlows
	sink := l.observe
	if !o.unkept {
		if o.onScreen(std) {
			l.state = o.remembered()
		}
		r := o.recorder(w.Now())
		defer r.Close()
		sink = r.Sink(l.observe)
		l.settle, screen.Flush = r.Settle, r.Close
		if screen.Status == nil {
			screen.Status = func() string { return recordStatus(r) }
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, sink) }()
	go func() {
		time.Sleep(time.Second) // everything has been read once
		if o := elsewhere(w, l.view(w.Now()), o.netns); o != nil {
			sink(o)
		}
	}()

	if o.onScreen(std) {
		screen.Mailbox = ui.NewMailbox()
		screen.Interval, screen.SetInterval = w.Interval(), w.SetInterval
		screen.Look, screen.Hunt = w.Look, w.WantHunt
		screen.Probe, screen.Probed = tryFrom(w.Try), proposed(o.probe)
		screen.Flows = func(open bool) { l.readList(open, w.Now()) }
		screen.Theme, screen.ASCII, screen.ReadOnly = ui.Theme(o.theme), o.ascii, o.readOnly
		desk := newDesk(o, l, w.Now)
		screen.Ask, screen.Answers = desk.wish, desk.answers
		go desk.run(ctx, w)
		defer desk.finish()
		go l.frames(ctx, w.Now, screen.Mailbox)
		return runScreen(ctx, screen, std.Out)
	}
	return lines(ctx, l, w.Now, w.Interval(), std.Out)
}

func (o *options) watcher() watcher.Options {
	return watcher.Options{
		NetNS: o.netns, Root: o.root, State: o.state, Interval: time.Duration(o.interval),
		Networks: o.networks, Subnets: o.subnets, Probe: o.probe,
	}
}

// lines prints events and the state at every interval until a signal comes or nobody reads any more.
func lines(ctx context.Context, l *live, now func() flannel.Time, every time.Duration, out io.Writer) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var writer ui.Lines
	for {
		due := false
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			due = true
		case <-l.news:
		}
		text := writer.Next(l.view(now()))
		if !due {
			text = text[:len(text)-1] // the last one tells the state, and is for every interval
		}
		for _, line := range text {
			if _, err := fmt.Fprintln(out, line); err != nil {
				return exit(ExitUnreadable, fmt.Errorf("write: %w", err))
			}
		}
	}
}

// look reads everything once, and with flows every connection. Where a chain is empty and Flannel runs it looks again, and
// reports what is still there.
func look(ctx context.Context, o *options, g glance) (*incident.View, error) {
	w, err := watcher.Open(o.watcher())
	if err != nil {
		return nil, exit(ExitUnreadable, err)
	}
	defer w.Close()
	return lookWith(ctx, w, o, g)
}

func lookWith(ctx context.Context, w *watcher.Watcher, o *options, g glance) (*incident.View, error) {
	state := incident.NewState()
	w.Once(state.Apply)
	view := state.View(w.Now())
	if o := elsewhere(w, view, o.netns); o != nil {
		state.Apply(o)
		return state.View(w.Now()), nil
	}
	w.Hunt(state.Apply)
	view = state.View(w.Now())
	first := view.Findings
	pause := g.pause(view)
	if w.Locked() {
		pause = max(pause, secondLook)
	}
	if pause > 0 {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, exit(ExitUnreadable, ctx.Err())
		}
		w.Once(state.Apply)
		view = state.View(w.Now())
	}
	if g.flows {
		w.Survey(view.Table.Masquerade, state.Apply)
		view = state.View(w.Now())
	}
	if o.probe != nil {
		w.ProbeOnce(*o.probe, state.Apply)
		view = state.View(w.Now())
	}
	if g.settle > 0 {
		view.Findings = lasting(view.Findings, first)
	}
	return view, nil
}

// elsewhere says so where nothing of Flannel is found, nobody named a namespace, and this one is evidently not the node's:
// an empty packet filter proves nothing then.
func elsewhere(w *watcher.Watcher, v *incident.View, netns string) *incident.Observation {
	if netns != "" || v.Flannel.State != diagnose.FlannelAbsent {
		return nil
	}
	reason := w.Elsewhere()
	if reason == "" {
		return nil
	}
	why := "not the node's network namespace (" + reason + "): run on the host network, or name the namespace with --netns"
	return &incident.Observation{Time: w.Now(), Fault: &incident.Fault{Reader: "namespace", Why: why}}
}
