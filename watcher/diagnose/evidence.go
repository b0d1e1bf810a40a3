package diagnose

import (
	"fmt"
	"slices"
	"time"

	"flanwatch/flannel"
)

// evidence lists what was looked at to decide whether Flannel runs here.
func (j *judgement) evidence() []string {
	out := j.processEvidence()
	for _, b := range flannel.Backends {
		out = append(out, j.rulesEvidence(b))
	}
	if n := j.facts.Node.Networks; n.State == flannel.Known {
		out = append(out, fmt.Sprintf("networks %s from %s", pair(n.Value, j.facts.Node.Subnets.Value), flannel.Printable(n.Source)))
	} else if n.State != flannel.Unread {
		out = append(out, "pod networks: "+orWord(n.Why, "not known"))
	}
	return append(out, j.linkEvidence()...)
}

func (j *judgement) processEvidence() []string {
	r := j.facts.Procs
	switch r.State {
	case flannel.Unread:
		return []string{"processes: not looked at"}
	case flannel.Unreadable:
		return []string{"processes: " + orWord(r.Why, "unreadable")}
	}
	var out []string
	for _, p := range j.procs() {
		line := fmt.Sprintf("%s[%d] runs since %s", flannel.Printable(p.Comm), p.PID, clock(p.Started, j.facts.At))
		if p.Version != "" {
			line += ", version " + flannel.Printable(p.Version)
		}
		out = append(out, line)
	}
	if len(out) == 0 {
		out = append(out, "no flanneld or k3s runs in this network namespace")
	}
	if n := len(j.history.FlannelStarts); n > 1 {
		out = append(out, fmt.Sprintf("%d starts in the last five minutes", n))
	}
	if j.bereft() {
		out = append(out, fmt.Sprintf("Flannel stopped at %s", clock(j.history.Stopped, j.facts.At)))
	}
	return out
}

func (j *judgement) rulesEvidence(b flannel.Backend) string {
	r := j.facts.Rules[b]
	switch r.State {
	case flannel.Unread:
		return b.String() + ": not looked at"
	case flannel.Unreadable:
		return b.String() + ": " + orWord(r.Why, "unreadable")
	case flannel.Absent:
		return b.String() + ": " + orWord(r.Why, "not present")
	}
	chains, bare := 0, 0
	tables := 0
	for _, s := range j.sights {
		if s.backend != b {
			continue
		}
		chains += len(s.places())
		bare += len(s.bare)
		if s.table {
			tables++
		}
	}
	switch {
	case tables > 0:
		return fmt.Sprintf("%s: tables of Flannel: %d, chains in them: %d", b, tables, chains)
	case bare > 0 && chains == 0:
		return b.String() + ": rules of an old Flannel in the base chains"
	case chains > 0:
		return fmt.Sprintf("%s: chains of Flannel: %d", b, chains)
	}
	return b.String() + ": nothing of Flannel"
}

func (j *judgement) linkEvidence() []string {
	var out []string
	for _, l := range j.facts.Links.Value {
		if l.flannels() && len(out) < listed {
			state := "down"
			if l.Up {
				state = "up"
			}
			out = append(out, fmt.Sprintf("interface %s (%s) is %s", flannel.Printable(l.Name), flannel.Printable(l.Type), state))
		}
	}
	if len(out) == 0 && j.facts.Links.State == flannel.Known {
		out = append(out, "no interface of Flannel")
	}
	return out
}

// presence is the shortest word on whether Flannel runs here.
func (j *judgement) presence() string {
	procs := j.processEvidence()
	return procs[0]
}

// sources lists what each source says of networks and subnets, the one that counts first.
func (j *judgement) sources() []string {
	n := j.facts.Node
	var out []string
	if n.Networks.State == flannel.Known {
		out = append(out, fmt.Sprintf("%s: %s", flannel.Printable(n.Networks.Source), pair(n.Networks.Value, n.Subnets.Value)))
	}
	for i, o := range n.Others {
		if i == listed {
			break
		}
		out = append(out, fmt.Sprintf("%s: %s", flannel.Printable(o.Name), pair(o.Networks, o.Subnets)))
	}
	return out
}

