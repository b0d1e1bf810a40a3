package ui

import (
	"slices"
	"strings"
)

// action is what a key does.
type action uint8

// The actions, in the order of the help page.
const (
	actQuit action = iota + 1
	actQuitKeep
	actHelp
	actUp
	actDown
	actPageUp
	actPageDown
	actTop
	actBottom
	actOpen
	actLook
	actBack
	actNextPanel
	actPrevPanel
	actPanels
	actIncidents
	actFindings
	actFlows
	actNextIncident
	actPrevIncident
	actStepBack
	actStepOn
	actFilter
	actSort
	actReverse
	actPause
	actSlower
	actFaster
	actZoomIn
	actZoomOut
	actCopy
	actExport
	actTheme
	actSuspend
	actRedraw
)

// place is where a key is of use. It decides which keys the footer offers, not which keys work.
type place uint8

const (
	everywhere place = iota
	inChains
	inRules
	inTimeline
	inPages
	inLook
	inLists
	inIncident
	inTable
	inFlows
)

// binding is one row of the table of keys. Everything that tells a person about keys is made from it.
type binding struct {
	act    action
	keys   []string // as Bubble Tea names them
	show   string   // as a person reads them
	short  string   // for the footer; "" keeps it out of there
	does   string   // for help and README
	places []place  // where the footer offers it
}

// bindings is the table of keys. A key gets its row together with the part it serves.
var bindings = []binding{
	{actHelp, []string{"?", "f1"}, "?, F1", "help", "help", []place{everywhere}},
	{actFilter, []string{"/"}, "/", "filter", "filter the chains, or the connections; esc clears", []place{inChains, inFlows}},
	{actNextPanel, []string{"tab"}, "tab", "panel", "next panel", []place{inChains, inRules, inTimeline, inTable}},
	{actPrevPanel, []string{"shift+tab"}, "shift+tab", "", "previous panel", nil},
	{actOpen, []string{"enter"}, "enter", "open", "open what is selected: a chain, a rule, an event, an incident, a finding, the chain that decides a path", []place{inChains, inRules, inTimeline, inTable, inLists, inLook}},
	{actLook, []string{"v"}, "v", "paths", "paths: what becomes of typical packets, wanted against actual, and which rule decides; again, all base chains of a running watch; enter opens a chain, and the one that a rule jumps to", []place{inChains, inRules}},
	{actIncidents, []string{"i"}, "i", "incidents", "incidents, and totals by kind", []place{inChains, inRules, inTimeline}},
	{actFindings, []string{"f"}, "f", "findings", "findings: what is wrong, why, and what helps", []place{inChains, inRules, inTimeline}},
	{actFlows, []string{"c"}, "c", "connections", "connections that are translated wrongly, and who has the most entries", []place{inChains, inRules, inTimeline, inTable}},
	{actStepBack, []string{"left"}, "←", "earlier", "in an incident: to what happened before", []place{inIncident}},
	{actStepOn, []string{"right"}, "→", "later", "in an incident: to what happened next", []place{inIncident}},
	{actNextIncident, []string{"n"}, "n", "next", "the next incident", []place{inIncident}},
	{actPrevIncident, []string{"N"}, "N", "previous", "the previous incident", []place{inIncident}},
	{actBack, []string{"esc"}, "esc", "back", "back; on the dashboard, clear the filter", []place{inPages, inLists, inIncident, inLook, inFlows}},
	{actZoomIn, []string{"["}, "[", "closer", "less time on the timeline, in more detail", []place{inTimeline, inIncident}},
	{actZoomOut, []string{"]"}, "]", "wider", "more time on the timeline", []place{inTimeline, inIncident}},
	{actPause, []string{"p"}, "p", "pause", "pause the picture; watching goes on", []place{inChains, inRules, inTimeline, inTable, inLook, inFlows}},
	{actSort, []string{"s"}, "s", "sort", "sort the chains, or the connections, by the next column", []place{inChains, inFlows}},
	{actReverse, []string{"S"}, "S", "", "reverse the order", nil},
	{actSlower, []string{"+"}, "+", "slower", "read the counters less often, down to every 60 s", []place{inChains}},
	{actFaster, []string{"-"}, "-", "faster", "read the counters more often, up to every 0.1 s", []place{inChains}},
	{actCopy, []string{"y"}, "y", "copy", "copy what is selected as text", []place{inRules, inTimeline, inPages, inLists, inIncident, inLook, inFlows}},
	{actExport, []string{"e"}, "e", "export", "write the screen to a file", []place{everywhere}},
	{actTheme, []string{"t"}, "t", "theme", "theme: auto, dark, light, mono", []place{inPages}},
	{actUp, []string{"up", "k"}, "↑, k", "", "up", nil},
	{actDown, []string{"down", "j"}, "↓, j", "", "down", nil},
	{actPageUp, []string{"pgup"}, "pgup", "", "a page up", nil},
	{actPageDown, []string{"pgdown"}, "pgdn", "", "a page down", nil},
	{actTop, []string{"home", "g"}, "home, g", "", "to the first", nil},
	{actBottom, []string{"end", "G"}, "end, G", "", "to the last", nil},
	{actPanels, []string{"1", "2", "3", "4"}, "1–4", "", "show or hide a panel", nil},
	{actSuspend, []string{"ctrl+z"}, "ctrl+z", "", "suspend; fg brings it back", nil},
	{actRedraw, []string{"ctrl+l"}, "ctrl+l", "", "draw the whole screen anew", nil},
	{actQuitKeep, []string{"Q"}, "Q", "", "quit and leave the last picture in the scrollback", nil},
	{actQuit, []string{"q", "ctrl+c"}, "q, ctrl+c", "quit", "quit", []place{everywhere}},
}

// actionOf gives the action of a key, and false where it has none.
func actionOf(key string) (action, bool) {
	for _, b := range bindings {
		if slices.Contains(b.keys, key) {
			return b.act, true
		}
	}
	return 0, false
}

// KeyTable gives the keys as a Markdown table.
func KeyTable() string {
	var b strings.Builder
	b.WriteString("| Key | Does |\n| --- | --- |\n")
	for _, k := range bindings {
		keys := strings.Split(k.show, ", ")
		for i := range keys {
			keys[i] = "`" + keys[i] + "`"
		}
		b.WriteString("| " + strings.Join(keys, ", ") + " | " + k.does + " |\n")
	}
	return b.String()
}
