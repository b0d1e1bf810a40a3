package metrics

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// kind is the type of a metric in the text format.
type kind string

const (
	gauge     kind = "gauge"
	counter   kind = "counter"
	histogram kind = "histogram"
)

// metric names a family of series.
type metric struct {
	name   string // without the prefix that all share
	kind   kind
	help   string
	labels []string
}

// label is one name with its value.
type label struct{ name, value string }

// page collects series and writes them in the text format 0.0.4 of Prometheus, families and series in order, so that the same
// state gives the same bytes. Timestamps are never written: node_exporter's textfile collector refuses a file that has any.
type page struct {
	families map[string]*metric
	series   map[string][]string // lines by family
}

func newPage() *page { return &page{map[string]*metric{}, map[string][]string{}} }

// put adds one series; values are those of the metric's labels, in its order.
func (p *page) put(m *metric, v float64, values ...string) { p.line(m, "", v, pairs(m, values)...) }

// pairs gives the labels of a series in the order of their names.
func pairs(m *metric, values []string) []label {
	out := make([]label, len(values))
	for i, v := range values {
		out[i] = label{m.labels[i], v}
	}
	slices.SortFunc(out, func(a, b label) int { return strings.Compare(a.name, b.name) })
	return out
}

func (p *page) yes(m *metric, yes bool, values ...string) {
	v := 0.0
	if yes {
		v = 1
	}
	p.put(m, v, values...)
}

// bucket is one bound of a histogram with the number of values up to it.
type bucket struct {
	bound float64
	below uint64
}

// spread adds a histogram.
func (p *page) spread(m *metric, buckets []bucket, sum float64, count uint64, values ...string) {
	labels := pairs(m, values)
	for _, b := range buckets {
		p.line(m, "_bucket", float64(b.below), append(slices.Clone(labels), label{"le", number(b.bound)})...)
	}
	p.line(m, "_bucket", float64(count), append(slices.Clone(labels), label{"le", "+Inf"})...)
	p.line(m, "_sum", sum, labels...)
	p.line(m, "_count", float64(count), labels...)
}

func (p *page) line(m *metric, suffix string, v float64, labels ...label) {
	var b strings.Builder
	b.WriteString(prefix + m.name + suffix)
	for i, l := range labels {
		b.WriteString([]string{",", "{"}[b2i(i == 0)])
		b.WriteString(l.name + `="` + escapeLabel.Replace(strings.ToValidUTF8(l.value, "\ufffd")) + `"`)
	}
	if len(labels) > 0 {
		b.WriteByte('}')
	}
	b.WriteString(" " + number(v))
	p.families[m.name] = m
	p.series[m.name] = append(p.series[m.name], b.String())
}

// prefix is what the name of every metric begins with.
const prefix = "flanwatch_"

var escapeLabel = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// write writes every family. The series of a histogram stay in the order in which they came, which is that of its bounds.
func (p *page) write(w io.Writer) error {
	names := make([]string, 0, len(p.families))
	for name := range p.families {
		names = append(names, name)
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		m, lines := p.families[name], p.series[name]
		if m.kind != histogram {
			slices.Sort(lines)
		}
		fmt.Fprintf(&b, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, m.help, prefix, name, m.kind)
		for _, l := range lines {
			b.WriteString(l + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
