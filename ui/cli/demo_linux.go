package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"flanwatch/ui"
	"flanwatch/watcher/lab"
)

// demoLines is how long the demo prints lines where there is no terminal.
const demoLines = 30 * time.Second

func newDemo(o *options, std Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo [SCENARIO]",
		Short: "Show the screen on a throwaway node",
		Long: `demo builds a Flannel node in network namespaces of its own, with real rules and real traffic, and
watches it. It needs neither Flannel nor root, and leaves nothing behind.

Scenarios: ` + strings.Join(lab.Scenarios(), ", ") + `.`,
		Example:           "  flanwatch demo\n  flanwatch demo teardown",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.FixedCompletions(lab.Scenarios(), cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := lab.Tour
			if len(args) == 1 {
				name = args[0]
			}
			return demo(cmd.Context(), name, o, std)
		},
	}
	return cmd
}

// demo shows a scenario. It runs twice: outside, where it only waits, and inside the lab's namespaces.
func demo(ctx context.Context, name string, o *options, std Streams) error {
	scenario, err := lab.LoadScenario(name)
	if err != nil {
		return exit(ExitUsage, err)
	}
	inside, code, err := lab.Enclose()
	switch {
	case err != nil:
		return exit(ExitUnreadable, err)
	case !inside && code != ExitOK:
		return exit(code, nil)
	case !inside:
		return nil
	}
	node, err := lab.Start(ctx, scenario)
	if err != nil {
		return exit(ExitUnreadable, err)
	}
	defer node.Close()
	o.netns, o.root, o.unkept = node.Node.Path(), node.Root(), true
	if o.state, err = os.MkdirTemp("", "flanwatch-demo-"); err != nil { // plans of the demo are none of the machine's
		return exit(ExitUnreadable, err)
	}
	defer os.RemoveAll(o.state) //nolint:errcheck // at worst an empty folder is left
	captions := newCaption(node.Captions)
	if o.onScreen(std) {
		screen := ui.Options{Mode: ui.ModeDemo, Detail: name, Status: captions.text}
		return watch(ctx, o, std, screen)
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, demoLines)
	defer cancel()
	captions.print(std.Out)
	return watch(ctx, o, std, ui.Options{})
}

// caption keeps the newest sentence of the story.
type caption struct {
	mu     sync.Mutex
	newest string
	out    io.Writer
}

func newCaption(from <-chan string) *caption {
	c := &caption{}
	go func() {
		for text := range from {
			c.set(text)
		}
	}()
	return c
}

func (c *caption) set(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest = text
	if c.out != nil {
		fmt.Fprintln(c.out, "# "+text)
	}
}

func (c *caption) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest
}

// print writes each sentence from now on.
func (c *caption) print(w io.Writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = w
	if c.newest != "" {
		fmt.Fprintln(w, "# "+c.newest)
	}
}

// PlayPart does not return if this process was started by the demo's lab to play the part of another program, such as
// iptables. The main function calls it first.
func PlayPart() { lab.Child() }
