package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"flanwatch/assets"
	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// flowsSchema names the form of the JSON of flows; a change that breaks readers changes the number.
const flowsSchema = "flanwatch.flows/v1"

func newFlows(o *options, std Streams) *cobra.Command {
	var schema bool
	cmd := &cobra.Command{
		Use:   "flows",
		Short: "List connections of pods that are translated wrongly",
		Long: `flows looks once at every connection that the kernel tracks and lists those of pods that are not as they should be:

  bare        to the outside without source NAT: they began while the masquerade rule was missing
  translated  from pod to pod under another address than the pod's
  arriving    to a pod here, from the tunnel address of another node
  stale       UDP to a pod that is no more

Exit code: 0 none but arriving ones, 1 some, 2 usage, 3 connection tracking could not be read.`,
		Example: "  flanwatch flows\n  flanwatch flows -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if schema {
				_, err := std.Out.Write(assets.FlowsSchema)
				return err
			}
			return flows(cmd.Context(), o, std.Out)
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the JSON output and exit")
	return cmd
}

// flows takes one look and prints the connections.
func flows(ctx context.Context, o *options, out io.Writer) error {
	view, err := look(ctx, o, glance{flows: true})
	if err != nil {
		return err
	}
	r := newFlowsReport(view, o.births())
	if o.output == "json" {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		err = enc.Encode(r)
	} else {
		err = r.writeText(out)
	}
	if err != nil {
		return exit(ExitUnreadable, fmt.Errorf("write flows: %w", err))
	}
	if code := r.code(); code != ExitOK {
		return exit(code, nil)
	}
	return nil
}

// flowsReport is what flows prints: the same value as text and as JSON.
type flowsReport struct {
	Schema     string                  `json:"schema"`
	Time       time.Time               `json:"time"`
	Counts     map[conntrack.Kind]*int `json:"counts"` // null where not known; more than are listed where there are very many
	Flows      []flowReport            `json:"flows"`
	Sources    []talkerReport          `json:"sources"`
	Targets    []talkerReport          `json:"destinations"`
	States     map[string]int          `json:"states"`
	Inert      *bool                   `json:"inert"` // no rule uses connection tracking, so that entries do nothing; null where unknown
	Unreadable []unreadable            `json:"unreadable"`
}

type flowReport struct {
	Kind       conntrack.Kind `json:"kind"`
	Family     flannel.Family `json:"family"`
	Proto      string         `json:"proto"`
	Src        string         `json:"src"`
	Dst        string         `json:"dst"`
	SPort      uint16         `json:"sport"`
	DPort      uint16         `json:"dport"`
	ReplyDst   string         `json:"replyDst"`
	State      string         `json:"state"`
	Replied    bool           `json:"replied"`
	AgeSeconds *int64         `json:"ageSeconds"`  // null where the birth was not heard of
	Seen       *int64         `json:"seenSeconds"` // seen for at least so long; null where no recorder saw it before
	BornIn     *int           `json:"bornIn"`      // number of the recorded incident in which it began, null where unknown
	Bytes      *uint64        `json:"bytes"`       // null where the kernel does not account
	Pod        string         `json:"pod"`
	From       string         `json:"from,omitempty"` // of an arriving one: the node it comes from

	text string
}

type talkerReport struct {
	Address string `json:"address"`
	Pod     string `json:"pod"`
	Entries uint64 `json:"entries"`
}

// births is what a recorder on this node knows of the connections that are there: when they began, or since when they have
// been seen, and the incidents that it recorded. One look by itself knows of no beginning.
type births struct {
	samples   map[conntrack.Key]*conntrack.Sample
	incidents []incident.Incident
}

func (o *options) births() births {
	b := births{samples: map[conntrack.Key]*conntrack.Sample{}}
	if o.unkept {
		return b
	}
	v := o.remembered().View(flannel.Time{})
	b.incidents = v.Incidents
	list := v.Table.Flows.Value.Flows
	for i := range list {
		b.samples[list[i].Flow.Key()] = &list[i]
	}
	return b
}

// recall fills in what is known of a connection's past, and gives the incident in which it began, 0 if unknown.
func (b births) recall(s *conntrack.Sample) int {
	if was := b.samples[s.Flow.Key()]; was != nil {
		s.Born, s.Seen = was.Born, was.Seen
	}
	if s.Kind != conntrack.Bare {
		return 0
	}
	return incident.BornIn(b.incidents, s.Born)
}