// judgeConfig tells what is wrong with the node's files, and where they disagree.
func (j *judgement) judgeConfig() {
	for _, p := range slices.Concat(j.facts.Problems, j.facts.Node.Problems) {
		where := flannel.Printable(p.File)
		if p.Line > 0 {
			where += fmt.Sprintf(":%d", p.Line)
		}
		j.find(Finding{
			ID: "config-damaged", Severity: Warning, Object: where,
			Summary: fmt.Sprintf("%s: %s.", where, flannel.Printable(p.What)),
			Detail:  []string{"values of the file that are sound are used, the others come from other sources"},
		})
	}
	for _, p := range j.facts.Node.Ignored {
		j.find(Finding{
			ID: "config-key-ignored", Severity: Info, Object: fmt.Sprintf("%s:%d", flannel.Printable(p.File), p.Line),
			Summary: fmt.Sprintf("Flannel does not know the key %q in %s and ignores it.",
				flannel.Printable(p.What), flannel.Printable(p.File)),
			Detail: []string{"nftables mode is switched on by EnableNFTables alone"},
		})
	}
	if len(j.facts.Node.Others) > 0 {
		j.find(Finding{
			ID: "subnet-mismatch", Severity: Info, Object: "node",
			Summary: "Sources disagree about the pod networks or the subnet of this node; the first one counts.",
			Detail:  j.sources(),
		})
	}
	if j.flannel.State == FlannelCrashing {
		j.find(Finding{
			ID: "flannel-crash-looping", Severity: Warning, Object: "flannel",
			Summary: fmt.Sprintf("Flannel was started %d times within five minutes: it does not stay up, and does not heal.",
				len(j.history.FlannelStarts)),
			Detail: j.processEvidence(),
		})
	}
}

// judgeReaders tells of backends that could not be read.
func (j *judgement) judgeReaders() {
	for _, b := range j.unread() {
		r := j.facts.Rules[b]
		if r.State != flannel.Unreadable {
			continue
		}
		j.find(Finding{
			ID: "table-unreadable", Severity: Info, Object: b.String(),
			Summary: fmt.Sprintf("The rules of %s cannot be read: %s.", b, flannel.Printable(orWord(r.Why, "no reason is known"))),
			Detail:  []string{"what it holds is not known, which is not the same as nothing"},
		})
	}
}

// unread lists the backends of which nothing is known.
func (j *judgement) unread() []flannel.Backend {
	return slices.DeleteFunc(slices.Clone(flannel.Backends), func(b flannel.Backend) bool {
		_, known := j.facts.ruleset(b)
		return known
	})
}

// judgeUnread keeps the chains that were there before a backend could no longer be read.
func (j *judgement) judgeUnread() {
	for _, b := range j.unread() {
		if j.facts.Rules[b].State != flannel.Unreadable {
			continue
		}
		for id := range j.history.Since {
			if id.Backend == b {
				j.chains = append(j.chains, flannel.ChainDiff{ID: id, State: flannel.ChainUnreadable})
			}
		}
	}
}

// bothDialects tells whether iptables and native rules masquerade at once and nothing tells which of them flanneld keeps.
func (j *judgement) bothDialects() bool {
	_, told := j.facts.Node.NFTables.Get()
	return !told && j.runs() && !j.cleansAtStart() && j.flannel.Dialect == DialectIptables &&
		j.seen(func(s sight) bool { return s.backend == flannel.Nftables && s.masquerades() })
}

// judgeSplit tells of rules in more than one backend.
func (j *judgement) judgeSplit() {
	in := slices.Clone(j.flannel.Backends)
	if j.bothDialects() {
		in = append(in, flannel.Nftables)
	}
	if len(in) < 2 || !j.runs() {
		return
	}
	f := Finding{
		ID: "backend-split", Severity: Warning, Object: join(in),
		Summary: fmt.Sprintf("Flannel's rules lie in %s at once: a tool that looks at one sees half.", join(in)),
		Remedy:  RemedyNone,
		Refused: "nothing tells which of them this flanneld writes, so none can be called left over",
	}
	for _, s := range j.sights {
		if slices.Contains(in, s.backend) {
			for _, p := range s.places() {
				f.Detail = append(f.Detail, s.backend.String()+" "+rulesAndJumps(p))
			}
		}
	}
	for _, s := range j.facts.Around.Signs.Value {
		if s.Owner == "kubelet" && s.Chain != (flannel.ChainID{}) {
			f.Detail = append(f.Detail, fmt.Sprintf("the kubelet of this node uses %s (%s)", s.Chain.Backend, s.Chain.Name))
		}
	}
	j.find(f)
}

func orWord(why, word string) string {
	if why == "" {
		return word
	}
	return flannel.Printable(why)
}

// clock is a moment as a person says it at another one. Ages would be stale where a verdict stands for long.
func clock(t, now flannel.Time) string {
	if t.Wall.Format(time.DateOnly) == now.Wall.Format(time.DateOnly) {
		return t.Wall.Format(time.TimeOnly)
	}
	return t.Wall.Format(time.DateTime)
}
