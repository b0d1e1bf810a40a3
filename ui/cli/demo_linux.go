package cli

import "github.com/spf13/cobra"

func newDemo(o *options, std Streams) *cobra.Command {
	return &cobra.Command{Use: "demo", Hidden: true}
}
