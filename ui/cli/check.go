package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"flanwatch/assets"
	"flanwatch/watcher/diagnose"
)

func newCheck(o *options, std Streams) *cobra.Command {
	var schema bool
	var part only
	var pause settle
	var g glance
	var probe probeFlags
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Look once and say what is wrong",
		Long: `check looks once at everything Flannel keeps in the packet filter of this node and says what is wrong.

Exit code: 0 healthy, 1 a finding of severity warning or critical, 2 usage, 3 something the verdict needs could not be read.`,
		Example: "  flanwatch check\n  flanwatch check -o json\n  flanwatch check -o npd --only masquerade --settle 5s",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if schema {
				_, err := std.Out.Write(assets.CheckSchema)
				return err
			}
			if o.probe, err = probe.options(); err != nil {
				return err
			}
			g.of, g.settle = diagnose.Group(part), time.Duration(pause)
			return check(cmd.Context(), o, g, std.Out)
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the JSON output and exit")
	probe.register(cmd.Flags())
	cmd.Flags().Var(&part, "only", "say only what concerns this: masquerade, forward, leftovers or readers")
	cmd.Flags().Var(&pause, "settle", "when something is found, look again after this time, and report what is still there")
	cmd.Flags().BoolVar(&g.flows, "flows", false, "look at every connection too, which takes a moment on a node with many")
	return cmd
}

// check takes one look and prints it.
func check(ctx context.Context, o *options, g glance, out io.Writer) error {
	view, err := look(ctx, o, g)
	if err != nil {
		return err
	}
	r := newReport(view).only(g.of)
	if o.output == outputNPD {
		if _, err := io.WriteString(out, r.npd(g.of)+"\n"); err != nil {
			return exit(ExitUnreadable, fmt.Errorf("write report: %w", err))
		}
	} else if o.output == "json" {
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
