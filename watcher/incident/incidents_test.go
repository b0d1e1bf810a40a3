package incident

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// by is an author with his descent, nearest first.
func by(comm string, parents ...string) Who {
	o := Origin{}
	for _, p := range parents {
		o.Parents.Value = append(o.Parents.Value, Ancestor{Comm: p})
	}
	return Who{PID: 48213, Comm: comm, Origin: &o}
}

// announceBy announces the last change as the work of somebody.
func (w *world) announceBy(who Who) *world {
	w.last.Who = who
	w.s.Apply(&Observation{Time: w.now, Commit: w.last})
	return w
}

// only gives the one incident there is.
func (w *world) only() Incident {
	w.t.Helper()
	list := w.view().Incidents
	if len(list) != 1 {
		w.t.Fatalf("%d incidents, want one: %+v", len(list), list)
	}
	return list[0]
}

func TestAnEmptiedChainIsAnIncidentFromTheCommitToTheRepair(t *testing.T) {
	w := newWorld(t, nft)
	w.wait(time.Second).read(nft)
	w.wait(300 * time.Millisecond).flush(masq).announceBy(by("iptables", "bash", "sshd"))
	start := w.now
	w.wait(4200 * time.Millisecond)
	open := w.only()
	if !open.Open || open.Duration(w.now) != 4200*time.Millisecond || open.Kind != KindFlushed ||
		open.Severity != diagnose.Critical {
		t.Errorf("open: %+v", open)
	}
	if !strings.Contains(open.Effects[0], "new connections of pods in 10.244.1.0/24 to the outside left with pod addresses") {
		t.Errorf("effects %q", open.Effects)
	}
	w.wait(686 * time.Millisecond).refill(nft).announceBy(by("iptables-restor", "flanneld"))
	w.wait(time.Second).read(nft)
	i := w.only()
	if i.Open || i.Start != start || i.Duration(w.now) != 4886*time.Millisecond || !i.Complete || i.Verified.IsZero() {
		t.Errorf("closed: %+v", i)
	}
	if i.By == nil || i.By.Comm != "iptables" || i.RecoveredBy == nil || i.RecoveredBy.Comm != "iptables-restor" {
		t.Errorf("by %+v, recovered by %+v", i.By, i.RecoveredBy)
	}
	if len(i.Spells) != 1 || i.Spells[0].Lost != 6 || i.Objects()[0] != masq {
		t.Errorf("spells %+v", i.Spells)
	}
	if open.Open != true || len(open.Spells) != 1 || !open.Spells[0].Open {
		t.Error("the picture of before has changed")
	}
}

func TestNoTimeAtAllIsAGapOnlyInTwoCommits(t *testing.T) {
	w := newWorld(t, nft)
	w.wait(time.Second).refill(nft).announce("iptables-restor").read(nft)
	if n := len(w.view().Incidents); n != 0 {
		t.Errorf("one commit: %d incidents", n)
	}
	w.wait(time.Second).flush(masq).announce("iptables")
	w.refill(nft).announce("iptables-restor").read(nft)
	if i := w.only(); i.Open || i.Duration(w.now) != 0 || !i.Complete {
		t.Errorf("two commits: %+v", i)
	}
	w.wantEvents(EventRestarted, EventRestarted, EventEmptied, EventRefilled, EventRestarted)
}

func TestASpellSeenOnlyByPollingIsAnIncidentToo(t *testing.T) {
	for _, b := range flannel.Backends {
		w := newWorld(t, b)
		w.wait(time.Second).read(b)
		w.flush(flannel.MasqChain(b, flannel.IPv4)).wait(time.Second).read(b)
		w.refill(b).wait(time.Second).read(b)
		if i := w.only(); i.Duration(w.now) != time.Second || !i.Complete || i.By != nil {
			t.Errorf("%s: %+v", b, i)
		}
	}
}

func TestAStartOfFlanneldIsOneStartupWindow(t *testing.T) {
	for _, known := range []bool{true, false} {
		w := newWorld(t, nft)
		who := func(comm string) Who {
			if known {
				return by(comm, "flanneld")
			}
			return Who{Comm: comm}
		}
		w.wait(time.Second).read(nft)
		w.procs() // killed
		w.wait(500 * time.Millisecond)
		started := w.flanneld(0)
		w.wait(200 * time.Millisecond)
		w.flush(masq).announceBy(who("iptables")).wait(5 * time.Millisecond)
		w.flush(fwd).announceBy(who("iptables")).wait(30 * time.Millisecond)
		w.change(func() { w.fillOne(fwd) }).announceBy(who("iptables-restor")).wait(60 * time.Millisecond)
		w.change(func() { w.fillOne(masq) }).announceBy(who("iptables-restor")).wait(300 * time.Millisecond)
		w.procs(started)
		w.read(nft)
		i := w.only()
		if i.Kind != KindStartup || i.Duration(w.now) != 95*time.Millisecond || len(i.Spells) != 2 || !i.Complete {
			t.Errorf("descent known %v: %+v", known, i)
		}
	}
}

