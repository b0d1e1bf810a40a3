package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"flanwatch/flannel"
	"flanwatch/ui"
	"flanwatch/watcher/journal"
)

func newReplay(o *options, std Streams) *cobra.Command {
	var at string
	cmd := &cobra.Command{
		Use:   "replay [FILE]",
		Short: "Show a recording on the screen",
		Long: `replay shows what a journal holds as if it happened now. FILE is a file or folder that "record" or
"watch" wrote, on this machine or another; without it, the journal in the state folder.

space plays and holds, ← and → step from observation to observation, n and N jump to the next incident
and the one before, + and - change the speed (0.1x to 100x), shift and an arrow move 10 s, ctrl and an
arrow a minute, @ goes to a time. Where there is no terminal, the events are printed as lines.`,
		Example: "  flanwatch replay\n  flanwatch replay worker-3.jsonl --at 2026-11-30T02:58:00Z",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return replay(cmd.Context(), o.recordingPath(args), at, o, std)
		},
	}
	cmd.Flags().StringVar(&at, "at", "", "start at this `time`, e.g. 2026-11-30T02:58:00Z, or 02:58:00 in UTC on the recording's first day")
	return cmd
}

func replay(ctx context.Context, path, at string, o *options, std Streams) error {
	if o.output == "json" {
		return exit(ExitUsage, errors.New("replay has no JSON output; use export -o json"))
	}
	rec, err := loadRecording(path, std)
	if err != nil {
		return err
	}
	p := newPosition(rec)
	if at != "" {
		t, err := momentOf(at, rec.First.Wall)
		if err != nil {
			return exit(ExitUsage, err)
		}
		p.goTo(t)
	}
	if !o.onScreen(std) {
		var lines ui.Lines
		for _, line := range lines.Next(rec.Final) {
			if _, err := fmt.Fprintln(std.Out, line); err != nil {
				return exit(ExitUnreadable, fmt.Errorf("write: %w", err))
			}
		}
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	player := newPlayer()
	screen := ui.Options{
		Mailbox: ui.NewMailbox(), Mode: ui.ModeReplay, Detail: filepath.Base(path), Status: player.status, Player: player,
		ReadOnly: true, Theme: ui.Theme(o.theme), ASCII: o.ascii,
	}
	screen.Ask, screen.Answers = player.desk(o.state)
	go player.run(ctx, p, screen.Mailbox.Put)
	return runScreen(ctx, screen, std.Out)
}

// loadRecording reads a journal and says on the error stream what could not be read of it.
func loadRecording(path string, std Streams) (*journal.Recording, error) {
	rec, err := journal.Load(path)
	if err != nil {
		return nil, exit(ExitUnreadable, err)
	}
	for _, note := range rec.Notes() {
		fmt.Fprintln(std.Err, "flanwatch: "+flannel.Printable(note))
	}
	if rec.Count == 0 {
		return nil, exit(ExitUnreadable, fmt.Errorf("%s holds no observations", path))
	}
	return rec, nil
}

// momentOf reads a moment, or a time of a day.
func momentOf(text string, day time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t, nil
	}
	for _, form := range []string{"15:04:05", "15:04"} {
		if t, err := time.Parse(form, text); err == nil {
			y, m, d := day.UTC().Date()
			return time.Date(y, m, d, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC), nil
		}
	}
	return time.Time{}, fmt.Errorf("--at %s: want a time such as 2026-11-30T02:58:00Z or 02:58", text)
}

// onScreen tells whether to draw: on a terminal that can, unless lines were asked for.
func (o *options) onScreen(std Streams) bool {
	if o.output == "text" {
		return false
	}
	out, isFile := std.Out.(*os.File)
	in, inFile := std.In.(*os.File)
	return isFile && inFile && term.IsTerminal(out.Fd()) && term.IsTerminal(in.Fd()) && ui.Suits(os.Environ())
}
