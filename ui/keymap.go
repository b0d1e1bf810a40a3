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
	actLeftovers
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
	actRemedy
	actUndo
	actHistory

	actPlay // of a recording, up to actGoTo
	actReplayBack
	actReplayOn
	actTenBack
	actTenOn
	actMinuteBack
	actMinuteOn
	actReplayNext
	actReplayPrev
	actPlayFaster
	actPlaySlower
	actGoTo

	actApply // in a plan, up to actCancel
	actDiff
	actScroll
	actScript
	actPart
	actProbe
	actCancel
)

// mode is where a key has another meaning than elsewhere.
type mode uint8

const (
	inRecording mode = iota + 1 // while a recording is replayed
	inPlan                      // while a plan is shown: letters go to its field
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
	inHistory
	inDialog
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
	mode   mode     // 0 for everywhere but where the key has another meaning
}

// bindings is the table of keys. A key gets its row together with the part it serves.
var bindings = []binding{
	{actHelp, []string{"?", "f1"}, "?, F1", "help", "help", []place{everywhere}, 0},
	{actPlay, []string{"space"}, "space", "play", "in a recording: play, or hold still", []place{everywhere}, inRecording},
	{actReplayBack, []string{"left"}, "←", "back", "in a recording: one observation back", []place{everywhere}, inRecording},
	{actReplayOn, []string{"right"}, "→", "on", "in a recording: one observation on", []place{everywhere}, inRecording},
	{actReplayNext, []string{"n"}, "n", "incident", "in a recording: to the next incident", []place{everywhere}, inRecording},
	{actReplayPrev, []string{"N"}, "N", "", "in a recording: to the incident before", nil, inRecording},
	{actTenBack, []string{"shift+left"}, "shift+←", "", "in a recording: 10 s back", nil, inRecording},
	{actTenOn, []string{"shift+right"}, "shift+→", "", "in a recording: 10 s on", nil, inRecording},
	{actMinuteBack, []string{"ctrl+left"}, "ctrl+←", "", "in a recording: a minute back", nil, inRecording},
	{actMinuteOn, []string{"ctrl+right"}, "ctrl+→", "", "in a recording: a minute on", nil, inRecording},
	{actGoTo, []string{"@"}, "@", "go to", "in a recording: go to a time, or by a span: 12:04:27, -30s, +5m", []place{everywhere}, inRecording},
	{actPlayFaster, []string{"+"}, "+", "faster", "in a recording: play faster, up to 100x", []place{everywhere}, inRecording},
	{actPlaySlower, []string{"-"}, "-", "slower", "in a recording: play slower, down to 0.1x", []place{everywhere}, inRecording},
	{actFilter, []string{"/"}, "/", "filter", "filter the chains, or the connections; esc clears", []place{inChains, inFlows}, 0},
	{actNextPanel, []string{"tab"}, "tab", "panel", "next panel", []place{inChains, inRules, inTimeline, inTable}, 0},
	{actPrevPanel, []string{"shift+tab"}, "shift+tab", "", "previous panel", nil, 0},
	{actOpen, []string{"enter"}, "enter", "open", "open what is selected: a chain, a rule, an event, an incident, a finding, the chain that decides a path", []place{inChains, inRules, inTimeline, inTable, inLists, inLook, inHistory}, 0},
	{actProbe, []string{"P"}, "P", "", "try one new connection from inside a pod, now", nil, 0},
	{actRemedy, []string{"r"}, "r", "remedy", "what can be done about it: a plan, shown before anything happens", []place{inChains, inRules, inTimeline, inPages, inLists, inIncident, inFlows}, 0},
	{actLook, []string{"v"}, "v", "paths", "paths: what becomes of typical packets, wanted against actual, and which rule decides; again, all base chains of a running watch; enter opens a chain, and the one that a rule jumps to", []place{inChains, inRules}, 0},
	{actIncidents, []string{"i"}, "i", "incidents", "incidents, and totals by kind", []place{inChains, inRules, inTimeline}, 0},
	{actFindings, []string{"f"}, "f", "findings", "findings: what is wrong, why, and what helps", []place{inChains, inRules, inTimeline}, 0},
	{actLeftovers, []string{"L"}, "L", "leftovers", "leftovers: what a Flannel that is gone left, and whether it is in force", []place{inChains, inRules}, 0},
	{actFlows, []string{"c"}, "c", "connections", "connections that are translated wrongly, and who has the most entries", []place{inChains, inRules, inTimeline, inTable}, 0},
	{actUndo, []string{"u"}, "u", "", "take back the last plan that was carried out", nil, 0},
	{actHistory, []string{"U"}, "U", "", "plans that were carried out here; enter takes one back", nil, 0},
	{actStepBack, []string{"left"}, "←", "earlier", "in an incident: to what happened before", []place{inIncident}, 0},
	{actStepOn, []string{"right"}, "→", "later", "in an incident: to what happened next", []place{inIncident}, 0},
	{actNextIncident, []string{"n"}, "n", "next", "the next incident", []place{inIncident}, 0},
	{actPrevIncident, []string{"N"}, "N", "previous", "the previous incident", []place{inIncident}, 0},
	{actBack, []string{"esc"}, "esc", "back", "back; on the dashboard, clear the filter", []place{inPages, inLists, inIncident, inLook, inFlows, inHistory}, 0},
	{actZoomIn, []string{"["}, "[", "closer", "less time on the timeline, in more detail", []place{inTimeline, inIncident}, 0},
	{actZoomOut, []string{"]"}, "]", "wider", "more time on the timeline", []place{inTimeline, inIncident}, 0},
	{actPause, []string{"p"}, "p", "pause", "pause the picture; watching goes on", []place{inChains, inRules, inTimeline, inTable, inLook, inFlows}, 0},
	{actSort, []string{"s"}, "s", "sort", "sort the chains, or the connections, by the next column", []place{inChains, inFlows}, 0},
	{actReverse, []string{"S"}, "S", "", "reverse the order", nil, 0},
	{actSlower, []string{"+"}, "+", "slower", "read the counters less often, down to every 60 s", []place{inChains}, 0},
	{actFaster, []string{"-"}, "-", "faster", "read the counters more often, up to every 0.1 s", []place{inChains}, 0},
	{actCopy, []string{"y"}, "y", "copy", "copy what is selected as text", []place{inRules, inTimeline, inPages, inLists, inIncident, inLook, inFlows, inHistory}, 0},
	{actExport, []string{"e"}, "e", "export", "write the screen to a file", []place{everywhere}, 0},
	{actTheme, []string{"t"}, "t", "theme", "theme: auto, dark, light, mono", []place{inPages}, 0},
	{actUp, []string{"up", "k"}, "↑, k", "", "up", nil, 0},
	{actDown, []string{"down", "j"}, "↓, j", "", "down", nil, 0},
	{actPageUp, []string{"pgup"}, "pgup", "", "a page up", nil, 0},
	{actPageDown, []string{"pgdown"}, "pgdn", "", "a page down", nil, 0},
	{actTop, []string{"home", "g"}, "home, g", "", "to the first", nil, 0},
	{actBottom, []string{"end", "G"}, "end, G", "", "to the last", nil, 0},
	{actPanels, []string{"1", "2", "3", "4"}, "1–4", "", "show or hide a panel", nil, 0},
	{actSuspend, []string{"ctrl+z"}, "ctrl+z", "", "suspend; fg brings it back", nil, 0},
	{actRedraw, []string{"ctrl+l"}, "ctrl+l", "", "draw the whole screen anew", nil, 0},
	{actQuitKeep, []string{"Q"}, "Q", "", "quit and leave the last picture in the scrollback", nil, 0},
	{actApply, []string{"enter"}, "enter", "apply", "in a plan: carry it out, once its word is typed; of several plans, open one", []place{inDialog}, inPlan},
	{actDiff, []string{"tab"}, "tab", "diff, commands", "in a plan: diff, or the commands that do the same by hand", []place{inDialog}, inPlan},
	{actScroll, []string{"up", "down", "pgup", "pgdown", "home", "end"}, "↑↓", "scroll", "in a plan: scroll, or choose among several", []place{inDialog}, inPlan},
	{actPart, []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"}, "1–9", "", "in a plan: take a part of it in, or leave it out", nil, inPlan},
	{actScript, []string{"ctrl+y"}, "ctrl+y", "copy script", "in a plan: copy the commands as a script", []place{inDialog}, inPlan},
	{actCancel, []string{"esc", "ctrl+c"}, "esc", "cancel", "in a plan: close it, nothing is done", []place{inDialog}, inPlan},
	{actQuit, []string{"q", "ctrl+c"}, "q, ctrl+c", "quit", "quit", []place{everywhere}, 0},
}

// actionOf gives the action of a key outside of plans, and false where it has none. While a recording is replayed some keys
// move within it.
func actionOf(key string, recording bool) (action, bool) {
	for _, want := range []mode{inRecording, 0} {
		if want == inRecording && !recording {
			continue
		}
		for _, b := range bindings {
			if b.mode == want && slices.Contains(b.keys, key) {
				return b.act, true
			}
		}
	}
	return 0, false
}

// taken tells whether keys mean something else while a recording is replayed.
func taken(keys []string) bool {
	return slices.ContainsFunc(bindings, func(b binding) bool {
		return b.mode == inRecording && slices.ContainsFunc(keys, func(k string) bool { return slices.Contains(b.keys, k) })
	})
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