// fillOne writes one chain anew.
func (w *world) fillOne(id flannel.ChainID) {
	for _, want := range flannel.Expected(networks, subnets, flannel.GenV0210, options, id.Backend, flannel.IPv4) {
		if want.ID != id {
			continue
		}
		c := w.rules[id.Backend].Chain(id)
		*c = flannel.Chain{ID: id, Present: true}
		for _, r := range want.Rules {
			c.Entries = append(c.Entries, w.entry(id.Backend, r))
		}
	}
}

func TestAStoppingFlanneldThatTakesItsRulesAlongIsATeardown(t *testing.T) {
	w := newWorld(t, nft)
	w.wait(time.Second).read(nft)
	takeDown := func(id flannel.ChainID) {
		w.change(func() {
			w.rules[nft].Chain(id).Entries = nil
			w.rules[nft].Chain(baseOf(id)).Entries = nil
		}).announce("iptables-restor").wait(20 * time.Millisecond)
	}
	takeDown(masq)
	takeDown(fwd)
	w.wait(800 * time.Millisecond)
	w.procs()
	w.read(nft)
	if i := w.only(); i.Kind != KindTeardown || !i.Open {
		t.Errorf("while it is down: %+v", i)
	}
	if got := w.view().Findings; len(got) == 0 || got[0].ID != "chain-empty" || got[0].Severity != diagnose.Critical {
		t.Errorf("while it is down: %+v", got)
	}
	w.wait(2 * time.Second)
	w.procs(w.flanneld(100 * time.Millisecond))
	w.wait(300 * time.Millisecond).refill(nft).announce("iptables-restor").read(nft)
	if i := w.only(); i.Kind != KindTeardown || i.Open || i.Duration(w.now) != 3140*time.Millisecond {
		t.Errorf("after it: %+v", i)
	}
}

func TestATeardownSoonAfterAStartIsNotTakenForTheStart(t *testing.T) {
	w := newWorld(t, nft)
	old := w.flanneld(3 * time.Second)
	w.procs(old)
	w.wait(time.Second).read(nft)
	who := by("iptables-restor", "flanneld")
	who.Origin.Parents.Value[0].PID = old.PID
	w.change(func() {
		w.rules[nft].Chain(masq).Entries = nil
		w.rules[nft].Chain(baseOf(masq)).Entries = nil
	}).announceBy(who).wait(500 * time.Millisecond)
	w.procs()
	if i := w.only(); i.Kind != KindTeardown {
		t.Errorf("it is a %s", i.Kind)
	}
}

func TestKindsOfIncidents(t *testing.T) {
	stranger := by("iptables", "bash")
	foreign, _ := flannel.ParseRule("-s 172.17.0.0/16 -j MASQUERADE")
	wipe := func(rs *flannel.Ruleset) {
		rs.Tables = nil
		for i := range rs.Chains {
			rs.Chains[i] = flannel.Chain{ID: rs.Chains[i].ID}
		}
	}
	for _, c := range []struct {
		name   string
		in     flannel.Backend
		do     func(w *world)
		want   Kind
		spells int
	}{
		{"one chain flushed", nft, func(w *world) { w.rules[nft].Chain(masq).Entries = nil }, KindFlushed, 1},
		{"both chains flushed in one commit", nft, func(w *world) {
			w.rules[nft].Chain(masq).Entries, w.rules[nft].Chain(fwd).Entries = nil, nil
		}, KindFlushed, 2},
		{"the jump deleted", nft, func(w *world) {
			c := w.rules[nft].Chain(baseOf(masq))
			c.Entries = slices.Clone(c.Entries[:1])
		}, KindHookLost, 1},
		{"one rule deleted", nft, func(w *world) {
			c := w.rules[nft].Chain(masq)
			c.Entries = slices.Clone(c.Entries[:5])
		}, KindPartial, 1},
		{"the nat table flushed", nft, func(w *world) {
			w.rules[nft].Chain(masq).Entries, w.rules[nft].Chain(baseOf(masq)).Entries = nil, nil
		}, KindRulesetFlush, 1},
		{"the ruleset flushed", nft, func(w *world) { wipe(w.rules[nft]) }, KindRulesetFlush, 2},
		{"the native chain flushed", flannel.Nftables, func(w *world) {
			w.rules[flannel.Nftables].Chain(native).Entries = nil
		}, KindFlushed, 1},
		{"the native table deleted", flannel.Nftables, func(w *world) { wipe(w.rules[flannel.Nftables]) }, KindTableGone, 2},
		{"legacy flushed with everything", old, func(w *world) {
			w.rules[old].Chain(legacy).Entries, w.rules[old].Chain(baseOf(legacy)).Entries = nil, nil
		}, KindRulesetFlush, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.in)
			if c.in != flannel.Nftables {
				w.change(func() {
					base := w.rules[c.in].Chain(baseOf(flannel.MasqChain(c.in, flannel.IPv4)))
					base.Entries = append([]flannel.Entry{w.entry(c.in, foreign)}, base.Entries...)
				}).wait(time.Second).read(c.in)
			}
			w.wait(time.Second).read(c.in)
			w.change(func() { c.do(w) })
			if c.in != old {
				w.announceBy(stranger)
			}
			w.wait(time.Millisecond).read(c.in)
			i := w.only()
			if i.Kind != c.want || len(i.Spells) != c.spells || !i.Open {
				t.Errorf("%s with %d spells, want %s with %d: %+v", i.Kind, len(i.Spells), c.want, c.spells, i)
			}
			w.wait(time.Second).refill(c.in).read(c.in)
			w.wait(time.Second).read(c.in)
			if i := w.only(); i.Open || !i.Complete || i.Verified.IsZero() {
				t.Errorf("repaired: %+v", i)
			}
		})
	}
}

