//go:build !linux

package cli

import "github.com/spf13/cobra"

func newUnstick(*options, Streams) *cobra.Command {
	return onlyLinux("unstick", "Drop connections that keep a wrong translation (Linux only)")
}
