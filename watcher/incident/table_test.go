package incident

import (
	"slices"
	"testing"
	"time"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// tableAt is a reading of the counters, so many seconds in.
func tableAt(seconds int, count, failed, drop uint64) *Observation {
	at := flannel.Time{Wall: time.Unix(int64(seconds), 0), Boot: time.Duration(seconds) * time.Second, Session: "test"}
	r := flannel.Know(conntrack.Health{
		Source: "netlink", Count: conntrack.Counted(count), Max: conntrack.Counted(1000), InsertFailed: conntrack.Counted(failed),
		Drop: conntrack.Counted(drop), EarlyDrop: conntrack.Counted(0), ClashResolve: conntrack.Counted(0),
	}, "netlink", at)
	return &Observation{Time: at, Table: &r}
}

func finds(s *State, id string) bool {
	return slices.ContainsFunc(s.verdict.Findings, func(f diagnose.Finding) bool { return f.ID == id })
}

func TestARaceIsFoundWhileItGoesOnAndForAMinuteAfter(t *testing.T) {
	s := NewState()
	for second := 1; second <= 10; second++ {
		s.Apply(tableAt(second, 100, 500, 500))
	}
	if finds(s, "snat-port-race") {
		t.Error("found for what was before")
	}
	for second := 11; second <= 20; second++ {
		s.Apply(tableAt(second, 100, 500+uint64(second-10), 500+uint64(second-10)))
	}
	if !finds(s, "snat-port-race") {
		t.Error("not found while it goes on")
	}
	v := s.View(flannel.Time{Boot: 20 * time.Second, Session: "test"})
	if got, ok := v.Table.Trend.PerSecond(v.Table.Trend.InsertFailed); !ok || got != 1 || v.Table.Window.InsertFailed.N != 10 {
		t.Errorf("%v a second, %+v", got, v.Table.Window)
	}
	for second := 21; second <= 90; second++ {
		s.Apply(tableAt(second, 100, 510, 510))
	}
	if finds(s, "snat-port-race") {
		t.Error("found long after")
	}
	if n := len(s.table.readings); n > 62 {
		t.Errorf("%d readings of a minute are kept", n)
	}
}

func TestAHoleInTheReadingsHasNoSpeedAndIsToldApartFromZero(t *testing.T) {
	s := NewState()
	s.Apply(tableAt(1, 100, 0, 0))
	at := flannel.Time{Boot: 2 * time.Second, Session: "test"}
	miss := flannel.Miss[conntrack.Health](flannel.Unreadable, "needs CAP_NET_ADMIN", "netlink", at)
	s.Apply(&Observation{Time: at, Table: &miss})
	v := s.View(at)
	if v.Table.Health.State != flannel.Unreadable || v.Table.Trend != (conntrack.Trend{}) {
		t.Errorf("%+v", v.Table)
	}
	s.Apply(tableAt(3, 100, 90, 90))
	if v := s.View(at); v.Table.Trend != (conntrack.Trend{}) || finds(s, "snat-port-race") {
		t.Errorf("a speed across the hole: %+v", v.Table.Trend)
	}
}

func TestASurveyIsKeptWithoutSharingAndJudgedAtOnce(t *testing.T) {
	s := NewState()
	at := flannel.Time{Boot: time.Second, Session: "test"}
	r := flannel.Know(conntrack.Survey{
		Kinds: map[conntrack.Kind]conntrack.Tally{conntrack.Bare: {Flows: 1}},
		Flows: []conntrack.Sample{{Kind: conntrack.Bare}},
	}, "netlink", at)
	s.Apply(&Observation{Time: at, Flows: &r})
	r.Value.Flows[0].Kind = conntrack.Stale
	clear(r.Value.Kinds)
	v := s.View(at)
	if !finds(s, "flows-bare") || v.Table.Flows.Value.Flows[0].Kind != conntrack.Bare || v.Table.Flows.Value.Kinds[conntrack.Bare].Flows != 1 {
		t.Errorf("%+v", v.Table.Flows)
	}
}
