package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"flanwatch/watcher/diagnose"
)

// gathering collects the rows of a fleet.
type gathering struct {
	now    time.Time
	maxAge time.Duration
	rows   []fleetRow
}

// file reads every document of a file. What cannot be read is a row too: a node that is missing from the table would pass
// for one that does not exist.
func (g *gathering) file(name string, stdin io.Reader) {
	in, source := stdin, "standard input"
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			g.broken(name, err)
			return
		}
		defer f.Close()
		in, source = f, filepath.Base(name)
	}
	dec := json.NewDecoder(bufio.NewReaderSize(in, 64<<10))
	read := 0
	for {
		var d document
		err := dec.Decode(&d)
		switch {
		case errors.Is(err, io.EOF) && read > 0:
			return
		case errors.Is(err, io.EOF):
			g.broken(source, errors.New("empty"))
			return
		case err != nil:
			g.broken(source, fmt.Errorf("document %d: %w", read+1, err))
			return
		}
		read++
		g.document(d, source)
	}
}

// broken adds a row for a source that cannot be read, under its name without the ending.
func (g *gathering) broken(source string, err error) {
	g.rows = append(g.rows, unknownRow(nameOf(source), source, err.Error()))
}

func nameOf(source string) string { return strings.TrimSuffix(filepath.Base(source), ".json") }

func unknownRow(node, source, why string) fleetRow {
	return fleetRow{Node: node, State: nodeUnknown, Findings: []string{}, Leftovers: []string{}, Source: source, Why: why}
}

// document is any of the forms that fleet reads, with what it needs of them.
type document struct {
	// of check
	Schema   string
	Time     time.Time
	Node     struct{ Name string }
	Findings []struct {
		ID       string
		Severity diagnose.Severity
	}
	Unreadable []struct{ What, Why string }

	// of Kubernetes
	Kind     string
	Items    []kubeNode
	Metadata kubeMeta
	Status   kubeStatus
}

type kubeMeta struct{ Name string }

type kubeStatus struct {
	Conditions []struct {
		Type, Status, Message string
		LastHeartbeatTime     time.Time
	}
}

type kubeNode struct {
	Metadata kubeMeta
	Status   kubeStatus
}

func (g *gathering) document(d document, source string) {
	switch {
	case d.Schema == checkSchema:
		g.check(d, source)
	case d.Kind == "Node":
		g.kube(kubeNode{d.Metadata, d.Status})
	case (d.Kind == "List" || d.Kind == "NodeList") && d.Items != nil:
		for _, n := range d.Items {
			g.kube(n)
		}
	case d.Schema != "":
		g.broken(source, fmt.Errorf("schema %q: want %q", d.Schema, checkSchema))
	default:
		g.broken(source, errors.New("neither an output of check nor nodes of Kubernetes"))
	}
}

// check adds the node of one output of check.
func (g *gathering) check(d document, source string) {
	row := fleetRow{Node: d.Node.Name, State: nodeOK, Findings: []string{}, Leftovers: []string{}, Time: &d.Time, Source: "check"}
	if row.Node == "" {
		row.Node = nameOf(source)
	}
	for _, f := range d.Findings {
		row.find(f.ID, f.Severity)
	}
	if len(d.Unreadable) > 0 && row.State == nodeOK {
		row.State, row.Why = nodeUnknown, "cannot read "+d.Unreadable[0].What+": "+d.Unreadable[0].Why
	}
	g.add(row)
}

// find adds a finding to a row.
func (r *fleetRow) find(id string, s diagnose.Severity) {
	left := slices.Contains(diagnose.Finding{ID: id}.Groups(), diagnose.GroupLeftovers)
	if left && !slices.Contains(r.Leftovers, id) {
		r.Leftovers = append(r.Leftovers, id)
	}
	state := nodeOK
	switch s {
	case diagnose.Critical:
		state = nodeBroken
	case diagnose.Warning:
		state = nodeWarning
	}
	if state == nodeOK {
		return
	}
	if !slices.Contains(r.Findings, id) {
		r.Findings = append(r.Findings, id)
	}
	if nodeRank[state] < nodeRank[r.State] {
		r.State = state
	}
}

// add keeps a row, unless what it tells is too old to be believed.
func (g *gathering) add(r fleetRow) {
	if r.Time != nil && g.now.Sub(*r.Time) > g.maxAge {
		r.State, r.Why = nodeUnknown, fmt.Sprintf("nothing new for %s", g.now.Sub(*r.Time).Round(time.Second))
	}
	g.rows = append(g.rows, r)
}

// conditions are those that node-problem-detector sets with flanwatch, and what they stand for where their message does not
// name a finding.
var conditions = map[string]string{
	"FlannelMasqueradeProblem": "masquerade",
	"FlannelForwardProblem":    "forward",
	"FlannelLeftovers":         "leftovers",
	"FlannelStateUnreadable":   "readers",
}

// kube adds a node of Kubernetes by its conditions. One without any of ours is unknown.
func (g *gathering) kube(n kubeNode) {
	row := fleetRow{Node: n.Metadata.Name, State: nodeOK, Findings: []string{}, Leftovers: []string{}, Source: "node conditions"}
	seen := false
	var unknown string
	for _, c := range n.Status.Conditions {
		part, ours := conditions[c.Type]
		if !ours {
			continue
		}
		seen = true
		if t := c.LastHeartbeatTime; row.Time == nil || t.Before(*row.Time) {
			row.Time = &t
		}
		switch {
		case c.Status == "True" && part == "readers", c.Status != "True" && c.Status != "False":
			unknown = c.Type + ": " + c.Message
		case c.Status == "True":
			id, _, _ := strings.Cut(c.Message, " ")
			if !known(id) {
				id = part
			}
			row.find(id, severityOf(part))
		}
	}
	switch {
	case !seen:
		row.State, row.Why = nodeUnknown, "node-problem-detector has set no condition of flanwatch"
	case unknown != "" && row.State == nodeOK:
		row.State, row.Why = nodeUnknown, unknown
	}
	g.add(row)
}

// severityOf weighs a condition, which does not tell the severity of its finding.
func severityOf(part string) diagnose.Severity {
	if part == string(diagnose.GroupMasquerade) {
		return diagnose.Critical
	}
	return diagnose.Warning
}

func known(id string) bool {
	_, is := diagnose.Catalogue()[id]
	return is
}
