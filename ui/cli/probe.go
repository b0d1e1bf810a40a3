package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"flanwatch/flannel"
	"flanwatch/watcher"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/probe"
)

// probeFlags say which connections to try from a pod; nothing is sent without them.
type probeFlags struct {
	target targetFlag
	from   string
}

func (p *probeFlags) register(f *pflag.FlagSet) {
	f.Var(&p.target, "probe", "try new connections to this `url` from inside a pod: tcp://ADDRESS:PORT, udp://… or icmp://ADDRESS")
	f.StringVar(&p.from, "probe-from", "", "the `pod`: its address, the name or path of its network namespace, or a process number")
}

// options are nil where no connections are to be tried.
func (p *probeFlags) options() (*watcher.ProbeOptions, error) {
	switch {
	case !p.target.given && p.from == "":
		return nil, nil
	case !p.target.given:
		return nil, exit(ExitUsage, errors.New("--probe-from needs --probe"))
	case p.from == "":
		return nil, exit(ExitUsage, errors.New("--probe needs --probe-from, the pod to try from"))
	}
	return &watcher.ProbeOptions{Target: p.target.Target, From: p.from}, nil
}

// proposed is what the screen proposes to try: what the flags say.
func proposed(o *watcher.ProbeOptions) string {
	if o == nil {
		return ""
	}
	return o.Target.String() + " " + o.From
}

// tryFrom lets the screen try a connection: the words are those of --probe and --probe-from.
func tryFrom(try func(watcher.ProbeOptions) error) func(string) error {
	return func(text string) error {
		words := strings.Fields(text)
		if len(words) != 2 {
			return errors.New("want a target and a pod, such as tcp://192.0.2.80:443 10.244.1.5")
		}
		target, err := probe.Parse(words[0])
		if err != nil {
			return err
		}
		return try(watcher.ProbeOptions{Target: target, From: words[1]})
	}
}

// targetFlag is a value of --probe.
type targetFlag struct {
	probe.Target
	given bool
}

func (t *targetFlag) String() string {
	if !t.given {
		return ""
	}
	return t.Target.String()
}
func (t *targetFlag) Type() string { return "url" }
func (t *targetFlag) Set(s string) (err error) {
	t.Target, err = probe.Parse(s)
	t.given = err == nil
	return err
}

// probeReport is the one connection that check tried.
type probeReport struct {
	Target      string   `json:"target"`
	From        string   `json:"from"`
	OK          bool     `json:"ok"`
	ConnectMS   *float64 `json:"connectMs"` // null where there was no answer
	Why         string   `json:"why"`       // why there was none
	unanswering time.Duration
}

func newProbeReport(p *incident.ProbeView) *probeReport {
	if p == nil {
		return nil
	}
	r := &probeReport{Target: p.Target, From: p.From, OK: p.Failing.IsZero(), Why: p.Why}
	if last := p.Recent[len(p.Recent)-1]; last.OK {
		took := float64(last.Took.Microseconds()) / 1000
		r.ConnectMS = &took
	} else {
		r.unanswering = last.Took
	}
	return r
}

// finding is made of a connection that failed: what else was found may say why.
func (r *probeReport) finding() diagnose.Finding {
	return diagnose.Finding{
		ID: "probe-failed", Severity: diagnose.Warning, Object: r.Target,
		Summary: fmt.Sprintf("a new connection from pod %s to %s failed: %s after %.1f s", r.From, r.Target, r.Why, r.unanswering.Seconds()),
		Detail:  []string{"tried once, from a new source port in the pod's network namespace"},
		Remedy:  diagnose.RemedyNone,
	}
}

// text says how it went, in one line.
func (r *probeReport) text() string {
	if r.ConnectMS == nil {
		return fmt.Sprintf("probe from %s to %s: %s", flannel.Printable(r.From), r.Target, flannel.Printable(r.Why))
	}
	return fmt.Sprintf("probe from %s to %s: connected in %.1f ms", flannel.Printable(r.From), r.Target, *r.ConnectMS)
}
