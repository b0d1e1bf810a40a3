package cli

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"flanwatch/watcher"
)

// Bounds of --interval: below, reading costs more than it tells; above, a sparkline means nothing.
const (
	minInterval = 100 * time.Millisecond
	maxInterval = time.Minute
)

// options are the flags that every command knows.
type options struct {
	output   output
	interval interval
	netns    string
	root     string
	state    string
	journal  string
	unkept   bool // no journal is written
	readOnly bool
	networks prefixes
	subnets  prefixes
	ascii    bool
	theme    theme
	probe    *watcher.ProbeOptions // of the commands that take them, nil for none
}

// stateDirectory is where flanwatch keeps what must survive it; systemd says where.
func stateDirectory() string {
	if dir, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":"); dir != "" {
		return dir
	}
	return "/var/lib/flanwatch"
}

func (o *options) register(f *pflag.FlagSet) {
	o.interval = interval(time.Second)
	o.theme = "auto"
	f.VarP(&o.output, "output", "o", "tui, text or json, of check also npd; by default tui on a terminal, else text")
	f.Var(&o.interval, "interval", "time between two readings of the counters, 0.1s to 60s")
	f.StringVar(&o.netns, "netns", "", "watch the network namespace of this `name` or path instead of our own")
	f.StringVar(&o.root, "root", "/", "read the node's files below this `folder`, e.g. /host in a debug pod")
	f.StringVar(&o.state, "state", stateDirectory(), "`folder` for journal, backups and receipts")
	f.StringVar(&o.journal, "journal", "", "`file` (*.jsonl) or folder of the journal; by default the folder journal in the state folder")
	f.BoolVar(&o.unkept, "no-journal", false, "neither read nor write the journal")
	f.BoolVar(&o.readOnly, "read-only", false, "show plans, and refuse to carry them out")
	f.Var(&o.networks, "network", "pod network of the cluster, where no file tells it (may be given twice)")
	f.Var(&o.subnets, "subnet", "pod subnet of this node, where no file tells it (may be given twice)")
	f.BoolVar(&o.ascii, "ascii", false, "draw with ASCII characters only")
	f.Var(&o.theme, "theme", "auto, dark, light or mono")
}

// fromEnvironment sets every flag that was not given from FLANWATCH_NAME, with dashes as underscores.
func (o *options) fromEnvironment(f *pflag.FlagSet) error {
	var first error
	f.VisitAll(func(flag *pflag.Flag) {
		name := "FLANWATCH_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value := os.Getenv(name)
		if flag.Changed || value == "" || first != nil {
			return
		}
		if err := f.Set(flag.Name, value); err != nil {
			first = exit(ExitUsage, fmt.Errorf("environment variable %s: %w", name, err))
		}
	})
	return first
}

// outputNPD is the form of check that node-problem-detector reads.
const outputNPD = "npd"

// output is a value of -o.
type output string

func (o *output) String() string { return string(*o) }
func (o *output) Type() string   { return "form" }
func (o *output) Set(s string) error {
	return oneOf((*string)(o), s, "tui", "text", "json", outputNPD)
}

// theme is a value of --theme.
type theme string

func (t *theme) String() string { return string(*t) }
func (t *theme) Type() string   { return "name" }
func (t *theme) Set(s string) error {
	return oneOf((*string)(t), s, "auto", "dark", "light", "mono")
}

func oneOf(v *string, s string, words ...string) error {
	for _, w := range words {
		if s == w {
			*v = s
			return nil
		}
	}
	return fmt.Errorf("want one of %s", strings.Join(words, ", "))
}

// interval is a value of --interval: a duration, or a number of seconds.
type interval time.Duration

func (i *interval) String() string { return time.Duration(*i).String() }
func (i *interval) Type() string   { return "duration" }
func (i *interval) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		if d, err = time.ParseDuration(s + "s"); err != nil {
			return fmt.Errorf("want a duration such as 1s or 500ms")
		}
	}
	if d < minInterval || d > maxInterval {
		return fmt.Errorf("want %v to %v", minInterval, maxInterval)
	}
	*i = interval(d)
	return nil
}

// prefixes is a list of networks, given as flags that may be repeated or hold commas.
type prefixes []netip.Prefix

func (p *prefixes) String() string {
	var s []string
	for _, x := range *p {
		s = append(s, x.String())
	}
	return strings.Join(s, ",")
}
func (p *prefixes) Type() string { return "prefix" }
func (p *prefixes) Set(s string) error {
	for _, word := range strings.Split(s, ",") {
		x, err := netip.ParsePrefix(strings.TrimSpace(word))
		if err != nil {
			return fmt.Errorf("want a network such as 10.244.0.0/16")
		}
		*p = append(*p, x.Masked())
	}
	return nil
}
