package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"flanwatch/assets"
	"flanwatch/flannel"
)

// fleetSchema names the form of fleet's JSON; a change that breaks readers changes the number.
const fleetSchema = "flanwatch.fleet/v1"

func newFleet(o *options, std Streams) *cobra.Command {
	var schema bool
	maxAge := 15 * time.Minute
	cmd := &cobra.Command{
		Use:   "fleet [FILE|-]...",
		Short: "Many nodes in one table, from what the cluster has already",
		Long: `fleet puts what was found on many nodes into one table. It reads, from files or standard input, any number of

  outputs of "flanwatch check -o json"
  nodes as "kubectl get nodes -o json" prints them, with the conditions that node-problem-detector set

A node of which nothing is known, or nothing new, is unknown, not healthy.

Exit code: 0 all healthy, 1 a node with a finding of severity warning or critical, 2 usage, 3 a node that is unknown.`,
		Example: "  flanwatch fleet node1.json node2.json\n  kubectl get nodes -o json | flanwatch fleet -",
		RunE: func(_ *cobra.Command, args []string) error {
			if schema {
				_, err := std.Out.Write(assets.FleetSchema)
				return err
			}
			if len(args) == 0 {
				return exit(ExitUsage, errors.New("fleet: name files, or - for standard input"))
			}
			return fleet(o, maxAge, args, std)
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the JSON output and exit")
	cmd.Flags().DurationVar(&maxAge, "max-age", maxAge, "what is older than this is unknown")
	return cmd
}

// fleet gathers the nodes and prints them.
func fleet(o *options, maxAge time.Duration, files []string, std Streams) error {
	g := gathering{now: time.Now(), maxAge: maxAge}
	for _, name := range files {
		g.file(name, std.In)
	}
	r := newFleetReport(g.now, g.rows)
	var err error
	if o.output == "json" {
		enc := json.NewEncoder(std.Out)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		err = enc.Encode(r)
	} else {
		err = r.writeText(std.Out)
	}
	if err != nil {
		return exit(ExitUnreadable, fmt.Errorf("write fleet: %w", err))
	}
	if code := r.code(); code != ExitOK {
		return exit(code, nil)
	}
	return nil
}

// nodeState is the sum of what is known of a node.
type nodeState string

// The states, from the worst. The words are part of the contract.
const (
	nodeBroken  nodeState = "broken" // a finding of severity critical
	nodeWarning nodeState = "warning"
	nodeUnknown nodeState = "unknown"
	nodeOK      nodeState = "ok"
)

var nodeRank = map[nodeState]int{nodeBroken: 0, nodeWarning: 1, nodeUnknown: 2, nodeOK: 3}

// fleetRow is one node.
type fleetRow struct {
	Node      string     `json:"node"`
	State     nodeState  `json:"state"`
	Findings  []string   `json:"findings"`  // ids that make the state, worst first
	Leftovers []string   `json:"leftovers"` // ids of what was left, whatever their severity
	Incidents *int       `json:"incidents"` // gaps that were recorded; null where the source does not tell
	Time      *time.Time `json:"time"`      // of what is told; null where unknown
	Source    string     `json:"source"`
	Why       string     `json:"why"` // why it is unknown
}

// fleetReport is what fleet prints: the same value as text and as JSON.
type fleetReport struct {
	Schema string            `json:"schema"`
	Time   time.Time         `json:"time"`
	Nodes  []fleetRow        `json:"nodes"`
	Counts map[nodeState]int `json:"counts"`
}

// newFleetReport puts the worst nodes first. A node that several sources tell of keeps the worst word on it.
func newFleetReport(now time.Time, rows []fleetRow) fleetReport {
	r := fleetReport{
		Schema: fleetSchema, Time: now.UTC(), Nodes: []fleetRow{},
		Counts: map[nodeState]int{nodeBroken: 0, nodeWarning: 0, nodeUnknown: 0, nodeOK: 0},
	}
	at := map[string]int{}
	for _, row := range rows {
		if i, seen := at[row.Node]; seen {
			r.Nodes[i] = r.Nodes[i].with(row)
			continue
		}
		at[row.Node] = len(r.Nodes)
		r.Nodes = append(r.Nodes, row)
	}
	slices.SortStableFunc(r.Nodes, func(a, b fleetRow) int {
		return cmp.Or(cmp.Compare(nodeRank[a.State], nodeRank[b.State]), strings.Compare(a.Node, b.Node))
	})
	for _, row := range r.Nodes {
		r.Counts[row.State]++
	}
	return r
}

// with joins what two sources say of one node.
func (r fleetRow) with(s fleetRow) fleetRow {
	if nodeRank[s.State] < nodeRank[r.State] {
		r, s = s, r
	}
	for _, id := range s.Findings {
		if !slices.Contains(r.Findings, id) {
			r.Findings = append(slices.Clip(r.Findings), id)
		}
	}
	for _, id := range s.Leftovers {
		if !slices.Contains(r.Leftovers, id) {
			r.Leftovers = append(slices.Clip(r.Leftovers), id)
		}
	}
	if r.Incidents == nil {
		r.Incidents = s.Incidents
	}
	if r.Source != s.Source {
		r.Source += ", " + s.Source
	}
	return r
}

func (r fleetReport) code() int {
	switch {
	case r.Counts[nodeBroken]+r.Counts[nodeWarning] > 0:
		return ExitFinding
	case r.Counts[nodeUnknown] > 0 || len(r.Nodes) == 0:
		return ExitUnreadable
	}
	return ExitOK
}

func (r fleetReport) writeText(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tSTATE\tFINDINGS\tLEFTOVERS\tINCIDENTS\tAGE\tSOURCE")
	for _, n := range r.Nodes {
		findings := strings.Join(n.Findings, ",")
		if n.State == nodeUnknown {
			findings = strings.Trim(findings+"; "+n.Why, "; ")
		}
		incidents, age := "–", "–"
		if n.Incidents != nil {
			incidents = fmt.Sprint(*n.Incidents)
		}
		if n.Time != nil {
			age = r.Time.Sub(*n.Time).Round(time.Second).String()
		}
		fields := []string{n.Node, string(n.State), orDash(findings), orDash(strings.Join(n.Leftovers, ",")), incidents, age, n.Source}
		for i := range fields {
			fields[i] = flannel.Printable(fields[i])
		}
		fmt.Fprintln(table, strings.Join(fields, "\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d nodes: %d broken, %d warning, %d unknown, %d ok\n",
		len(r.Nodes), r.Counts[nodeBroken], r.Counts[nodeWarning], r.Counts[nodeUnknown], r.Counts[nodeOK])
	return err
}

func orDash(s string) string { return cmp.Or(s, "–") }
