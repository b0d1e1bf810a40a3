package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	prometheusPatience = 30 * time.Second
	prometheusAnswer   = 256 << 20 // bytes: a hundred series of each of 10,000 nodes
)

// sample is one series at the moment of the question.
type sample struct {
	labels map[string]string
	value  float64
}

// node is the instance that a sample is of, without the port of whoever was scraped.
func (s sample) node() string {
	host := s.labels["instance"]
	if h, port, found := strings.Cut(host, ":"); found && !strings.Contains(port, ":") {
		host = h
	}
	return host
}

// prometheus adds the nodes that a Prometheus server knows of.
func (g *gathering) prometheus(ctx context.Context, server string) error {
	ctx, cancel := context.WithTimeout(ctx, prometheusPatience)
	defer cancel()
	rows := map[string]*fleetRow{}
	row := func(s sample) *fleetRow {
		r := rows[s.node()]
		if r == nil {
			r = &fleetRow{Node: s.node(), State: nodeOK, Findings: []string{}, Leftovers: []string{}, Source: "prometheus"}
			rows[s.node()] = r
		}
		return r
	}
	for _, q := range []struct {
		expr string
		take func(sample)
	}{
		// Which nodes there are is told by a look back, so that one that fell silent is unknown and not missing.
		{"max by (instance) (max_over_time(flanwatch_build_info[1d]))", func(s sample) { row(s) }},
		{"max by (instance) (timestamp(flanwatch_build_info))", func(s sample) { row(s).at(s.value) }},
		{`min by (instance) (node_textfile_mtime_seconds{file=~".*flanwatch.prom"})`, func(s sample) { row(s).at(s.value) }},
		{"max by (instance, check, finding) (flanwatch_finding_active) == 1", func(s sample) {
			group := s.labels["check"]
			row(s).find(s.labels["finding"], severityOf(group))
		}},
		{"sum by (instance) (flanwatch_gaps_total)", func(s sample) {
			n := int(s.value)
			row(s).Incidents = &n
		}},
		{"max by (instance, check) (flanwatch_check_unknown) == 1", func(s sample) {
			row(s).Why = "could not be evaluated: " + s.labels["check"]
		}},
	} {
		samples, err := query(ctx, server, q.expr)
		if err != nil {
			return fmt.Errorf("ask %s: %w", server, err)
		}
		for _, s := range samples {
			q.take(s)
		}
	}
	for _, r := range rows {
		switch {
		case r.Time == nil:
			r.State, r.Why = nodeUnknown, "no metrics now, though there were"
		case r.Why != "" && r.State == nodeOK:
			r.State = nodeUnknown
		}
		g.add(*r)
	}
	return nil
}

// at notes how old the metrics are, by the oldest of what tells it.
func (r *fleetRow) at(unix float64) {
	t := time.UnixMilli(int64(unix * 1000))
	if r.Time == nil || t.Before(*r.Time) {
		r.Time = &t
	}
}

// query asks one instant question.
func query(ctx context.Context, server, expr string) ([]sample, error) {
	where, err := url.JoinPath(server, "api/v1/query")
	if err != nil {
		return nil, err
	}
	body := strings.NewReader(url.Values{"query": {expr}}.Encode())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, where, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, prometheusAnswer)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("%s: no answer of Prometheus: %w", resp.Status, err)
	}
	if answer.Status != "success" || answer.Data.ResultType != "vector" {
		return nil, errors.New(strings.TrimSpace(resp.Status + " " + answer.Error))
	}
	var out []sample
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("value %q: %w", text, err)
		}
		out = append(out, sample{r.Metric, v})
	}
	return out, nil
}
