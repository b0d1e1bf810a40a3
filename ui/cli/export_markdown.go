package cli

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/journal"
)

func printable(s string) string { return flannel.Printable(s) }

// markdown writes the report: each incident with what, when, how long, who and what it did to pods in its first five lines,
// then the node, then the table of repeated incidents.
func markdown(rec *journal.Recording, list []incident.Incident) string {
	var b strings.Builder
	if len(list) == 0 {
		fmt.Fprintf(&b, "No incident was recorded from %s to %s.\n\n", clock(rec.First.Wall), clock(rec.Last.Wall))
	}
	c := rec.Cursor()
	for i := range list {
		reportIncident(&b, rec, c, &list[i])
	}
	reportNode(&b, rec)
	reportTotals(&b, list)
	reportGaps(&b, rec)
	return b.String()
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") }

func reportIncident(b *strings.Builder, rec *journal.Recording, c *journal.Cursor, i *incident.Incident) {
	var objects []string
	for _, id := range i.Objects() {
		objects = append(objects, "`"+printable(id.String())+"`")
	}
	fmt.Fprintf(b, "# Incident %d: %s of %s\n", i.Number, i.Kind, strings.Join(objects, ", "))
	when, long := clock(i.Start.Wall)+" to "+clock(i.End.Wall), seconds(i.Duration(i.End))
	switch {
	case i.Open:
		when, long = clock(i.Start.Wall)+", not over at the end of the recording", "at least "+seconds(i.Duration(rec.Last))
	case !i.Complete:
		long += ", and not restored in full"
	}
	if i.Before {
		when, long = "before "+when, "more than "+long
	}
	fmt.Fprintf(b, "* When: %s\n* How long: %s\n", when, long)
	fmt.Fprintf(b, "* Who: %s; restored by %s\n", whoText(i.By), whoText(i.RecoveredBy))
	fmt.Fprintf(b, "* Effect on pods: %s\n\n", printable(join(i.Effects, "none known")))
	if len(i.SameCause) > 0 {
		fmt.Fprintf(b, "Same cause before: incidents %s.\n\n", strings.Trim(fmt.Sprint(i.SameCause), "[]"))
	}
	reportEvents(b, rec, i)
	for _, id := range i.Objects() {
		reportRules(b, c, i, id)
	}
}

// whoText names a program, its descent and its command line, and how far that can be trusted.
func whoText(w *incident.Who) string {
	name := program(w)
	if name == "" {
		return "unknown"
	}
	if o := w.Origin; o != nil && len(o.Cmdline.Value) > 0 {
		line := printable(strings.Join(redact(o.Cmdline.Value), " "))
		name += fmt.Sprintf(", command `%s` (%s)", strings.ReplaceAll(line, "`", "'"), o.Cmdline.Certainty)
	}
	return name
}

func reportEvents(b *strings.Builder, rec *journal.Recording, i *incident.Incident) {
	b.WriteString("## Timeline\n\n| Time (UTC) | From start | What | Who |\n| --- | ---: | --- | --- |\n")
	for _, e := range eventsOf(rec.Final, i, rec) {
		what := printable(e.Text)
		if e.Chain.Name != "" {
			what = e.Chain.Backend.String() + " " + what
		}
		fmt.Fprintf(b, "| %s | %+.3f s | %s | %s |\n", e.Time.Wall.UTC().Format("15:04:05.000000"), e.Time.Sub(i.Start).Seconds(),
			cell(what), cell(program(e.Who)))
	}
	b.WriteString("\n")
}

// cell keeps text from ending a cell of a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// reportRules shows a chain before, during and after an incident.
func reportRules(b *strings.Builder, c *journal.Cursor, i *incident.Incident, id flannel.ChainID) {
	fmt.Fprintf(b, "## `%s` before, during, after\n\n", printable(id.String()))
	c.GoTo(i.Start.Wall.Add(-1))
	rulesAt(b, "before", c, id)
	c.GoTo(i.Start.Wall)
	rulesAt(b, "during, at its start", c, id)
	if !i.Open {
		c.GoTo(i.End.Wall)
		rulesAt(b, "after", c, id)
	}
}

func rulesAt(b *strings.Builder, when string, c *journal.Cursor, id flannel.ChainID) {
	fmt.Fprintf(b, "%s:\n\n```\n", when)
	defer b.WriteString("```\n\n")
	for _, v := range c.View(c.Time()).Chains {
		if v.ID != id {
			continue
		}
		fmt.Fprintf(b, "# %s, %d of %d rules\n", v.State, v.Found, v.Wanted)
		for _, r := range v.Rules {
			sign := " "
			if r.Status != flannel.RuleOK {
				sign = "# " + string(r.Status) + ":"
			}
			fmt.Fprintf(b, "%s %s\n", sign, printable(r.Rule.Text(id.Backend, id.Family)))
		}
		return
	}
	b.WriteString("# not known\n")
}

func reportNode(b *strings.Builder, rec *journal.Recording) {
	h, v := rec.Header, rec.Final
	fmt.Fprintf(b, "## Node\n\n")
	row := func(name, value string) { fmt.Fprintf(b, "* %s: %s\n", name, printable(cmp.Or(value, "not recorded"))) }
	row("Node", cmp.Or(h.Node, v.Node.Name))
	row("Flannel", join(nonEmpty(v.Flannel.Version, v.Flannel.Dialect, "rules as written since "+v.Flannel.Generation), ""))
	row("Pod networks", fmt.Sprint(v.Node.Networks.Value))
	row("Pods of this node", fmt.Sprint(v.Node.Subnets.Value))
	row("iptables on the node", cmp.Or(h.Iptables, installedIptables(h)))
	row("iptables where flanneld runs", v.Flannel.Iptables)
	row("Kernel", h.Kernel)
	row("System", join(nonEmpty(h.OS, v.Node.Distribution.Value), ""))
	row("flanwatch", h.Version)
	row("Recorded", clock(rec.First.Wall)+" to "+clock(rec.Last.Wall))
	b.WriteString("\n")
}

func nonEmpty(list ...string) []string {
	var out []string
	for _, s := range list {
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}

func reportTotals(b *strings.Builder, list []incident.Incident) {
	totals := incident.Totals(list)
	if len(list) < 2 || len(totals) == 0 {
		return
	}
	b.WriteString("## Repeated incidents\n\n| Kind | Count | Shortest | Median | Longest |\n| --- | ---: | ---: | ---: | ---: |\n")
	for _, t := range totals {
		fmt.Fprintf(b, "| %s | %d | %s | %s | %s |\n", t.Kind, t.Count, seconds(t.Min), seconds(t.Median), seconds(t.Max))
	}
	b.WriteString("\n")
}

// reportGaps says what the recording does not hold.
func reportGaps(b *strings.Builder, rec *journal.Recording) {
	for _, note := range rec.Notes() {
		fmt.Fprintf(b, "Note on the recording: %s.\n", printable(note))
	}
}
