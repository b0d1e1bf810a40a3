package conntrack

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
)

func TestCountersOfProcessorsAreAddedUpAndEntriesAreNot(t *testing.T) {
	var h Health
	for range 2 {
		if err := h.AddStats(slices.Concat(at(2, be(10, 4)), at(9, be(1, 4)), at(10, be(2, 4)), at(14, be(3, 4)), at(99, be(7, 4)))); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.SetGlobal(slices.Concat(at(1, be(500, 4)), at(2, be(1000, 4)))); err != nil {
		t.Fatal(err)
	}
	want := Health{
		Count: Counted(500), Max: Counted(1000), Found: Counted(20), InsertFailed: Counted(2), Drop: Counted(4), ClashResolve: Counted(6),
	}
	if h != want {
		t.Errorf("got %+v", h)
	}
	if h.ChainTooLong.Known {
		t.Error("what an older kernel does not send is known")
	}
}

func TestProcfsIsReadByTheNamesOfItsColumns(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want Health
	}{
		"of today": {
			"entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart\n" +
				"000000ff  00000001 00000002 00000000 00000003 00000000 00000000 00000004 00000000 00000005 00000006 00000007 00000008  00000000 00000000 00000000 00000009\n" +
				"000000ff  00000001 00000002 00000000 00000003 00000000 00000000 00000004 00000000 00000005 00000006 00000007 00000008  00000000 00000000 00000000 00000009\n",
			Health{
				Count: Counted(255), ClashResolve: Counted(2), Found: Counted(4), Invalid: Counted(6), ChainTooLong: Counted(8),
				InsertFailed: Counted(10), Drop: Counted(12), EarlyDrop: Counted(14), ICMPError: Counted(16), SearchRestart: Counted(18),
			},
		},
		"of old": {
			"entries  searched found new invalid ignore delete delete_list insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart\n" +
				"00000010  00000001 00000002 00000000 00000003 00000000 00000000 00000004 00000000 00000005 00000006 00000007 00000008  00000000 00000000 00000000 00000009\n",
			Health{
				Count: Counted(16), Found: Counted(2), Invalid: Counted(3), InsertFailed: Counted(5), Drop: Counted(6), EarlyDrop: Counted(7),
				ICMPError: Counted(8), SearchRestart: Counted(9),
			},
		},
	} {
		var h Health
		if err := h.AddProc(c.text); err != nil || h != c.want {
			t.Errorf("%s: %v\ngot  %+v\nwant %+v", name, err, h, c.want)
		}
	}
	for _, text := range []string{"", "\n", "entries found\n", "hello world\n1 2\n", "entries found\nzz 1\n"} {
		var h Health
		if err := h.AddProc(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestUnknownIsNullInJSONAndBack(t *testing.T) {
	h := Health{Source: SourceProcfs, Count: Counted(0)}
	b, err := json.Marshal(h)
	if err != nil || !strings.Contains(string(b), `"count":0,"max":null`) {
		t.Fatalf("%v: %s", err, b)
	}
	var again Health
	if err := json.Unmarshal(b, &again); err != nil || again != h {
		t.Errorf("%v: %+v", err, again)
	}
}

func reading(s int, h Health) flannel.Reading[Health] {
	return flannel.Know(h, "test", flannel.Time{Boot: time.Duration(s) * time.Second, Session: "test"})
}

func table(count, failed, drop, early, clash uint64) Health {
	return Health{
		Count: Counted(count), Max: Counted(1000), InsertFailed: Counted(failed), Drop: Counted(drop), EarlyDrop: Counted(early),
		ClashResolve: Counted(clash),
	}
}

func TestLookAlikesAreToldApart(t *testing.T) {
	for name, c := range map[string]struct {
		was, is Health
		want    []Symptom
	}{
		"nothing":                                   {table(10, 0, 0, 0, 0), table(20, 0, 0, 0, 0), nil},
		"counters of long ago":                      {table(10, 90, 95, 80, 7), table(20, 90, 95, 80, 7), nil},
		"full, and packets are dropped":             {table(990, 0, 0, 0, 0), table(1000, 0, 9, 0, 0), []Symptom{Full}},
		"full within what is being set up":          {table(990, 0, 0, 0, 0), table(998, 0, 9, 0, 0), []Symptom{Full}},
		"full, and nothing new comes":               {table(1000, 0, 0, 0, 0), table(1000, 0, 0, 0, 0), []Symptom{Full}},
		"nearly full, and nothing is refused":       {table(960, 0, 0, 0, 0), table(960, 0, 0, 0, 0), nil},
		"full, and entries make room":               {table(1000, 0, 0, 0, 0), table(1000, 0, 0, 5, 0), []Symptom{Evicting}},
		"full, and not enough make room":            {table(1000, 0, 0, 0, 0), table(1000, 0, 3, 5, 0), []Symptom{Full, Evicting}},
		"races for a port":                          {table(10, 5, 5, 0, 0), table(20, 40, 40, 0, 0), []Symptom{PortRace}},
		"one race in a minute":                      {table(10, 5, 5, 0, 0), table(20, 6, 6, 0, 0), nil},
		"races for a port beside clashes":           {table(10, 5, 5, 0, 0), table(20, 40, 40, 0, 9), []Symptom{PortRace}},
		"clashes":                                   {table(10, 0, 0, 0, 0), table(20, 0, 0, 0, 9), []Symptom{Clash}},
		"drops for another reason, table not full":  {table(10, 0, 0, 0, 0), table(20, 0, 9, 0, 0), nil},
		"hash chains too long: inserts fail, alone": {table(10, 0, 0, 0, 0), table(20, 9, 0, 0, 0), nil},
	} {
		trend := Between(reading(1, c.was), reading(11, c.is))
		if got := Symptoms(c.is, trend); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		for _, s := range c.want {
			if s.Words(c.is, trend) == string(s) {
				t.Errorf("%s has no words", s)
			}
		}
	}
	if got := Symptoms(Health{}, Trend{}); got != nil {
		t.Errorf("of nothing known: %v", got)
	}
}

func TestATrendKnowsNoNegativeSpeedAndNoneAcrossAHole(t *testing.T) {
	a, b := reading(1, table(10, 50, 0, 0, 0)), reading(3, table(30, 5, 8, 0, 0))
	trend := Between(a, b)
	if trend.InsertFailed.Known || trend.Drop != Counted(8) || trend.Entries != 20 {
		t.Errorf("%+v", trend)
	}
	if v, ok := trend.PerSecond(trend.Drop); !ok || v != 4 {
		t.Errorf("drops per second %v, %v", v, ok)
	}
	if _, ok := trend.PerSecond(trend.InsertFailed); ok {
		t.Error("a counter that fell has a speed")
	}
	hole := flannel.Miss[Health](flannel.Unreadable, "x", "", a.At)
	if Between(hole, b) != (Trend{}) || Between(b, a) != (Trend{}) {
		t.Error("there is a trend across a hole, or backwards")
	}
	if d, ok := trend.FullIn(b.Value); !ok || d != 97*time.Second {
		t.Errorf("full in %v, %v", d, ok)
	}
	if _, ok := Between(b, reading(5, table(20, 0, 0, 0, 0))).FullIn(b.Value); ok {
		t.Error("a table that shrinks will be full")
	}
}
