package cli

import (
	"fmt"
	"slices"
	"time"

	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

// longestSettle bounds --settle: a check that does not come back is taken for dead by whatever started it.
const longestSettle = time.Minute

// only is a value of --only: the part of the verdict that is asked for.
type only diagnose.Group

func (g *only) String() string { return string(*g) }
func (g *only) Type() string   { return "part" }
func (g *only) Set(s string) error {
	return oneOf((*string)(g), s, string(diagnose.GroupMasquerade), string(diagnose.GroupForward),
		string(diagnose.GroupLeftovers), string(diagnose.GroupReaders))
}

// settle is a value of --settle.
type settle time.Duration

func (d *settle) String() string { return time.Duration(*d).String() }
func (d *settle) Type() string   { return "duration" }
func (d *settle) Set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 || v > longestSettle {
		return fmt.Errorf("want a duration from 0s to %v, such as 5s", longestSettle)
	}
	*d = settle(v)
	return nil
}

// secondLook is when check looks again where a chain is empty while Flannel runs: it may be in the middle of a restart.
const secondLook = 2 * time.Second

// glance says how check looks.
type glance struct {
	flows  bool           // at every connection too
	settle time.Duration  // when something is found, look again after so long, and tell only what is still there
	of     diagnose.Group // whose findings count for that, "" for all
}

// pause tells how long to wait before a second look, 0 if none is due.
func (g glance) pause(v *incident.View) time.Duration {
	pause := time.Duration(0)
	if grave(v.Findings, g.of) {
		pause = g.settle
	}
	runs := v.Flannel.State == diagnose.FlannelLive || v.Flannel.State == diagnose.FlannelStarting
	if runs && slices.ContainsFunc(v.Findings, func(f diagnose.Finding) bool { return f.ID == "chain-empty" }) {
		pause = max(pause, secondLook)
	}
	return pause
}

// grave tells whether something is found that makes check fail.
func grave(findings []diagnose.Finding, g diagnose.Group) bool {
	return slices.ContainsFunc(findings, func(f diagnose.Finding) bool { return f.Severity != diagnose.Info && f.In(g) })
}

// lasting gives those findings that were there before too. What changed its kind meanwhile, such as a chain that was empty
// and is now absent, was there: it is the same object that is not as it should be.
func lasting(now, before []diagnose.Finding) []diagnose.Finding {
	var out []diagnose.Finding
	for _, f := range now {
		if slices.ContainsFunc(before, func(b diagnose.Finding) bool { return b.Object == f.Object || b.Chain == f.Chain && b.Chain.Name != "" }) {
			out = append(out, f)
		}
	}
	return out
}
