package cli

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"flanwatch/assets"
	"flanwatch/flannel"
	"flanwatch/watcher/journal"
)

// demoRecorded plays a recording of a scenario, for want of what a lab needs, and says so.
func demoRecorded(ctx context.Context, name string, lacking error, o *options, std Streams) error {
	dir, err := os.MkdirTemp("", "flanwatch-demo-")
	if err != nil {
		return exit(ExitUnreadable, fmt.Errorf("unpack recording: %w", err))
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, name+journal.Suffix)
	if err := unpackRecording(name, path); err != nil {
		return exit(ExitUnreadable, fmt.Errorf("unpack recording: %w", err))
	}
	if !o.onScreen(std) {
		if _, err := fmt.Fprintf(std.Out, "# a RECORDING of the lab, not a live one: %s\n", flannel.Printable(lacking.Error())); err != nil {
			return exit(ExitUnreadable, fmt.Errorf("write: %w", err))
		}
	}
	return replayAs(ctx, path, "", "of the demo: no lab here", o, std)
}

func unpackRecording(name, path string) error {
	packed, err := assets.Recordings.Open("recordings/" + name + journal.Suffix + ".gz")
	if err != nil {
		return err
	}
	defer packed.Close()
	text, err := gzip.NewReader(packed)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, text)
	return errors.Join(err, f.Close())
}
