// Command flanwatch watches, records and repairs what Flannel keeps in the packet filter of a Kubernetes node.
package main

import (
	"context"
	"os"

	"flanwatch/ui/cli"
)

func main() {
	cli.PlayPart()
	std := cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	os.Exit(cli.Main(context.Background(), os.Args[1:], std))
}
