package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// flowOrder is what the list of connections is sorted by.
type flowOrder uint8

const (
	flowsByKind flowOrder = iota
	flowsBySource
	flowsByDestination
	flowsByState
	flowsByAge
	flowsByPod
	flowOrders
)

var flowOrderNames = [flowOrders]string{"kind", "source", "destination", "state", "age", "pod"}

// flowRows gives the connections that pass the filter, sorted.
func (s *screen) flowRows() []*conntrack.Sample {
	if s.view == nil {
		return nil
	}
	list := s.view.Table.Flows.Value.Flows
	words := strings.Fields(strings.ToLower(s.flowFilter))
	rows := make([]*conntrack.Sample, 0, len(list))
	for i := range list {
		if len(words) == 0 || s.flowMatches(&list[i], words) {
			rows = append(rows, &list[i])
		}
	}
	slices.SortStableFunc(rows, func(a, b *conntrack.Sample) int {
		n := s.compareFlows(a, b)
		if s.flowReverse {
			return -n
		}
		return n
	})
	return rows
}

func (s *screen) compareFlows(a, b *conntrack.Sample) int {
	f, g := &a.Flow, &b.Flow
	switch s.flowOrder {
	case flowsBySource:
		return cmp.Or(f.Orig.Src.Compare(g.Orig.Src), cmp.Compare(f.Orig.SPort, g.Orig.SPort))
	case flowsByDestination:
		return cmp.Or(f.Orig.Dst.Compare(g.Orig.Dst), cmp.Compare(f.Orig.DPort, g.Orig.DPort))
	case flowsByState:
		return cmp.Compare(f.StateName(), g.StateName())
	case flowsByAge:
		return cmp.Compare(s.ago(since(b)), s.ago(since(a)))
	case flowsByPod:
		return cmp.Compare(a.Pod, b.Pod)
	}
	return 0 // as the survey has them
}

// since is when a connection began or, where that is not known, since when it has been seen.
func since(f *conntrack.Sample) flannel.Time {
	if !f.Born.IsZero() {
		return f.Born
	}
	return f.Seen
}

func (s *screen) flowMatches(f *conntrack.Sample, words []string) bool {
	text := strings.ToLower(string(f.Kind) + " " + f.Flow.String() + " " + f.Pod + " " + f.From + " " + s.gapText(f))
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}

// gapText names the incident in which a bare connection began, "" where that is not known.
func (s *screen) gapText(f *conntrack.Sample) string {
	if f.Kind != conntrack.Bare {
		return ""
	}
	if n := incident.BornIn(s.view.Incidents, f.Born); n > 0 {
		return fmt.Sprintf("#%d", n)
	}
	return ""
}

func flowKeys(rows []*conntrack.Sample) []conntrack.Key {
	keys := make([]conntrack.Key, len(rows))
	for i, r := range rows {
		keys[i] = r.Flow.Key()
	}
	return keys
}

// flowsPage lists the connections that are not as they should be, over who has the most entries:
//
//	╭─ Connections 871 bare · 3 translated ───────────────────────── sort kind ↓ · seen 4 s ago ─╮
//	│  KIND       PROTO SOURCE            DESTINATION     STATE      ANSWER      AGE  GAP POD     │
//	│▸ bare       tcp   10.244.3.5:40000  192.0.2.80:80   SYN_SENT   no        4.2 s  #7  shop/… │
func (s *screen) flowsPage(body int) []string {
	talkers := s.talkersBox(min(6, body/5))
	below := 0
	if len(talkers.lines) > 0 && body >= 12 {
		below = len(talkers.lines) + 2
	}
	out := s.frame(s.flowsBox(body-below-2), body-below-2, true, false)
	if below > 0 {
		out = append(out, s.frame(talkers, below-2, false, false)...)
	}
	return out
}