func TestAChainThatIsDamagedAgainAndAgainIsRememberedForSomeMinutes(t *testing.T) {
	for _, c := range []struct {
		name  string
		by    Who
		times int
		every time.Duration
		want  diagnose.Flap
	}{
		{"every minute", by("iptables", "cron"), 4, time.Minute, diagnose.Flap{Times: 4, In: 5 * time.Minute, By: "iptables"}},
		{"twice", by("iptables", "cron"), 2, time.Minute, diagnose.Flap{}},
		{"seldom", by("iptables", "cron"), 6, 4 * time.Minute, diagnose.Flap{}},
		{"by flanwatch itself", by("flanwatch", "sh"), 4, time.Minute, diagnose.Flap{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, nft)
			for range c.times {
				w.wait(c.every - 4*time.Second).flush(masq).announceBy(c.by)
				w.wait(4 * time.Second).refill(nft).announceBy(by("iptables-restor", "flanneld"))
			}
			_, h := w.s.Facts(w.now)
			if got := h.Flapping[masq]; got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			_, h = w.s.Facts(w.now.Add(10 * time.Minute))
			if len(h.Flapping) != 0 {
				t.Errorf("ten minutes later: %+v", h.Flapping)
			}
		})
	}
}

func TestDamageAgainAndAgainIsFlapping(t *testing.T) {
	w := newWorld(t, nft)
	for range 4 {
		w.wait(5 * time.Second).flush(masq).announceBy(by("iptables", "cron"))
		w.wait(4 * time.Second).refill(nft).announceBy(by("iptables-restor", "flanneld"))
	}
	var kinds []Kind
	list := w.view().Incidents
	for _, i := range list {
		kinds = append(kinds, i.Kind)
	}
	if !slices.Equal(kinds, []Kind{KindFlushed, KindFlushed, KindFlapping, KindFlapping}) {
		t.Errorf("kinds %q", kinds)
	}
	if !slices.Equal(list[1].SameCause, []int{1}) || !slices.Equal(list[3].SameCause, []int{3}) {
		t.Errorf("same cause: %v, %v", list[1].SameCause, list[3].SameCause)
	}
	totals := Totals(list)
	if len(totals) != 2 || totals[0] != (Total{KindFlushed, 2, 4 * time.Second, 4 * time.Second, 4 * time.Second}) {
		t.Errorf("totals %+v", totals)
	}
}

func TestASwitchOfModeIsResidueAndNoOutage(t *testing.T) {
	w := newWorld(t, nft)
	w.wait(time.Second).read(nft)
	w.flush(masq).announceBy(by("iptables", "flanneld")).wait(395 * time.Millisecond)
	w.change(func() { w.fill(flannel.Nftables) }).announceBy(by("nft", "flanneld")).read(nft).read(flannel.Nftables)
	i := w.only()
	if i.Kind != KindResidue || i.Open || i.Severity != diagnose.Info || i.Duration(w.now) != 395*time.Millisecond {
		t.Errorf("%+v", i)
	}
	w.wait(time.Minute).read(nft).read(flannel.Nftables)
	if n := len(w.view().Incidents); n != 1 {
		t.Errorf("%d incidents a minute later", n)
	}
}

