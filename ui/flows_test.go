package ui

import (
	"slices"
	"strings"
	"testing"

	"flanwatch/conntrack"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
)

func TestConnectionsAreWantedOnlyWhileTheirListIsOpen(t *testing.T) {
	var told []bool
	m := still(t, withFlows(), Options{Flows: func(open bool) { told = append(told, open) }})
	m.width, m.height = 100, 30
	c, esc, tab := tea.KeyPressMsg{Code: 'c', Text: "c"}, tea.KeyPressMsg{Code: tea.KeyEscape}, tea.KeyPressMsg{Code: tea.KeyTab}
	enter := tea.KeyPressMsg{Code: tea.KeyEnter}
	for name, keys := range map[string][2]tea.KeyPressMsg{
		"its key again": {c, c}, "back": {c, esc}, "help": {c, {Code: '?', Text: "?"}}, "another panel": {c, tab},
		"another page": {c, {Code: 'i', Text: "i"}}, "opened on the panel": {enter, c},
	} {
		told, m.page, m.focus = nil, pageDashboard, panelTable
		m.Update(keys[0])
		if m.page != pageFlows || !slices.Equal(told, []bool{true}) {
			t.Fatalf("%s: page %d, told %v", name, m.page, told)
		}
		m.Update(tea.KeyPressMsg{Code: 'j', Text: "j"})
		m.Update(keys[1])
		if m.page == pageFlows || !slices.Equal(told, []bool{true, false}) {
			t.Errorf("%s: page %d, told %v", name, m.page, told)
		}
	}
}

func TestTheListIsFilteredSortedFrozenAndCopied(t *testing.T) {
	m := still(t, withFlows(), Options{})
	m.width, m.height = 100, 30
	m.turn(pageFlows)
	first := func() string {
		rows := m.flowRows()
		if len(rows) == 0 {
			return "none"
		}
		return string(rows[0].Kind) + " " + rows[0].Flow.Orig.Src.String() + " " + m.gapText(rows[0])
	}
	for want, order := range map[string]flowOrder{
		"bare 10.244.3.17 #1": flowsByKind, "bare 10.244.3.5 #1": flowsBySource, "stale 10.244.3.6 ": flowsByDestination,
		"bare 2001:db8:42:3::5 ": flowsByState,
	} {
		if m.flowOrder = order; first() != want {
			t.Errorf("by %s: %q, want %q", flowOrderNames[order], first(), want)
		}
	}
	m.flowOrder, m.flowReverse = flowsByAge, true
	if got := first(); got != "bare 10.244.3.5 " { // seen, not born
		t.Errorf("the youngest is %q", got)
	}
	m.flowOrder, m.flowReverse = flowsByKind, false
	for filter, want := range map[string]int{
		"udp": 8, "UDP stale": 1, "shop/cart": 13, "#1": 15, "192.168.60.13": 2, "192.168.60.17": 1, "no such": 0, "syn_recv": 10,
	} {
		if m.setFilter(filter); len(m.flowRows()) != want {
			t.Errorf("/%s leaves %d, want %d", filter, len(m.flowRows()), want)
		}
	}
	m.setFilter("syn_recv")
	if picture := ansi.Strip(m.at(100, 30)); !strings.Contains(picture, "Connections /syn_recv") {
		t.Errorf("the title does not say what is filtered:\n%s", picture)
	}
	m.setFilter("stale")
	if got := m.selected(); !strings.HasPrefix(got, "stale udp 10.244.3.6:8125 → 10.96.0.10:443") || !strings.Contains(got, "seen for at least 2.7 s") {
		t.Errorf("copied %q", got)
	}
	m.setFilter("no such")
	if m.selected() != "" || !strings.Contains(ansi.Strip(m.at(100, 30)), "no connection matches") {
		t.Error("with nothing listed something is copied")
	}
	m.back()
	if m.page != pageFlows || m.flowFilter != "" {
		t.Error("esc does not clear the filter first")
	}
	m.pause()
	gone := noneWrong()
	m.receive(gone)
	if n := len(m.flowRows()); n != 21 {
		t.Errorf("while frozen the list changes to %d", n)
	}
	m.pause()
	if n := len(m.flowRows()); n != 0 {
		t.Errorf("unfrozen it still lists %d", n)
	}
}

func TestTheSelectionStaysWithItsConnection(t *testing.T) {
	m := still(t, withFlows(), Options{})
	m.turn(pageFlows)
	m.width, m.height = 100, 30
	m.navigate(actDown)
	m.navigate(actDown)
	key := m.flow.key
	less := withFlows()
	less.Table.Flows.Value.Flows = slices.Delete(less.Table.Flows.Value.Flows, 0, 2)
	m.receive(less)
	if rows := m.flowRows(); rows[m.flow.index(flowKeys(rows))].Flow.Key() != key {
		t.Error("another connection is selected")
	}
}

func TestWhatIsNotKnownOfConnectionsIsNeverShownAsZero(t *testing.T) {
	m := still(t, refused(), Options{})
	for _, size := range goldenSizes {
		if s := ansi.Strip(m.at(size[0], size[1])); !strings.Contains(s, "cannot read") || strings.Contains(s, "insert_failed") {
			t.Errorf("%v\n%s", size, s)
		}
	}
	v := healthy()
	v.Table.Health.Value.Max, v.Table.Trend = conntrack.Count{}, conntrack.Trend{}
	m = still(t, v, Options{})
	if s := ansi.Strip(m.at(100, 30)); !strings.Contains(s, "entries 41,208 of –") || !strings.Contains(s, "insert_failed      –") {
		t.Errorf("%s", s)
	}
}

func TestANumberIsGroupedAndAnAgeBrief(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 999: "999", 1000: "1,000", 262144: "262,144", 1234567: "1,234,567"} {
		if got := grouped(n); got != want {
			t.Errorf("%d is %s", n, got)
		}
	}
	for n, want := range map[int]string{3: "3.0 s", 59: "59 s", 119: "119 s", 120: "2 min", 7200: "2 h", 200_000: "2 d"} {
		if got := brief(seconds(n)); got != want {
			t.Errorf("%d s is %q", n, got)
		}
	}
}