func (s *screen) flowsBox(rows int) box {
	b := box{title: "Connections", focused: true}
	if s.flowFilter != "" {
		b.title += " /" + clean(s.flowFilter)
	}
	b.info = s.flowsInfo()
	list := s.flowRows()
	notes := s.flowsNotes(list)
	if len(list) == 0 {
		b.lines = append(b.lines, notes...)
		return b
	}
	at := s.flow.index(flowKeys(list))
	detail := append(notes, s.flowDetail(list[at])...)
	height := max(rows-1-len(detail), 1)
	first := window(len(list), height, at)
	drawn := list[first:min(first+height, len(list))]
	c := s.flowColumns(drawn)
	b.lines = append(b.lines, c.head(s.innerLine(groundPlain)))
	for i, f := range drawn {
		b.lines = append(b.lines, s.flowLine(f, c, first+i == at))
	}
	for len(b.lines) < rows-len(detail) {
		b.lines = append(b.lines, s.innerLine(groundPlain).full())
	}
	b.lines = append(b.lines, detail...)
	return b
}

// flowsInfo tells what the list is sorted by, and how old it is.
func (s *screen) flowsInfo() string {
	r := &s.view.Table.Flows
	text := "sort " + flowOrderNames[s.flowOrder] + " " + map[bool]string{false: "↓", true: "↑"}[s.flowReverse]
	if r.At.IsZero() {
		return text
	}
	text += " · seen " + span(s.ago(r.At)) + " ago"
	if v, known := r.Get(); known {
		text += ", in " + span(v.Took)
	}
	return text
}

// flowsNotes says how many there are, and what is missing from the list.
func (s *screen) flowsNotes(list []*conntrack.Sample) []string {
	r := &s.view.Table.Flows
	v, known := r.Get()
	note := func(as role, text string) []string {
		var out []string
		for _, part := range wrap(clean(text), s.inner()-3) {
			out = append(out, s.innerLine(groundPlain).gap(2).put(as, part).full())
		}
		return out
	}
	switch {
	case r.State == flannel.Absent:
		return note(roleDim, r.Why)
	case r.State == flannel.Unreadable:
		return note(roleBad, "cannot read: "+r.Why)
	case !known && !s.listens:
		return note(roleDim, "nobody looked at the connections up to here")
	case !known:
		return note(roleDim, s.readingNote())
	case len(list) == 0 && len(v.Flows) > 0:
		return note(roleDim, "no connection matches; esc clears the filter")
	}
	var out []string
	if len(list) == 0 {
		out = append(out, note(roleGood, fmt.Sprintf("no connection is wrong: %s looked at, %s of them of pods",
			grouped(v.Entries), grouped(v.Pods)))...)
	}
	if h, ok := s.view.Table.Health.Get(); ok && h.Inert() {
		out = append(out, note(roleWarn, inertSentence)...)
	}
	if !anyDue(v.Masquerade) {
		out = append(out, note(roleDim, "bare ones were not looked for: pods here are not known to be meant to leave with the node's address")...)
	}
	if v.Malformed > 0 {
		out = append(out, note(roleWarn, fmt.Sprintf("%s entries could not be read", grouped(v.Malformed)))...)
	}
	return append(out, note(roleDim, s.tallyText(&v))...)
}

// inertSentence is said where no rule makes the kernel track connections.
const inertSentence = "no rule in this namespace uses connection tracking: entries are inert until they expire, and new connections make none"

func anyDue(masquerade map[flannel.Family]bool) bool {
	return masquerade[flannel.IPv4] || masquerade[flannel.IPv6]
}

// tallyText counts the connections of each kind, and those that are not listed; "" if there are none.
func (s *screen) tallyText(v *conntrack.Survey) string {
	var parts []string
	for _, k := range conntrack.Kinds {
		n := v.Kinds[k]
		if n.Flows == 0 {
			continue
		}
		text := fmt.Sprintf("%s %s (%s answered", grouped(n.Flows), k, grouped(n.Replied))
		if n.Flows > conntrack.MaxFlows {
			text += ", " + grouped(conntrack.MaxFlows) + " listed"
		}
		parts = append(parts, text+")")
	}
	return strings.Join(parts, " · ")
}