func TestTheRepairPeriodIsLearntFromRepairsByFlannel(t *testing.T) {
	w := newWorld(t, nft)
	damage := func(d time.Duration, who Who) {
		w.wait(time.Minute).flush(masq).announceBy(by("iptables", "bash")).wait(d).refill(nft).announceBy(who)
	}
	damage(10*time.Minute, by("iptables-restor", "flanneld")) // no period is that long
	damage(50*time.Second, by("iptables-restor", "bash"))     // a person did it
	if got := w.s.history(w.now).Resync; got != 0 {
		t.Errorf("period %v before any repair", got)
	}
	damage(40*time.Second, by("iptables-restor", "flanneld"))
	damage(20*time.Second, by("iptables-restor", "flanneld"))
	if got := w.s.history(w.now).Resync; got != 40*time.Second {
		t.Errorf("period %v, want that of the longest damage", got)
	}
}

func TestSeparateDamageIsSeparate(t *testing.T) {
	w := newWorld(t, nft)
	w.wait(time.Second).flush(fwd).announce("iptables").wait(10 * time.Second)
	w.flush(masq).announce("iptables").wait(time.Second)
	if n := len(w.view().Incidents); n != 2 {
		t.Errorf("%d incidents ten seconds apart, want 2", n)
	}
}

func TestAnOutageOlderThanTheWatchIsMarkedSo(t *testing.T) {
	w := newWorld(t, nft)
	w.rules[nft].Chain(masq).Entries = nil
	w.s = NewState()
	n := flannel.Node{Networks: flannel.Know(networks, "/run/flannel/subnet.env", w.now), Subnets: flannel.Know(subnets, "", w.now)}
	w.s.Apply(&Observation{Time: w.now, Node: &n})
	w.read(nft)
	if n := len(w.view().Incidents); n != 0 {
		t.Errorf("%d incidents before anybody knows whether Flannel runs", n)
	}
	w.procs(w.flanneld(time.Hour))
	if i := w.only(); !i.Before || !i.Open {
		t.Errorf("%+v", i)
	}
}

func TestTimesAreUncertainWhereAnnouncementsWereLost(t *testing.T) {
	w := newWorld(t, nft)
	lose := func() {
		w.s.Apply(&Observation{Time: w.now, Commit: &Commit{Backend: nft, Generation: w.gen, Lost: true}})
	}
	w.wait(time.Second).flush(masq)
	lose()
	w.read(nft)
	if i := w.only(); !i.Uncertain {
		t.Error("its beginning is not exact")
	}
	w.wait(time.Minute).refill(nft).announce("x").read(nft)
	w.wait(time.Minute).flush(masq).announce("x").read(nft)
	if i := w.view().Incidents[1]; i.Uncertain {
		t.Error("a later one is exact again")
	}
	lose()
	if i := w.view().Incidents[1]; !i.Uncertain {
		t.Error("its end is not exact")
	}
}

func TestEventsFitJSON(t *testing.T) {
	w := newWorld(t, nft)
	w.wait(time.Second).flush(masq).announce("iptables")
	w.fail(nft)
	text, err := json.Marshal(w.view().Events)
	if err != nil || !strings.Contains(string(text), `"who":{"pid":48213,"comm":"iptables"}`) || strings.Contains(string(text), `"chain":{"backend":0`) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestALateAuthorIsNamedInTheIncident(t *testing.T) {
	w := newWorld(t, nft)
	w.wait(time.Second).flush(masq).read(nft).announce("iptables")
	w.wait(time.Second).refill(nft).read(nft).announce("iptables-restor")
	if i := w.only(); i.By == nil || i.By.Comm != "iptables" || i.RecoveredBy == nil || i.RecoveredBy.Comm != "iptables-restor" {
		t.Errorf("%+v", i)
	}
}

func TestAnIncidentThatFlannelNeverCameBackFromIsNotComplete(t *testing.T) {
	w := newWorld(t, nft)
	w.change(func() {
		w.rules[nft].Chain(masq).Entries, w.rules[nft].Chain(baseOf(masq)).Entries = nil, nil
	}).announce("iptables-restor")
	w.procs()
	for range 11 {
		w.wait(time.Minute).read(nft)
	}
	if i := w.only(); i.Open || i.Complete || i.Kind != KindTeardown {
		t.Errorf("%+v", i)
	}
}

func TestIncidentsAreBoundedAndFitJSON(t *testing.T) {
	w := newWorld(t, nft)
	for range maxIncidents + 10 {
		w.wait(10 * time.Second).flush(masq).announce("iptables").wait(time.Second).refill(nft).announce("x")
	}
	list := w.view().Incidents
	if len(list) > maxIncidents || list[len(list)-1].Number != maxIncidents+10 {
		t.Errorf("%d incidents, the last is number %d", len(list), list[len(list)-1].Number)
	}
	text, err := json.Marshal(list[0])
	if err != nil || !strings.Contains(string(text), `"chain":{"backend":"iptables-nft","family":"ip","table":"nat"`) {
		t.Errorf("%s, %v", text, err)
	}
}
