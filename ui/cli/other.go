//go:build !linux

package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"flanwatch/watcher/incident"
)

// errLinux is what every command says that needs the kernel of a node.
var errLinux = errors.New("only Linux has a packet filter to look at")

// PlayPart does nothing where there is no lab.
func PlayPart() {}

func newWatch(*options, Streams) *cobra.Command {
	return onlyLinux("watch", "Show Flannel's chains live (Linux only)")
}

func newDemo(*options, Streams) *cobra.Command {
	return onlyLinux("demo", "Show the screen on a throwaway node (Linux only)")
}

func newReapply(*options, Streams) *cobra.Command {
	return onlyLinux("reapply", "Put back what Flannel should have (Linux only)")
}

func newPurge(*options, Streams) *cobra.Command {
	return onlyLinux("purge", "Remove what Flannel left (Linux only)")
}

func newUndo(*options, Streams) *cobra.Command {
	return onlyLinux("undo", "Take an applied plan back (Linux only)")
}

func newHistory(*options, Streams) *cobra.Command {
	return onlyLinux("history", "List the plans that were carried out here (Linux only)")
}

func newDoctor(*options, Streams) *cobra.Command {
	return onlyLinux("doctor", "Say what this node lets flanwatch see and do (Linux only)")
}

// newRescue has nothing to take back.
func newRescue(Streams) *cobra.Command {
	cmd := onlyLinux("rescue-remedy", "")
	cmd.Hidden = true
	return cmd
}

func onlyLinux(use, short string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short,
		RunE: func(*cobra.Command, []string) error { return exit(ExitUnreadable, errLinux) },
	}
}

func look(context.Context, *options, glance) (*incident.View, error) {
	return nil, exit(ExitUnreadable, errLinux)
}