// flowColumns says how wide the parts of a connection are; those of width 0 are not drawn.
type flowColumns struct{ src, dst, state, answer, pod, seen int }

func (s *screen) flowColumns(list []*conntrack.Sample) flowColumns {
	c := flowColumns{src: len("SOURCE"), dst: len("DESTINATION"), state: len("STATE")}
	pod, seen := 0, len("SEEN AS")
	for _, f := range list {
		src, dst := f.Flow.Orig.Ends()
		c.src, c.dst = max(c.src, width(src)), max(c.dst, width(dst))
		c.state = max(c.state, width(f.Flow.StateName()))
		pod, seen = max(pod, width(clean(f.Pod)), len("POD")), max(seen, width(f.Flow.Reply.Dst.String()))
	}
	room := s.inner() - c.fixed()
	if room >= 8 {
		c.answer, room = 6, room-8
	}
	if pod > 0 && room >= 12 {
		c.pod = min(pod, room-2)
		room -= c.pod + 2
	}
	if room >= seen+2 {
		c.seen, room = seen, room-seen-2
	}
	for ; room < 0 && c.dst > 16; room++ { // long IPv6 addresses: the detail shows them whole
		if c.src > c.dst {
			c.src--
		} else {
			c.dst--
		}
	}
	return c
}

// fixed is the width of what is always drawn.
func (c *flowColumns) fixed() int { return 2 + 11 + 6 + c.src + 1 + c.dst + 1 + c.state + 9 + 5 }

func (c *flowColumns) head(l *line) string {
	l.gap(2).put(roleDim, left("KIND", 11)+left("PROTO", 6)+left("SOURCE", c.src+1)+left("DESTINATION", c.dst+1)+left("STATE", c.state))
	if c.answer > 0 {
		l.gap(2).put(roleDim, left("ANSWER", c.answer))
	}
	l.put(roleDim, right("AGE", 9)+right("GAP", 5))
	if c.seen > 0 {
		l.gap(2).put(roleDim, left("SEEN AS", c.seen))
	}
	if c.pod > 0 {
		l.gap(2).put(roleDim, left("POD", c.pod))
	}
	return l.full()
}

func (s *screen) flowLine(f *conntrack.Sample, c flowColumns, selected bool) string {
	l, strong := s.lookLine(selected)
	src, dst := f.Flow.Orig.Ends()
	l.put(flowRole(f.Kind), left(string(f.Kind), 11)).put(roleDim, left(f.Flow.Protocol(), 6))
	l.put(strong, left(src, c.src)+" ").put(roleText, left(dst, c.dst+1)+left(f.Flow.StateName(), c.state))
	if c.answer > 0 {
		l.gap(2).put(roleText, left(map[bool]string{true: "yes", false: "no"}[f.Flow.Replied()], c.answer))
	}
	l.put(roleText, right(s.flowAge(f), 9)).put(roleKey, right(s.gapText(f), 5))
	if c.seen > 0 {
		l.gap(2).put(roleText, left(f.Flow.Reply.Dst.String(), c.seen))
	}
	if c.pod > 0 {
		l.gap(2).put(roleWho, left(clean(f.Pod), c.pod))
	}
	return l.full()
}

func flowRole(k conntrack.Kind) role {
	if k == conntrack.Arriving {
		return roleText
	}
	return roleWarn
}

// flowAge is how old a connection is, or at least as old as.
func (s *screen) flowAge(f *conntrack.Sample) string {
	switch {
	case !f.Born.IsZero():
		return brief(s.ago(f.Born))
	case !f.Seen.IsZero():
		return "≥" + brief(s.ago(f.Seen))
	}
	return unknown
}

// brief is span in one unit, in at most seven columns.
func brief(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return span(d)
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d d", int(d.Hours()/24))
}

