package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"flanwatch/assets"
)

func newCheck(o *options, std Streams) *cobra.Command {
	var schema, flows bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Look once and say what is wrong",
		Long: `check looks once at everything Flannel keeps in the packet filter of this node and says what is wrong.

Exit code: 0 healthy, 1 a finding of severity warning or critical, 2 usage, 3 something the verdict needs could not be read.`,
		Example: "  flanwatch check\n  flanwatch check -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if schema {
				_, err := std.Out.Write(assets.CheckSchema)
				return err
			}
			return check(cmd.Context(), o, flows, std.Out)
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the JSON output and exit")
	cmd.Flags().BoolVar(&flows, "flows", false, "look at every connection too, which takes a moment on a node with many")
	return cmd
}

// check takes one look and prints it.
func check(ctx context.Context, o *options, flows bool, out io.Writer) error {
	view, err := look(ctx, o, flows)
	if err != nil {
		return err
	}
	r := newReport(view)
	if o.output == "json" {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		if err := enc.Encode(r); err != nil {
			return exit(ExitUnreadable, fmt.Errorf("write report: %w", err))
		}
	} else if err := r.writeText(out); err != nil {
		return exit(ExitUnreadable, fmt.Errorf("write report: %w", err))
	}
	if code := r.code(); code != ExitOK {
		return exit(code, nil)
	}
	return nil
}
