package ui

import (
	"fmt"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// findingKey tells findings apart.
type findingKey struct{ id, object string }

func findingKeys(list []diagnose.Finding) []findingKey {
	out := make([]findingKey, len(list))
	for i := range list {
		out[i] = findingKey{list[i].ID, list[i].Object}
	}
	return out
}

// selectedFinding is the finding that has the keys, nil if there is none.
func (s *screen) selectedFinding() *diagnose.Finding {
	if i := s.finding.index(findingKeys(s.view.Findings)); i >= 0 {
		return &s.view.Findings[i]
	}
	return nil
}

const (
	leastFinding = 4 // lines that a finding takes on its page, as a rule
	someEvidence = 3 // pieces of evidence in the list
)

// findingsPage lists the findings, worst first, each with why it holds and what helps:
//
//	╭─ Findings ──────────────────────────────────────────────────── 1 critical · 1 warning ─╮
//	│▸ ✗ v4 nat FLANNEL-POSTRTG is empty: new connections of pods to the outside leave with   │
//	│    pod addresses and get no answer.                                                     │
//	│    since      12:04:27, 4.2 s ago                                                       │
//	│    evidence   flanneld 2210 runs since 06:12                                            │
//	│    remedy     reapply                                                                   │
func (s *screen) findingsPage(body int) []string {
	list := s.view.Findings
	b := box{title: "Findings", info: severityCount(list), focused: true}
	rows := body - 2
	if len(list) == 0 {
		s.noFindings(&b)
	}
	at := s.finding.index(findingKeys(list))
	first, last := 0, 0
	for i := range list {
		begin := len(b.lines)
		b.lines = append(b.lines, s.findingLines(&list[i], i == at)...)
		if i == at {
			first, last = begin, len(b.lines)
		}
	}
	if len(b.lines) > rows {
		b.lines = b.lines[scrolled(len(b.lines), rows, first, last):]
	}
	return s.frame(b, rows, true, false)
}

// noFindings tells a node on which nothing is wrong from one that could not be looked at.
func (s *screen) noFindings(b *box) {
	if why := s.trouble(); why != "" {
		s.say(b, "", "No finding, but not everything could be read: "+why, roleBad)
		return
	}
	s.say(b, "", "Nothing is wrong as far as flanwatch can see.", roleText)
}

// scrolled gives the first of n lines to draw so that those from first to last are among the rows drawn, or their first.
func scrolled(n, rows, first, last int) int {
	if last <= rows {
		return 0
	}
	return min(max(last-rows, 0), first, n-rows)
}

func severityCount(list []diagnose.Finding) string {
	text := ""
	for _, sev := range []diagnose.Severity{diagnose.Critical, diagnose.Warning, diagnose.Info} {
		n := 0
		for i := range list {
			n += on(list[i].Severity == sev, 1)
		}
		if n == 0 {
			continue
		}
		if text != "" {
			text += " · "
		}
		text += fmt.Sprintf("%d %s", n, sev)
	}
	if text == "" {
		return "none"
	}
	return text
}

// findingLines is one finding in the list, and a line that sets it apart from the next.
func (s *screen) findingLines(f *diagnose.Finding, selected bool) []string {
	var b box
	sign, as := severitySign(f.Severity)
	for i, part := range wrap(clean(f.Summary), s.inner()-5) {
		l := s.innerLine(groundPlain)
		if selected {
			l.ground = groundSelect
		}
		switch {
		case i > 0:
			l.gap(4)
		case selected:
			l.put(roleFocus, "▸ ").put(as, sign).gap(1)
		default:
			l.gap(2).put(as, sign).gap(1)
		}
		b.lines = append(b.lines, l.put(roleStrong, part).full())
	}
	s.findingFacts(&b, f, someEvidence)
	return append(b.lines, s.innerLine(groundPlain).full())
}

// findingFacts says since when a finding holds, why, and what helps; with at most so much evidence.
func (s *screen) findingFacts(b *box, f *diagnose.Finding, most int) {
	if !f.Since.IsZero() {
		s.fact(b, "since", roleText, dayTime(f.Since.Wall, s.view.Now.Wall, s.loc)+", "+span(s.ago(f.Since))+" ago")
	}
	for i, d := range f.Detail {
		if i == most && len(f.Detail) > most+1 {
			s.fact(b, "", roleDim, fmt.Sprintf("%d more: enter opens it in full", len(f.Detail)-i))
			break
		}
		s.fact(b, first(i, "evidence"), roleText, d)
	}
	switch {
	case f.Refused != "":
		s.fact(b, "no remedy", roleWarn, f.Refused)
	case f.Remedy == "" || f.Remedy == diagnose.RemedyNone:
		s.fact(b, "remedy", roleDim, "none")
	default:
		s.fact(b, "remedy", roleGood, f.Remedy)
	}
}

// findingPage is the selected finding in full. One that no longer holds gives way to no other.
func (s *screen) findingPage() box {
	for i, key := range findingKeys(s.view.Findings) {
		if key == s.finding.key {
			return s.findingText(&s.view.Findings[i])
		}
	}
	b := s.page1("Finding", clean(s.finding.key.id)+" no longer holds for "+clean(s.finding.key.object)+".")
	s.say(&b, "", "esc goes back to the findings that hold now.", roleText)
	return b
}

func (s *screen) findingText(f *diagnose.Finding) box {
	b := box{title: "Finding", info: clean(f.ID)}
	sign, as := severitySign(f.Severity)
	s.say(&b, "", "", roleText)
	s.fact(&b, "what", roleStrong, f.Summary)
	s.fact(&b, "severity", as, sign+" "+string(f.Severity))
	s.fact(&b, "object", roleText, f.Object)
	if f.Chain != (flannel.ChainID{}) && f.Chain.String() != f.Object {
		s.fact(&b, "chain", roleText, f.Chain.String())
	}
	s.findingFacts(&b, f, len(f.Detail))
	s.fact(&b, "id", roleDim, f.ID)
	return b
}
