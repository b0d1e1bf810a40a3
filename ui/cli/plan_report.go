package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/remediate"
)

// planSchema and historySchema name the forms of the JSON of remedies; a change that breaks readers changes the number.
const (
	planSchema    = "flanwatch.plan/v1"
	historySchema = "flanwatch.history/v1"
)

// planReport is what --dry-run prints: the same value as text and as JSON.
type planReport struct {
	Schema string            `json:"schema"`
	ID     string            `json:"id"`
	Title  string            `json:"title"`
	Why    []string          `json:"why"`
	Steps  []planStep        `json:"steps"`
	Guards []remediate.Guard `json:"guards"`
	Backup string            `json:"backup"`
	Undo   string            `json:"undo"`

	dialog remediate.Dialog
}

type planStep struct {
	Mark string `json:"mark"`
	Text string `json:"text"`
}

// newPlanReport turns a plan, or its refusals, into a report.
func newPlanReport(p remediate.Plan, refused []remediate.Refusal, state string, at time.Time) planReport {
	d := p.Show(state, at)
	r := planReport{Schema: planSchema, ID: p.ID, Title: d.Title, Backup: d.Backup, Undo: d.Undo, dialog: d}
	r.Why = append([]string{}, slices.Concat(d.Effects, d.Why, d.Notes)...)
	r.Guards = append([]remediate.Guard{}, slices.Concat(p.Guards, refused)...)
	r.Steps = []planStep{}
	if len(refused) > 0 {
		r.Title = "Refused"
		return r
	}
	for _, l := range d.Diff {
		r.Steps = append(r.Steps, planStep{strings.TrimSpace(string(rune(l.Mark))), l.Text})
	}
	if !p.Empty() {
		for _, s := range d.Sends {
			r.Steps = append(r.Steps, planStep{"send", s})
		}
	}
	return r
}

// write prints the report in the form that was asked for.
func (r planReport) write(out io.Writer, form output) error {
	if form == "json" {
		return writeJSON(out, r)
	}
	_, err := io.WriteString(out, r.text())
	return err
}

func (r planReport) text() string {
	var b strings.Builder
	line := func(label, text string) { fmt.Fprintf(&b, "%-8s %s\n", label, flannel.Printable(text)) }
	fmt.Fprintln(&b, r.Title)
	for _, e := range r.dialog.Effects {
		fmt.Fprintln(&b, e)
	}
	if len(r.dialog.Diff) > 0 {
		fmt.Fprintln(&b)
	}
	for _, l := range r.dialog.Diff {
		fmt.Fprintf(&b, "%c %s\n", l.Mark, l.Text)
	}
	fmt.Fprintln(&b)
	if r.ID != "" {
		for _, s := range r.dialog.Sends {
			line("sends", s)
		}
	}
	for _, g := range r.Guards {
		if g.OK {
			line("checked", g.Why)
			continue
		}
		line("refused", g.Why)
		line("", "what would change it: "+g.Change)
		if g.Judge {
			line("", "to judge it yourself: --override "+g.Name)
		}
	}
	for _, e := range r.dialog.Why {
		line("evidence", e)
	}
	for _, n := range r.dialog.Notes {
		line("note", n)
	}
	if r.ID != "" {
		line("backup", cmp.Or(r.Backup, "none: no rule is changed"))
		line("undo", cmp.Or(r.Undo, "none: what is deleted cannot be brought back"))
		line("plan", r.ID)
	}
	return b.String()
}

// receiptReport is one line of history.
type receiptReport struct {
	ID     string           `json:"id"`
	Plan   string           `json:"plan"`
	Kind   remediate.Kind   `json:"kind"`
	Title  string           `json:"title"`
	Time   time.Time        `json:"time"`
	Result remediate.Result `json:"result"`
	Why    string           `json:"why"`
	Backup string           `json:"backup"`
	Undoes string           `json:"undoes"`
	By     string           `json:"by"`
	Judged []string         `json:"judged"`
	Notes  []string         `json:"notes"`
	Gone   []goneReport     `json:"connections,omitempty"`
}

// goneReport is a connection that a plan deleted, or meant to.
type goneReport struct {
	Kind conntrack.Kind `json:"kind"`
	Text string         `json:"text"` // both its ends, and whom the other end answers
	Fate remediate.Fate `json:"fate"`
	Why  string         `json:"why"`
}

func newGoneReports(list []remediate.Gone) []goneReport {
	var out []goneReport
	for i := range list {
		out = append(out, goneReport{list[i].Kind, flannel.Printable(list[i].Flow.String()), list[i].Fate, list[i].Why})
	}
	return out
}

type historyReport struct {
	Schema   string          `json:"schema"`
	Receipts []receiptReport `json:"receipts"`
}

func newHistoryReport(receipts []remediate.Receipt) historyReport {
	h := historyReport{Schema: historySchema, Receipts: []receiptReport{}}
	for _, r := range receipts {
		h.Receipts = append(h.Receipts, receiptReport{
			r.ID, r.Plan, r.Kind, r.Title, r.Time, r.Result, r.Why, r.Backup, r.Undoes, r.By.User,
			append([]string{}, r.Judged...), append([]string{}, r.Notes...), newGoneReports(r.Gone),
		})
	}
	return h
}

func (h historyReport) write(out io.Writer, form output) error {
	if form == "json" {
		return writeJSON(out, h)
	}
	for _, r := range h.Receipts {
		why := ""
		if r.Why != "" {
			why = " (" + flannel.Printable(r.Why) + ")"
		}
		if _, err := fmt.Fprintf(out, "%s  %-10s  %s%s\n", flannel.Printable(r.ID), r.Result, flannel.Printable(r.Title), why); err != nil {
			return err
		}
		for _, g := range r.Gone {
			if _, err := fmt.Fprintf(out, "    %-8s %s %s\n", g.Fate, g.Kind, g.Text); err != nil {
				return err
			}
		}
	}
	if len(h.Receipts) == 0 {
		_, err := fmt.Fprintln(out, "no plan was carried out here")
		return err
	}
	return nil
}

func writeJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
