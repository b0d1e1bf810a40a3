package ui

import (
	"fmt"
	"slices"
	"strings"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// ruleMark is the sign and the word for a rule that is not as wanted; both are empty for one that is.
func ruleMark(r *incident.RuleView) (sign, word string, as role) {
	switch r.Status {
	case flannel.RuleMissing:
		return "-", "missing", roleBad
	case flannel.RuleExtra:
		return "+", "extra", roleWarn
	case flannel.RuleDuplicate:
		return fmt.Sprintf("×%d", max(r.Times, 2)), "duplicate", roleWarn
	case flannel.RuleMisplaced:
		return "~", "out of order", roleWarn
	case flannel.RuleVariant:
		return "~", "variant", roleDim
	case flannel.RuleOpaque:
		return signUnknown, "unclear", roleWarn
	}
	return "", "", roleText
}

// ruleParts splits a rule into its matches and its target, in the language of its backend. Comments say nothing that the
// panel does not; the page of the chain shows them.
func ruleParts(r flannel.Rule, id flannel.ChainID) (match, target string) {
	short := flannel.Rule{Target: r.Target}
	for _, m := range r.Matches {
		if m.Kind != flannel.MatchComment {
			short.Matches = append(short.Matches, m)
		}
	}
	if id.Backend == flannel.Nftables {
		return clean(short.Text(id.Backend, id.Family)), ""
	}
	short.Target = flannel.Target{Kind: flannel.TargetNone}
	match = strings.Replace(clean(short.String()), "-m mark --mark", "mark", 1)
	target = clean(flannel.Rule{Target: r.Target}.String())
	return match, strings.TrimPrefix(strings.TrimPrefix(target, "-j "), "-g ")
}

// rulesPanel draws the rules of the selected chain: rates in health, wanted against found when not.
//
//	╭─ ²Rules of v4 nat FLANNEL-POSTRTG ───────────────────────────────────────────────── 5 of 6 ─╮
//	│  #   MATCH                                  TARGET            RATE  TOTAL  STATUS            │
//	│  1   mark 0x4000/0x4000                     RETURN        0 c/s      0 c                     │
//	│  2 - -s 10.244.3.0/24 -d 10.244.0.0/16      RETURN            –       –    missing           │
func (s *screen) rulesPanel(l layout) box {
	b := box{number: "²", title: "Rules", focused: s.focus == panelRules}
	c := s.current()
	if c == nil {
		return b
	}
	b.title = "Rules of " + s.chainName(c.ID)
	b.info = fmt.Sprintf("%d of %d wanted found", c.Found, c.Wanted)
	if c.State == flannel.ChainUnreadable {
		b.info = "unknown"
	}
	cols := s.ruleColumns(c)
	b.lines = append(b.lines, s.ruleHead(c, cols))
	height := l.rows[panelRules] - 1
	at := min(s.rule, len(c.Rules)-1)
	if !b.focused {
		at = -1
	}
	for i := window(len(c.Rules), height, max(at, 0)); i < len(c.Rules) && height > 0; i, height = i+1, height-1 {
		b.lines = append(b.lines, s.ruleLine(c, &c.Rules[i], cols, i == at))
	}
	if len(c.Rules) == 0 {
		b.lines = append(b.lines, s.innerLine(groundPlain).gap(2).put(roleDim, s.noRules(c)).full())
	}
	return b
}

func (s *screen) noRules(c *incident.ChainView) string {
	switch c.State {
	case flannel.ChainUnreadable:
		return "cannot be read"
	case flannel.ChainAbsent:
		return "the chain does not exist"
	}
	return "no rules, and none wanted"
}

// ruleColumns says how wide the parts of a rule are.
type ruleColumns struct {
	match, target int
	status        bool // some rule is not as wanted
	counters      bool
	total         bool
}

func (s *screen) ruleColumns(c *incident.ChainView) ruleColumns {
	cols := ruleColumns{counters: c.Counted, total: c.Counted}
	widest := 0
	for i := range c.Rules {
		match, target := ruleParts(c.Rules[i].Rule, c.ID)
		widest = max(widest, width(match))
		cols.target = max(cols.target, min(width(target), 25))
		cols.status = cols.status || c.Rules[i].Status != flannel.RuleOK
	}
	room := func() int {
		return s.inner() - 8 - on(cols.target > 0, cols.target+2) - on(cols.counters, 8) - on(cols.total, 8) - on(!cols.counters, 13) - on(cols.status, 15)
	}
	// The match is what tells rules apart: options of the target go first, then the total.
	if room() < widest+2 {
		cols.target = min(cols.target, len("MASQUERADE"))
	}
	if room() < widest+2 && (cols.status || s.inner() < 70) {
		cols.total = false
	}
	if room() < min(widest+2, 24) { // the sign tells it too
		cols.status = false
	}
	cols.match = max(min(widest+2, room()), 10)
	return cols
}

func (s *screen) ruleHead(c *incident.ChainView, cols ruleColumns) string {
	l := s.innerLine(groundPlain).gap(2).put(roleDim, left("#", 6))
	head := "MATCH"
	if c.ID.Backend == flannel.Nftables {
		head = "RULE"
	}
	l.put(roleDim, left(head, cols.match))
	if cols.target > 0 {
		l.put(roleDim, left("TARGET", cols.target+2))
	}
	if cols.counters {
		l.put(roleDim, right("RATE", 8))
	} else {
		l.gap(13)
	}
	if cols.total {
		l.put(roleDim, right("TOTAL", 8))
	}
	if cols.status {
		l.gap(2).put(roleDim, "STATUS")
	}
	return l.full()
}

func (s *screen) ruleLine(c *incident.ChainView, r *incident.RuleView, cols ruleColumns, selected bool) string {
	l := s.innerLine(groundPlain)
	if selected {
		l.ground = groundSelect
	}
	sign, word, as := ruleMark(r)
	number := r.Found
	if r.Want > 0 {
		number = r.Want
	}
	l.put(roleDim, right(fmt.Sprint(number), 3)+" ").put(as, left(sign, 3)).gap(1)
	match, target := ruleParts(r.Rule, c.ID)
	text := as
	if r.Status == flannel.RuleVariant || r.Status == flannel.RuleOpaque {
		text = roleText
	}
	l.put(text, left(cut(match, cols.match-1), cols.match))
	if cols.target > 0 {
		l.put(targetRole(text), left(target, cols.target+2))
	}
	l.pieces(ruleCounters(c, r, cols)...)
	if cols.status {
		l.gap(2).put(as, word)
	}
	return l.full()
}

// targetRole lets the target stand out from the matches of a healthy rule.
func targetRole(text role) role {
	if text == roleText {
		return roleStrong
	}
	return text
}

func ruleCounters(c *incident.ChainView, r *incident.RuleView, cols ruleColumns) []piece {
	switch {
	case !cols.counters && r.Status == flannel.RuleMissing:
		return []piece{{roleDim, left("", 13)}}
	case !cols.counters:
		return []piece{{roleDim, left("no counters", 13)}}
	}
	rate, total := []piece{{roleDim, right(unknown, 8)}}, piece{roleDim, right(unknown, 8)}
	switch {
	case r.Found == 0:
	case !r.Counted:
		rate, total = []piece{{roleDim, right(notApplicable, 8)}}, piece{roleDim, right(notApplicable, 8)}
	default:
		if r.Rate.Known {
			rate = []piece{{roleText, scaled(r.Rate.Packets)}, {roleDim, unitOf(c.ID) + "/s"}}
		}
		total = piece{roleText, right(count(r.Counter.Packets)+unitOf(c.ID), 8)}
	}
	if !cols.total {
		return rate
	}
	return append(rate, total)
}

// ruleText is a rule in full, as its tool would print it.
func ruleText(r flannel.Rule, id flannel.ChainID) string { return clean(r.Text(id.Backend, id.Family)) }

// chainPage shows one chain with everything that is known of it, each rule in full.
func (s *screen) chainPage() box {
	c := s.current()
	if c == nil {
		return box{title: "Chain", lines: []string{s.innerLine(groundPlain).gap(2).put(roleDim, "the chain is gone").full()}}
	}
	b := box{title: s.chainName(c.ID), info: clean(c.ID.String())}
	add := func(ps ...piece) { b.lines = append(b.lines, s.innerLine(groundPlain).gap(2).pieces(ps...).full()) }
	g := s.grade(c)
	add(piece{roleDim, left("state", 9)}, piece{gradeRoles[g], gradeSigns[g] + " " + string(c.State)}, piece{roleText, s.sinceText(c)})
	add(piece{roleDim, left("rules", 9)}, piece{roleText, foundOf(c) + " wanted ones found"})
	add(piece{roleDim, left("hook", 9)}, piece{roleText, hookSentence(c)})
	add(piece{roleDim, left("counted", 9)}, piece{roleText, s.countedSentence(c)})
	add()
	for i := range c.Rules {
		r := &c.Rules[i]
		sign, word, as := ruleMark(r)
		number := fmt.Sprint(max(r.Want, 0))
		if r.Want == 0 {
			number = fmt.Sprint(r.Found)
		}
		for j, text := range wrap(ruleText(r.Rule, c.ID), s.inner()-12) {
			if j > 0 {
				number, sign = "", ""
			}
			add(piece{roleDim, right(number, 2) + " "}, piece{as, left(sign, 3)}, piece{as, text})
		}
		add(slices.Concat([]piece{{roleText, left("", 6)}}, s.ruleFacts(c, r, word, as))...)
	}
	return b
}

func (s *screen) sinceText(c *incident.ChainView) string {
	if c.Since.IsZero() {
		return ""
	}
	return " for " + span(s.ago(c.Since)) + ", since " + moment(c.Since.Wall, s.view.Now.Wall, s.loc)
}

func hookSentence(c *incident.ChainView) string {
	switch {
	case c.Hook.Chain == "":
		return "called by the kernel itself: a base chain"
	case c.Hook.Position == 0:
		return "nothing in " + clean(c.Hook.Chain) + " jumps here"
	case c.Hook.Copies > 1:
		return fmt.Sprintf("%d jumps in %s, the first is rule %d of %d", c.Hook.Copies, clean(c.Hook.Chain), c.Hook.Position, c.Hook.Of)
	}
	return fmt.Sprintf("rule %d of %d in %s", c.Hook.Position, c.Hook.Of, clean(c.Hook.Chain))
}

func (s *screen) countedSentence(c *incident.ChainView) string {
	if !c.Counted {
		return "its rules have no counters"
	}
	what, bytes := "packets", ", "+strings.TrimSpace(count(c.Total.Bytes))+"B"
	if isNat(c.ID) {
		what, bytes = "connections", ""
	}
	return strings.TrimSpace(count(c.Total.Packets)) + " " + what + bytes + " while watching"
}

func (s *screen) ruleFacts(c *incident.ChainView, r *incident.RuleView, word string, as role) []piece {
	var ps []piece
	if word != "" {
		ps = append(ps, piece{as, word})
	}
	if r.Want > 0 && r.Found > 0 && r.Want != r.Found {
		ps = append(ps, piece{roleDim, fmt.Sprintf(", found as rule %d", r.Found)})
	}
	if r.Found == 0 {
		return ps
	}
	if word != "" {
		ps = append(ps, piece{roleDim, " · "})
	}
	if !r.Counted {
		return append(ps, piece{roleDim, "no counter"})
	}
	what := " packets"
	if isNat(c.ID) {
		what = " connections"
	}
	return append(ps, piece{roleDim, strings.TrimSpace(count(r.Counter.Packets)) + what + " counted by the kernel"})
}
