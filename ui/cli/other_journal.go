//go:build !linux

package cli

import "github.com/spf13/cobra"

func newRecord(*options, Streams) *cobra.Command {
	return onlyLinux("record", "Record without a screen (Linux only)")
}
