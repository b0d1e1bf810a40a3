package cli

import (
	"net/netip"
	"slices"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

// checkSchema names the form of check's JSON; a change that breaks readers changes the number.
const checkSchema = "flanwatch.check/v1"

// report is what check prints: the same value as text and as JSON.
type report struct {
	Schema     string             `json:"schema"`
	Time       time.Time          `json:"time"`
	Node       nodeReport         `json:"node"`
	Flannel    diagnose.Flannel   `json:"flannel"`
	Chains     []chainReport      `json:"chains"`
	Paths      []pathReport       `json:"paths"`
	Conntrack  conntrackReport    `json:"conntrack"`
	Findings   []diagnose.Finding `json:"findings"`
	Leftovers  []diagnose.Remain  `json:"leftovers"`
	Settings   []settingReport    `json:"settings"`
	Unreadable []unreadable       `json:"unreadable"`
	Probe      *probeReport       `json:"probe,omitempty"` // absent unless one was asked for and could be tried
}

type nodeReport struct {
	Name       string           `json:"name"` // host name, "" if unknown
	Networks   []netip.Prefix   `json:"networks"`
	Subnets    []netip.Prefix   `json:"subnets"`
	IPMasq     *bool            `json:"ipMasq"` // null where unknown
	Source     string           `json:"source"`
	AgeSeconds *int64           `json:"ageSeconds"` // null where unknown
	Others     []flannel.Source `json:"others"`
}

type chainReport struct {
	flannel.ChainID
	State flannel.ChainState `json:"state"`
	Hook  flannel.Hook       `json:"hook"`
	Rules []ruleReport       `json:"rules"`
}

type ruleReport struct {
	Text    string             `json:"text"`
	Status  flannel.RuleStatus `json:"status"`
	Packets *uint64            `json:"packets"` // null where the rule has no counter, or is not there
	Bytes   *uint64            `json:"bytes"`
}

type unreadable struct {
	What string `json:"what"`
	Why  string `json:"why"`

	of diagnose.Group // the only part of the verdict that needs it, "" if all do
}

// newReport turns a picture of the state into a report.
func newReport(v *incident.View) report {
	r := report{
		Schema: checkSchema, Time: v.Now.Wall.UTC(), Node: newNodeReport(v), Flannel: v.Flannel,
		Conntrack: newConntrackReport(v.Table), Chains: []chainReport{}, Findings: v.Findings, Unreadable: []unreadable{},
		Leftovers: list(v.Leftovers), Settings: newSettings(v),
	}
	if r.Findings == nil {
		r.Findings = []diagnose.Finding{}
	}
	if r.Probe = newProbeReport(v.Probe); r.Probe != nil && !r.Probe.OK {
		r.Findings = append(slices.Clip(r.Findings), r.Probe.finding())
	}
	for _, c := range v.Chains {
		r.Chains = append(r.Chains, newChainReport(c))
	}
	r.Paths = newPathReports(v.Paths)
	if v.Paths.State == flannel.Unreadable {
		r.Unreadable = append(r.Unreadable, unreadable{What: "paths", Why: v.Paths.Why})
	}
	for _, b := range v.Backends {
		if b.State == flannel.Unreadable {
			r.Unreadable = append(r.Unreadable, unreadable{What: b.Backend.String(), Why: b.Why})
		}
	}
	r.Unreadable = append(r.Unreadable, unreadableTable(v.Table)...)
	for _, f := range v.Faults {
		r.Unreadable = append(r.Unreadable, unreadable{What: f.Reader, Why: f.Why})
	}
	return r
}

func newNodeReport(v *incident.View) nodeReport {
	n := nodeReport{
		Name:     v.Node.Name,
		Networks: list(v.Node.Networks.Value), Subnets: list(v.Node.Subnets.Value),
		Source: v.Node.Networks.Source, Others: []flannel.Source{},
	}
	for _, o := range v.Node.Others {
		o.Networks, o.Subnets = list(o.Networks), list(o.Subnets)
		n.Others = append(n.Others, o)
	}
	if masq, ok := v.Node.IPMasq.Get(); ok {
		n.IPMasq = &masq
	}
	if age, ok := ageOf(v); ok {
		n.AgeSeconds = &age
	}
	return n
}

// ageOf tells how old the networks are, in seconds: since their file was written or, where they were read off something that
// has no age of its own, such as rules, since they were read.
func ageOf(v *incident.View) (int64, bool) {
	switch {
	case !v.Node.Written.IsZero():
		return int64(v.Now.Wall.Sub(v.Node.Written).Seconds()), true
	case v.Node.Networks.State == flannel.Known:
		return int64(v.Now.Sub(v.Node.Networks.At).Seconds()), true
	}
	return 0, false
}

// list makes sure that an empty list is written as one, not as null.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

func newChainReport(c incident.ChainView) chainReport {
	r := chainReport{ChainID: c.ID, State: c.State, Hook: c.Hook, Rules: []ruleReport{}}
	for i := range c.Rules {
		rule := &c.Rules[i]
		line := ruleReport{Text: rule.Rule.Text(c.ID.Backend, c.ID.Family), Status: rule.Status}
		if rule.Counted && rule.Found > 0 {
			counter := rule.Counter
			line.Packets, line.Bytes = &counter.Packets, &counter.Bytes
		}
		r.Rules = append(r.Rules, line)
	}
	return r
}

// code is the exit code of the report: a finding outranks a missing reading, which outranks health.
func (r report) code() int {
	for _, f := range r.Findings {
		if f.Severity != diagnose.Info {
			return ExitFinding
		}
	}
	if len(r.Unreadable) > 0 {
		return ExitUnreadable
	}
	return ExitOK
}