// flowDetail says of the selected connection what the columns cannot.
func (s *screen) flowDetail(f *conntrack.Sample) []string {
	var parts []string
	add := func(text string) { parts = append(parts, text) }
	add(f.Flow.String())
	if f.Pod != "" {
		add("pod " + f.Pod)
	}
	if f.From != "" {
		add("from node " + f.From)
	}
	add(s.flowBirth(f))
	add(map[bool]string{true: "answered", false: "not answered"}[f.Flow.Replied()])
	if f.Flow.Counted {
		add(fmt.Sprintf("%s packets, %s bytes", grouped(f.Flow.Packets), grouped(f.Flow.Bytes)))
	} else {
		add("bytes are not counted here")
	}
	out := []string{s.innerLine(groundPlain).full()}
	for i, text := range wrap(clean(strings.Join(parts, " · ")), s.inner()-4) {
		if i == 3 {
			break
		}
		out = append(out, s.innerLine(groundPlain).gap(2).put(roleText, text).full())
	}
	return out
}

// flowBirth says when a connection began, as far as that is known.
func (s *screen) flowBirth(f *conntrack.Sample) string {
	if f.Born.IsZero() {
		return "its beginning was not heard; seen for at least " + span(s.ago(f.Seen))
	}
	text := "began " + strings.TrimSpace(moment(f.Born.Wall, s.view.Now.Wall, s.loc))
	if gap := s.gapText(f); gap != "" {
		text += " in incident " + gap
	}
	return text
}

// talkersBox shows who has the most entries: pods, what they lead to, and states, side by side.
func (s *screen) talkersBox(most int) box {
	v, known := s.view.Table.Flows.Get()
	if !known || len(v.Sources)+len(v.Destinations)+len(v.States) == 0 || most < 2 {
		return box{}
	}
	b := box{title: "Most entries", info: fmt.Sprintf("%s entries, %s of pods", grouped(v.Entries), grouped(v.Pods))}
	third := (s.inner() - 2) / 3
	cols := [3][]string{talkerLines(v.Sources, third), talkerLines(v.Destinations, third), stateLines(v.States, third)}
	rows := 0
	for _, c := range cols {
		rows = max(rows, min(len(c), most-1))
	}
	head := s.innerLine(groundPlain).gap(1)
	for _, title := range []string{"BY POD", "BY DESTINATION", "BY STATE, ALL ENTRIES"} {
		head.put(roleDim, left(strings.Repeat(" ", 9)+title, third))
	}
	b.lines = append(b.lines, head.full())
	for i := range rows {
		l := s.innerLine(groundPlain).gap(1)
		for _, c := range cols {
			text := ""
			if i < len(c) {
				text = c[i]
			}
			l.put(roleText, left(text, third))
		}
		b.lines = append(b.lines, l.full())
	}
	return b
}

func talkerLines(list []conntrack.Talker, w int) []string {
	var out []string
	for _, t := range list {
		out = append(out, left(right(grouped(t.Entries), 8)+" "+clean(cmp.Or(t.Pod, t.Addr.String())), w-1))
	}
	return out
}

func stateLines(states map[string]int, w int) []string {
	type state struct {
		name string
		n    int
	}
	var list []state
	for name, n := range states {
		list = append(list, state{name, n})
	}
	slices.SortFunc(list, func(a, b state) int { return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.name, b.name)) })
	var out []string
	for _, t := range list {
		out = append(out, left(right(grouped(uint64(t.n)), 8)+" "+clean(t.name), w-1))
	}
	return out
}

// flowCopy is the selected connection as text.
func (m *model) flowCopy() string {
	rows := m.flowRows()
	i := m.flow.index(flowKeys(rows))
	if i < 0 {
		return ""
	}
	f := rows[i]
	text := string(f.Kind) + " " + f.Flow.String()
	if f.Pod != "" {
		text += ", pod " + f.Pod
	}
	return clean(text+", "+m.flowBirth(f)) + "\n"
}

// tellFlows lets the watcher know whether somebody reads the list, if that has changed.
func (m *model) tellFlows() {
	if reads := m.page == pageFlows || m.dialog != nil && m.dialog.drops(); m.opt.Flows != nil && reads != m.reading {
		m.reading = reads
		m.opt.Flows(reads)
	}
}
