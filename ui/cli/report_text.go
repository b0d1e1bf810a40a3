package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// writeText prints the report for people: the same facts as the JSON, the findings first, because they are what was asked
// for.
func (r report) writeText(w io.Writer) error {
	var b strings.Builder
	r.textHead(&b)
	if r.Probe != nil {
		b.WriteString(r.Probe.text() + "\n")
	}
	r.textFindings(&b)
	for i := range r.Chains {
		r.Chains[i].text(&b)
	}
	r.textPaths(&b)
	r.textLeftovers(&b)
	r.Conntrack.text(&b)
	for _, u := range r.Unreadable {
		fmt.Fprintf(&b, "not readable: %s: %s\n", flannel.Printable(u.What), flannel.Printable(u.Why))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r report) textHead(b *strings.Builder) {
	fmt.Fprintf(b, "Flannel is %s", r.Flannel.State)
	if r.Flannel.Dialect != "none" && r.Flannel.Dialect != "" {
		fmt.Fprintf(b, ", rules in %s", joinNames(r.Flannel.Backends))
	}
	if r.Flannel.Generation != "" {
		fmt.Fprintf(b, ", shape of %s", r.Flannel.Generation)
	}
	b.WriteByte('\n')
	for _, e := range r.Flannel.Evidence {
		fmt.Fprintf(b, "  %s\n", flannel.Printable(e))
	}
	if len(r.Node.Networks) == 0 {
		b.WriteString("networks unknown\n")
		r.textSettings(b)
		return
	}
	fmt.Fprintf(b, "networks %s, node %s", joinNames(r.Node.Networks), joinNames(r.Node.Subnets))
	if r.Node.Source != "" {
		fmt.Fprintf(b, ", from %s", flannel.Printable(r.Node.Source))
	}
	if r.Node.AgeSeconds != nil {
		fmt.Fprintf(b, ", %s old", (time.Duration(*r.Node.AgeSeconds) * time.Second).String())
	}
	b.WriteByte('\n')
	r.textSettings(b)
}

var severityMarks = map[diagnose.Severity]string{diagnose.Critical: "✗ critical", diagnose.Warning: "▲ warning", diagnose.Info: "· info"}

func (r report) textFindings(b *strings.Builder) {
	if len(r.Findings) == 0 {
		b.WriteString("● no findings\n")
		return
	}
	for _, f := range r.Findings {
		fmt.Fprintf(b, "%s  %s: %s\n", severityMarks[f.Severity], f.ID, flannel.Printable(f.Summary))
		for _, d := range f.Detail {
			fmt.Fprintf(b, "    %s\n", flannel.Printable(d))
		}
		if f.Refused != "" {
			fmt.Fprintf(b, "    no remedy: %s\n", flannel.Printable(f.Refused))
		}
	}
}

func (c chainReport) text(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s  %s", c.ChainID, c.State)
	switch {
	case c.Hook.Position > 0:
		fmt.Fprintf(b, ", called from %s %d/%d", c.Hook.Chain, c.Hook.Position, c.Hook.Of)
	case c.Hook.Chain != "":
		fmt.Fprintf(b, ", not called from %s", c.Hook.Chain)
	}
	b.WriteByte('\n')
	for _, rule := range c.Rules {
		fmt.Fprintf(b, "  %10s %12s  %-9s  %s\n", count(rule.Packets), count(rule.Bytes), rule.Status, flannel.Printable(rule.Text))
	}
}

// count prints a counter; unknown and zero look different.
func count(n *uint64) string {
	if n == nil {
		return "–"
	}
	return fmt.Sprint(*n)
}

func joinNames[T fmt.Stringer](list []T) string {
	words := make([]string, len(list))
	for i, x := range list {
		words[i] = x.String()
	}
	return strings.Join(words, ", ")
}
