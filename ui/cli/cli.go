// Package cli builds flanwatch's commands, wires the parts together, prints text and JSON, and turns errors into exit
// codes. It is the only place that prints.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"flanwatch/flannel"
)

// Exit codes; they are part of the contract with scripts.
const (
	ExitOK         = 0 // healthy, or done
	ExitFinding    = 1 // a finding of severity warning or critical, or a plan that would change something
	ExitUsage      = 2 // the command line is wrong
	ExitUnreadable = 3 // something the verdict needs could not be read
	ExitRefused    = 4 // a guard refuses, or the plan is stale
	ExitUnverified = 5 // applied, but not found so
)

// exitError carries an exit code up to Main. Its cause may be nil, where everything has been said already.
type exitError struct {
	code  int
	cause error
}

func (e *exitError) Error() string {
	if e.cause == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.cause.Error()
}

func (e *exitError) Unwrap() error { return e.cause }

// exit makes an error that ends the program with the code and, unless cause is nil, a message.
func exit(code int, cause error) error { return &exitError{code, cause} }

// Streams are the three standard streams, given from outside so that tests can read them.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Main runs one command line (without the program's name) and gives the exit code.
func Main(ctx context.Context, args []string, std Streams) int {
	root := newRoot(std)
	root.SetArgs(args)
	return finish(root.ExecuteContext(ctx), std.Err)
}

// finish prints the error of a command, once, and gives its exit code.
func finish(err error, w io.Writer) int {
	var e *exitError
	switch {
	case err == nil:
		return ExitOK
	case !errors.As(err, &e):
		e = &exitError{ExitUsage, err}
	}
	if e.cause != nil {
		fmt.Fprintln(w, "flanwatch: "+flannel.Printable(e.cause.Error()))
	}
	return e.code
}

func newRoot(std Streams) *cobra.Command {
	o := new(options)
	watch := newWatch(o, std)
	root := &cobra.Command{
		Use:   "flanwatch",
		Short: "Watch, record and repair what Flannel keeps in a node's packet filter",
		Long: `flanwatch shows, live, what Flannel keeps in the packet filter of a Kubernetes node: both iptables
backends and Flannel's native nftables tables, with rates, changes and who made them.

Watching disturbs nothing. Without a command it watches; "flanwatch demo" shows it on a throwaway node.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
		RunE:          watch.RunE,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.fromEnvironment(cmd.Flags()); err != nil {
				return err
			}
			if o.output == outputNPD && cmd.Name() != "check" {
				return exit(ExitUsage, fmt.Errorf("-o npd: only check has this form, not %s", cmd.Name()))
			}
			return nil
		},
	}
	root.SetIn(std.In)
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	root.AddCommand(newFlows(o, std), newUnstick(o, std), newInstallSelf(std), newFleet(o, std))
	root.AddCommand(newRecord(o, std), newReplay(o, std), newExport(o, std))
	o.register(root.PersistentFlags())
	root.Flags().AddFlagSet(watch.Flags())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exit(ExitUsage, err) })
	root.AddCommand(watch, newCheck(o, std), newDemo(o, std),
		newReapply(o, std), newPurge(o, std), newUndo(o, std), newHistory(o, std), newRescue(std), newDoctor(o, std))
	return root
}
