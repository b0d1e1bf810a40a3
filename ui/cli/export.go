package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"flanwatch/watcher/incident"
	"flanwatch/watcher/journal"
)

func newExport(o *options, std Streams) *cobra.Command {
	var e export
	cmd := &cobra.Command{
		Use:   "export [FILE]",
		Short: "Report on recorded incidents, fit for a bug report",
		Long: `export writes a report in Markdown, or JSON with -o json, on the incidents in a journal: what, when, how
long, who, what it did to pods, with the rules before, during and after. FILE is a file or folder that
"record" or "watch" wrote; without it, the journal in the state folder.

Whatever looks like a secret in a command line is left out, always.`,
		Example: "  flanwatch export --list\n  flanwatch export --incident 3 --mask > report.md",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			rec, err := loadRecording(o.recordingPath(args), std)
			if err != nil {
				return err
			}
			if e.folder != "" {
				return e.files(rec)
			}
			text, err := e.text(rec, o.output == "json")
			if err != nil {
				return err
			}
			if _, err := fmt.Fprint(std.Out, text); err != nil {
				return exit(ExitUnreadable, fmt.Errorf("write: %w", err))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&e.list, "list", false, "list the incidents, one a line")
	cmd.Flags().IntVar(&e.number, "incident", 0, "report on the incident with this `number` alone")
	cmd.Flags().StringVar(&e.folder, "dir", os.Getenv("TS_OUTPUT_DIR"), "write flanwatch.md and flanwatch.json into this `folder`; by default $TS_OUTPUT_DIR")
	cmd.Flags().BoolVar(&e.mask, "mask", false, "put placeholders for addresses and host names, the same for the same one")
	return cmd
}

// export is what to write.
type export struct {
	list   bool
	number int
	mask   bool
	folder string
}

// files writes both forms of the report.
func (e export) files(rec *journal.Recording) error {
	for name, asJSON := range map[string]bool{"flanwatch.md": false, "flanwatch.json": true} {
		text, err := e.text(rec, asJSON)
		if err == nil {
			err = os.WriteFile(filepath.Join(e.folder, name), []byte(text), 0o600)
		}
		if err != nil {
			return exit(ExitUnreadable, fmt.Errorf("write report: %w", err))
		}
	}
	return nil
}

func (e export) text(rec *journal.Recording, asJSON bool) (string, error) {
	list, err := e.chosen(rec.Final.Incidents)
	if err != nil {
		return "", err
	}
	var text string
	switch {
	case asJSON:
		b, err := json.MarshalIndent(newExported(rec, list), "", "  ")
		if err != nil {
			return "", exit(ExitUnreadable, err)
		}
		text = string(b) + "\n"
	case e.list:
		for i := range list {
			text += incidentLine(&list[i]) + "\n"
		}
	default:
		text = markdown(rec, list)
	}
	if e.mask {
		text = newMask(rec.Header.Node, rec.Final.Node.Name).apply(text)
	}
	return text, nil
}

func (e export) chosen(all []incident.Incident) ([]incident.Incident, error) {
	if e.number == 0 {
		return all, nil
	}
	i := slices.IndexFunc(all, func(i incident.Incident) bool { return i.Number == e.number })
	if i < 0 {
		return nil, exit(ExitUsage, fmt.Errorf("no incident has number %d; --list lists them", e.number))
	}
	return all[i : i+1], nil
}

// exported is the JSON form of an export.
type exported struct {
	Schema    string             `json:"schema"`
	Incidents []exportedIncident `json:"incidents"`
	Summary   []exportedTotal    `json:"summary"`
}

type exportedIncident struct {
	ID          int             `json:"id"`
	Kind        incident.Kind   `json:"kind"`
	Objects     []string        `json:"objects"`
	Start       time.Time       `json:"start"`
	End         *time.Time      `json:"end"`        // null while it lasts
	DurationMs  float64         `json:"durationMs"` // by the last observation while it lasts
	Complete    bool            `json:"complete"`
	By          *exportedWho    `json:"by"`
	RecoveredBy *exportedWho    `json:"recoveredBy"`
	Effects     []string        `json:"effects"`
	Events      []exportedEvent `json:"events"`
	SameCause   []int           `json:"sameCause"`
	Flows       *exportedFlows  `json:"flows"` // null where connections were not looked at
}

// exportedFlows is what an incident did to connections of pods to the outside.
type exportedFlows struct {
	Heard   *time.Time      `json:"heardSince"` // null where beginnings of connections were not heard; born is unknown then
	Lost    bool            `json:"lost"`       // some were missed: born is too low
	Born    *uint64         `json:"born"`
	Alive   *uint64         `json:"alive"`
	Replied *uint64         `json:"replied"`
	Others  uint64          `json:"others"`
	Looked  time.Time       `json:"looked"`
	Curve   []exportedPoint `json:"curve"`
}

type exportedPoint struct {
	Time time.Time `json:"time"`
	Bare uint64    `json:"bare"`
}

func newExportedFlows(e *incident.FlowsEffect) *exportedFlows {
	if e == nil {
		return nil
	}
	x := &exportedFlows{Lost: e.Lost, Others: e.Others, Looked: e.Looked.Wall.UTC(), Curve: []exportedPoint{}}
	if e.Since.IsZero() {
		return x
	}
	heard := e.Since.Wall.UTC()
	x.Heard, x.Born, x.Alive, x.Replied = &heard, &e.Born, &e.Alive, &e.Replied
	for _, p := range e.Curve {
		x.Curve = append(x.Curve, exportedPoint{p.At.Wall.UTC(), p.Bare})
	}
	return x
}

type exportedWho struct {
	PID       int                `json:"pid"`
	Comm      string             `json:"comm"`
	Cmdline   []string           `json:"cmdline"`
	Certainty incident.Certainty `json:"certainty"` // of the command line, "" where that is unknown
	Parents   []string           `json:"parents"`
}

type exportedEvent struct {
	Time     time.Time          `json:"time"`
	Kind     incident.EventKind `json:"kind"`
	Severity string             `json:"severity"`
	Chain    string             `json:"chain"`
	Text     string             `json:"text"`
	By       *exportedWho       `json:"by"`
}

type exportedTotal struct {
	Kind     incident.Kind `json:"kind"`
	Count    int           `json:"count"`
	MinMs    float64       `json:"minMs"`
	MedianMs float64       `json:"medianMs"`
	MaxMs    float64       `json:"maxMs"`
}

// exportSchema names the JSON form.
const exportSchema = "flanwatch.export/v1"

func newExported(rec *journal.Recording, list []incident.Incident) exported {
	out := exported{Schema: exportSchema, Incidents: []exportedIncident{}, Summary: []exportedTotal{}}
	for _, i := range list {
		x := exportedIncident{
			ID: i.Number, Kind: i.Kind, Start: i.Start.Wall.UTC(), DurationMs: ms(i.Duration(rec.Last)), Complete: i.Complete,
			By: newExportedWho(i.By), RecoveredBy: newExportedWho(i.RecoveredBy), Effects: append([]string{}, i.Effects...), SameCause: append([]int{}, i.SameCause...),
			Events: []exportedEvent{}, Objects: []string{}, Flows: newExportedFlows(i.Flows),
		}
		if !i.Open {
			end := i.End.Wall.UTC()
			x.End = &end
		}
		for _, id := range i.Objects() {
			x.Objects = append(x.Objects, printable(id.String()))
		}
		for _, e := range eventsOf(rec.Final, &i, rec) {
			y := exportedEvent{e.Time.Wall.UTC(), e.Kind, string(e.Severity), "", printable(e.Text), newExportedWho(e.Who)}
			if e.Chain.Name != "" {
				y.Chain = printable(e.Chain.String())
			}
			x.Events = append(x.Events, y)
		}
		out.Incidents = append(out.Incidents, x)
	}
	for _, t := range incident.Totals(list) {
		out.Summary = append(out.Summary, exportedTotal{t.Kind, t.Count, ms(t.Min), ms(t.Median), ms(t.Max)})
	}
	return out
}

func newExportedWho(w *incident.Who) *exportedWho {
	if w == nil {
		return nil
	}
	x := &exportedWho{PID: w.PID, Comm: printable(w.Comm), Cmdline: []string{}, Parents: []string{}}
	if w.Origin != nil {
		x.Certainty = w.Origin.Cmdline.Certainty
		for _, word := range redact(w.Origin.Cmdline.Value) {
			x.Cmdline = append(x.Cmdline, printable(word))
		}
		for _, p := range w.Origin.Parents.Value {
			x.Parents = append(x.Parents, processName(p.Comm, p.PID))
		}
	}
	return x
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Events so far from an incident belong into its report.
const eventsAround = 5 * time.Second

// eventsOf lists the events during an incident and shortly before and after.
func eventsOf(v *incident.View, i *incident.Incident, rec *journal.Recording) []incident.Event {
	end := rec.Last
	if !i.Open {
		end = i.End
	}
	var out []incident.Event
	for _, e := range v.Events {
		if e.Time.Sub(i.Start) >= -eventsAround && e.Time.Sub(end) <= eventsAround {
			out = append(out, e)
		}
	}
	return out
}

func join(list []string, none string) string {
	if len(list) == 0 {
		return none
	}
	return strings.Join(list, ", ")
}