func newFlowsReport(v *incident.View, past births) flowsReport {
	r := flowsReport{
		Schema: flowsSchema, Time: v.Now.Wall.UTC(), Counts: map[conntrack.Kind]*int{}, Flows: []flowReport{},
		Sources: []talkerReport{}, Targets: []talkerReport{}, States: map[string]int{}, Unreadable: unreadableTable(v.Table),
	}
	for _, f := range v.Faults {
		r.Unreadable = append(r.Unreadable, unreadable{What: f.Reader, Why: f.Why})
	}
	if r.Unreadable == nil {
		r.Unreadable = []unreadable{}
	}
	s, known := v.Table.Flows.Get()
	for _, k := range conntrack.Kinds {
		r.Counts[k] = nil
		if known && (k != conntrack.Bare || due(s.Masquerade)) {
			n := int(s.Kinds[k].Flows)
			r.Counts[k] = &n
		}
	}
	for i := range s.Flows {
		sample := s.Flows[i]
		in := past.recall(&sample)
		f := newFlowReport(&sample, v.Now)
		if in > 0 {
			f.BornIn = &in
		}
		r.Flows = append(r.Flows, f)
	}
	if h, ok := v.Table.Health.Get(); ok && (h.Use4 != conntrack.UseUnknown || h.Use6 != conntrack.UseUnknown) {
		inert := h.Inert()
		r.Inert = &inert
	}
	r.Sources, r.Targets = talkers(s.Sources), talkers(s.Destinations)
	if s.States != nil {
		r.States = s.States
	}
	return r
}

func newFlowReport(s *conntrack.Sample, now flannel.Time) flowReport {
	f := &s.Flow
	r := flowReport{
		Kind: s.Kind, Family: f.Family(), Proto: f.Protocol(), Src: f.Orig.Src.String(), Dst: f.Orig.Dst.String(),
		SPort: f.Orig.SPort, DPort: f.Orig.DPort, ReplyDst: f.Reply.Dst.String(), State: f.StateName(), Pod: s.Pod, From: s.From,
		Replied: f.Replied(), text: f.String(),
	}
	if f.Counted {
		r.Bytes = &f.Bytes
	}
	if !s.Seen.IsZero() && now.Sub(s.Seen) >= time.Second {
		seen := int64(now.Sub(s.Seen).Seconds())
		r.Seen = &seen
	}
	if !s.Born.IsZero() {
		age := int64(now.Sub(s.Born).Seconds())
		r.AgeSeconds = &age
	}
	return r
}

func talkers(list []conntrack.Talker) []talkerReport {
	out := []talkerReport{}
	for _, t := range list {
		out = append(out, talkerReport{t.Addr.String(), t.Pod, t.Entries})
	}
	return out
}

// past tells when a connection began, as far as that is known.
func (f flowReport) past() string {
	switch {
	case f.AgeSeconds != nil && f.BornIn != nil:
		return fmt.Sprintf(", began %d s ago in incident %d", *f.AgeSeconds, *f.BornIn)
	case f.AgeSeconds != nil:
		return fmt.Sprintf(", began %d s ago", *f.AgeSeconds)
	case f.Seen != nil:
		return fmt.Sprintf(", seen for at least %d s", *f.Seen)
	}
	return ""
}

// code is the exit code: a wrong connection outranks a missing reading.
func (r flowsReport) code() int {
	for _, f := range r.Flows {
		if f.Kind != conntrack.Arriving {
			return ExitFinding
		}
	}
	if len(r.Unreadable) > 0 {
		return ExitUnreadable
	}
	return ExitOK
}

// topLines is how many talkers the text shows.
const topLines = 5

func (r flowsReport) writeText(w io.Writer) error {
	var b strings.Builder
	for _, k := range conntrack.Kinds {
		n := "–"
		if r.Counts[k] != nil {
			n = fmt.Sprint(*r.Counts[k])
		}
		fmt.Fprintf(&b, "%-10s %s\n", k, n)
	}
	for _, f := range r.Flows {
		line := fmt.Sprintf("%-10s %s", f.Kind, f.text)
		if f.From != "" {
			line += ", from node " + f.From
		}
		if f.Pod != "" {
			line += ", pod " + f.Pod
		}
		fmt.Fprintln(&b, flannel.Printable(line+f.past()))
	}
	if r.Inert != nil && *r.Inert {
		b.WriteString("no rule here uses connection tracking: entries are inert until they expire\n")
	}
	top := func(title string, list []talkerReport) {
		if len(list) == 0 {
			return
		}
		fmt.Fprintf(&b, "%s\n", title)
		for _, t := range list[:min(topLines, len(list))] {
			fmt.Fprintf(&b, "  %8d  %s\n", t.Entries, flannel.Printable(strings.TrimSpace(t.Address+" "+t.Pod)))
		}
	}
	top("most entries by pod", r.Sources)
	top("most entries by destination", r.Targets)
	if len(r.States) > 0 {
		b.WriteString("all entries by state\n")
	}
	for _, state := range slices.Sorted(maps.Keys(r.States)) {
		fmt.Fprintf(&b, "  %8d  %s\n", r.States[state], state)
	}
	for _, u := range r.Unreadable {
		fmt.Fprintf(&b, "not readable: %s: %s\n", flannel.Printable(u.What), flannel.Printable(u.Why))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
