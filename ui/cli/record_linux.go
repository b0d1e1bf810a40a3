package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"flanwatch/flannel"
	"flanwatch/watcher"
	"flanwatch/watcher/journal"
)

func newRecord(o *options, std Streams) *cobra.Command {
	var probe probeFlags
	var export exportFlags
	cmd := &cobra.Command{
		Use:   "record",
		Short: "Record without a screen",
		Long: `record watches as "watch" does, without a screen: it writes the journal, and prints one line for each
incident at once, when it begins and when it ends. It is meant to run as a service.`,
		Example: "  flanwatch record\n  flanwatch record --textfile /var/lib/prometheus/node-exporter",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.probe, err = probe.options(); err != nil {
				return err
			}
			return record(cmd.Context(), o, export, std.Out)
		},
	}
	probe.register(cmd.Flags())
	export.register(cmd.Flags())
	return cmd
}

// record watches and writes the journal until a signal comes.
func record(ctx context.Context, o *options, export exportFlags, out io.Writer) error {
	if o.unkept {
		return exit(ExitUsage, errors.New("record without a journal records nothing"))
	}
	watcher.SpareProcessors()
	w, err := watcher.Open(o.watcher())
	if err != nil {
		return exit(ExitUnreadable, err)
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	l := newLive()
	l.wantFlows = w.WantFlows
	l.state = o.remembered()
	said := announcer{out: out}
	said.skip(l.view(w.Now()))
	r := o.recorder(w.Now())
	defer r.Close()
	e, err := export.open(l, w.Now, r)
	if err != nil {
		return exit(ExitUsage, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, r.Sink(e.sink(l.observe))) }()
	exported := make(chan struct{})
	go func() {
		defer close(exported)
		e.run(ctx)
	}()
	_, err = fmt.Fprintf(out, "%s  recording to %s\n", w.Now().Wall.UTC().Format(lineTime), flannel.Printable(o.journalPath()))
	if err == nil {
		err = said.follow(ctx, l, w.Now, r, e)
	}
	notify("STOPPING=1")
	stop()
	<-exported
	err = errors.Join(err, e.close())
	if err != nil {
		return exit(ExitUnreadable, fmt.Errorf("write: %w", err))
	}
	return <-ended
}

// follow prints news as they come, and tells the service manager once a beat that all goes on.
func (a *announcer) follow(ctx context.Context, l *live, now func() flannel.Time, r *journal.Recorder, e *exports) error {
	beat := time.NewTicker(watchdogBeat())
	defer beat.Stop()
	notify("READY=1")
	for {
		r.Settle() // a line is printed only when what it tells is in the journal
		if err := a.print(l.view(now())); err != nil {
			return err
		}
		_, _, trouble := r.State()
		if err := errors.Join(a.trouble(now(), trouble), a.exporting(now(), e.trouble())); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-l.news:
		case <-beat.C:
			notify("WATCHDOG=1\nSTATUS=" + recordStatus(r))
		}
	}
}

// watchdogBeat is half of the time after which systemd takes a silent service for dead, at most five seconds.
func watchdogBeat() time.Duration {
	beat := 5 * time.Second
	if us, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64); err == nil && us > 0 {
		beat = min(beat, time.Duration(us)*time.Microsecond/2)
	}
	return beat
}

// notifyPatience is how long a service manager may take to take a message. What it says of us must not keep us from work.
const notifyPatience = 100 * time.Millisecond

// notify tells systemd, if it has started us, how we are.
func notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return // it will see by itself that nothing came
	}
	defer c.Close()
	_ = c.SetWriteDeadline(time.Now().Add(notifyPatience))
	_, _ = c.Write([]byte(state)) // one that does not listen misses a beat
}
