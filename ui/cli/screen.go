package cli

import (
	"context"
	"errors"
	"io"

	"flanwatch/ui"
)

// runScreen shows a screen until it ends, and turns the way it ended into an exit code.
func runScreen(ctx context.Context, o ui.Options, out io.Writer) error {
	last, err := ui.Run(ctx, o)
	var s *ui.SignalError
	switch {
	case errors.As(err, &s):
		return exit(s.Code(), nil)
	case err != nil:
		return exit(ExitUnreadable, err)
	}
	_, err = io.WriteString(out, last)
	return err
}
