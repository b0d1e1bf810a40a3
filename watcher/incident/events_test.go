package incident

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// damages are changes of a healthy node and the events that they give, the same by polling and by announcement.
var damages = []struct {
	name string
	do   func(w *world)
	want []EventKind
	text string // of the first
}{
	{
		"emptied", func(w *world) { w.rules[nft].Chain(masq).Entries = nil },
		[]EventKind{EventEmptied},
		"v4 nat FLANNEL-POSTRTG emptied, −6 rules",
	},
	{"a rule goes", func(w *world) {
		c := w.rules[nft].Chain(masq)
		c.Entries = slices.Delete(slices.Clone(c.Entries), 2, 3)
	}, []EventKind{EventChanged}, "v4 nat FLANNEL-POSTRTG changed, +0 −1 rule"},
	{"two rules change places", func(w *world) {
		c := w.rules[nft].Chain(masq)
		c.Entries = slices.Clone(c.Entries)
		w.handle++
		moved := c.Entries[1]
		moved.Handle = w.handle
		c.Entries = slices.Insert(slices.Delete(c.Entries, 1, 2), 4, moved)
	}, []EventKind{EventChanged}, "in another order"},
	{"a rule becomes the first", func(w *world) {
		c := w.rules[nft].Chain(masq)
		again := c.Entries[3]
		w.handle++
		again.Handle = w.handle
		c.Entries = append([]flannel.Entry{again}, c.Entries...)
	}, []EventKind{EventChanged}, "changed, +1 −0 rules"},
	{
		"the jump goes", func(w *world) { w.rules[nft].Chain(baseOf(masq)).Entries = nil },
		[]EventKind{EventHookLost},
		"lost its jump",
	},
	{"a second jump comes", func(w *world) {
		c := w.rules[nft].Chain(baseOf(masq))
		again := c.Entries[0]
		w.handle++
		again.Handle = w.handle
		c.Entries = append(slices.Clone(c.Entries), again)
	}, []EventKind{EventChanged}, "jumped to 2 times, before 1"},
	{"the chain goes", func(w *world) {
		w.rules[nft].Chain(baseOf(masq)).Entries = nil
		*w.rules[nft].Chain(masq) = flannel.Chain{ID: masq}
	}, []EventKind{EventDeleted, EventHookLost}, "deleted, −6 rules"},
	{"the table goes", func(w *world) {
		rs := w.rules[nft]
		rs.Tables = slices.DeleteFunc(slices.Clone(rs.Tables), func(id flannel.TableID) bool { return id == masq.TableID() })
		*rs.Chain(masq), *rs.Chain(baseOf(masq)) = flannel.Chain{ID: masq}, flannel.Chain{ID: baseOf(masq)}
	}, []EventKind{EventDeleted, EventHookLost}, "deleted"},
	{"rules are written anew", func(w *world) { w.fill(nft) }, []EventKind{EventRestarted, EventRestarted}, "counts from 0 again"},
	{"a rule of somebody in POSTROUTING is none of our business", func(w *world) {
		c := w.rules[nft].Chain(baseOf(masq))
		r, _ := flannel.ParseRule("-s 172.17.0.0/16 -j MASQUERADE")
		c.Entries = append([]flannel.Entry{w.entry(nft, r)}, c.Entries...)
	}, nil, ""},
}

func TestAChangeGivesItsEventWhetherPolledOrAnnounced(t *testing.T) {
	for _, c := range damages {
		for _, way := range []string{"polled", "announced, then read", "read, then announced"} {
			t.Run(c.name+" "+way, func(t *testing.T) {
				w := newWorld(t, nft)
				w.wait(time.Second).read(nft)
				w.change(func() { c.do(w) }).wait(time.Second)
				switch way {
				case "polled":
					w.read(nft)
				case "announced, then read":
					w.announce("somebody").wait(time.Millisecond).read(nft)
				default:
					w.read(nft).announce("somebody")
				}
				w.wantEvents(c.want...)
				if len(c.want) == 0 {
					return
				}
				first := w.view().Events[0]
				if !strings.Contains(first.Text, c.text) {
					t.Errorf("text %q, want %q", first.Text, c.text)
				}
				if named := first.Who != nil && first.Who.Comm == "somebody"; named != (way != "polled") {
					t.Errorf("who %+v", first.Who)
				}
				w.refill(nft).wait(time.Second).read(nft)
				w.wait(time.Second).read(nft)
				if state := w.chain(masq).State; state != flannel.ChainOK {
					t.Errorf("after a repair: %s", state)
				}
			})
		}
	}
}

func TestARuleThatNobodyKnowsIsLeftToTheNextRead(t *testing.T) {
	w := newWorld(t, nft)
	stranger, _ := flannel.ParseRule("-p tcp -j ACCEPT")
	w.change(func() {
		c := w.rules[nft].Chain(masq)
		c.Entries = append(slices.Clone(c.Entries), w.entry(nft, stranger))
	}).wait(time.Second).announce("iptables")
	w.wantEvents()
	w.wait(time.Millisecond).read(nft)
	w.wantEvents(EventChanged)
	if e := w.view().Events[0]; e.Who == nil || e.Who.Comm != "iptables" {
		t.Errorf("who %+v", e.Who)
	}
}

func TestARulesetReadBeforeAnAnnouncedChangeDoesNotUndoIt(t *testing.T) {
	w := newWorld(t, nft)
	before := *w.rules[nft]
	w.rules[nft] = &flannel.Ruleset{}
	*w.rules[nft] = before.Clone()
	w.flush(masq).wait(time.Second).announce("iptables")
	w.s.Apply(&Observation{Time: w.now.Add(time.Millisecond), Rules: &RulesRead{nft, flannel.Know(before, "kernel", w.now)}})
	w.wantEvents(EventEmptied)
	// Much later an older number is that of a namespace that was made anew.
	w.s.Apply(&Observation{Time: w.now.Add(time.Minute), Rules: &RulesRead{nft, flannel.Know(before, "kernel", w.now)}})
	w.wantEvents(EventEmptied, EventRefilled)
}

func TestAChainEmptyBetweenTwoReadsIsTold(t *testing.T) {
	w := newWorld(t, nft)
	w.wait(time.Second).read(nft)
	emptied := w.flush(masq).last
	filled := w.refill(nft).last
	w.wait(time.Millisecond).read(nft) // it sees what came after both
	w.wantEvents(EventRestarted, EventRestarted)
	at := w.now.Add(-900 * time.Microsecond)
	w.s.Apply(&Observation{Time: at, Commit: emptied})
	w.s.Apply(&Observation{Time: at.Add(300 * time.Microsecond), Commit: filled})
	w.wait(time.Second).read(nft)
	w.wantEvents(EventRestarted, EventRestarted, EventEmptied, EventRefilled)
	if i := w.only(); i.Open || !i.Complete || i.Duration(w.now) != 300*time.Microsecond || i.By == nil {
		t.Errorf("%+v", i)
	}

	// Deleted and made anew, overtaken too.
	gone := w.change(func() { *w.rules[nft].Chain(fwd) = flannel.Chain{ID: fwd} }).last
	back := w.refill(nft).last
	w.wait(time.Minute).read(nft).announceAll(gone, back)
	if list := w.view().Incidents; len(list) != 2 || list[1].Open || list[1].Spells[0].Chain != fwd {
		t.Errorf("%+v", list)
	}
}

func (w *world) announceAll(list ...*Commit) {
	for _, c := range list {
		w.s.Apply(&Observation{Time: w.now, Commit: c})
	}
}

func TestWhoHeldTheLegacyLockSinceTheLastReadIsTheAuthor(t *testing.T) {
	for _, c := range []struct {
		before, since []string
		want          string
	}{
		{nil, []string{"iptables"}, "iptables"},
		{[]string{"old"}, []string{"iptables"}, "iptables"},
		{nil, []string{"a", "b"}, ""},
		{[]string{"old"}, nil, ""},
	} {
		w := newWorld(t, old)
		hold := func(comms []string) {
			for _, comm := range comms {
				w.wait(time.Second)
				w.s.Apply(&Observation{Time: w.now, Commit: &Commit{Backend: old, Who: Who{Comm: comm}}})
			}
		}
		hold(c.before)
		w.wait(time.Second).read(old)
		w.flush(legacy)
		hold(c.since)
		w.wait(time.Millisecond).read(old)
		got := ""
		if who := w.view().Events[0].Who; who != nil {
			got = who.Comm
		}
		if got != c.want {
			t.Errorf("%q then %q: author %q, want %q", c.before, c.since, got, c.want)
		}
	}
}

func TestTwoWritersBetweenReadsLeaveTheAuthorOpen(t *testing.T) {
	for _, c := range []struct{ first, second, want string }{{"iptables", "nft", ""}, {"nft", "nft", "nft"}} {
		w := newWorld(t, nft)
		stranger, _ := flannel.ParseRule("-p tcp -j ACCEPT")
		add := func() {
			ch := w.rules[nft].Chain(masq)
			ch.Entries = append(slices.Clone(ch.Entries), w.entry(nft, stranger))
		}
		w.change(add).announce(c.first)
		w.change(add).announce(c.second)
		w.wait(time.Second).read(nft)
		got := ""
		if who := w.view().Events[0].Who; who != nil {
			got = who.Comm
		}
		if got != c.want {
			t.Errorf("%s then %s: author %q, want %q", c.first, c.second, got, c.want)
		}
	}
}

func TestReadersThatFailAndComeBackAreTold(t *testing.T) {
	w := newWorld(t, nft)
	w.wait(time.Second).fail(nft).wait(time.Second).fail(nft).wait(time.Second).read(nft)
	w.wantEvents(EventReadFail, EventReadBack)
	fault := func(why string) {
		w.s.Apply(&Observation{Time: w.now, Fault: &Fault{Reader: "namespace", Why: why}})
	}
	fault("")
	fault("it is gone")
	fault("it is still gone")
	if f := w.view().Faults; len(f) != 1 || f[0].Why != "it is still gone" {
		t.Errorf("faults %+v", f)
	}
	fault("")
	w.wantEvents(EventReadFail, EventReadBack, EventReadFail, EventReadBack)
	if f := w.view().Faults; len(f) != 0 {
		t.Errorf("faults %+v", f)
	}
}

func TestLostAnnouncementsAreTold(t *testing.T) {
	w := newWorld(t, nft)
	w.s.Apply(&Observation{Time: w.now, Commit: &Commit{Backend: nft, Generation: w.gen + 3, Lost: true}})
	w.wantEvents(EventUncertain)
}

func TestABackendThatVanishesTakesItsChainsAlong(t *testing.T) {
	w := newWorld(t, old)
	r := flannel.Miss[flannel.Ruleset](flannel.Absent, "ip_tables is not loaded", "", w.now)
	w.wait(time.Second)
	w.s.Apply(&Observation{Time: w.now, Rules: &RulesRead{old, r}})
	if got := w.events(); !slices.Contains(got, EventDeleted) {
		t.Errorf("events %q", got)
	}
}

func TestBareRulesOfAnOldGenerationHaveEventsAndRatesOfTheirOwn(t *testing.T) {
	w := newWorld(t, old)
	bare := func() {
		rs := w.rules[old]
		for _, want := range flannel.Expected(networks, subnets, flannel.GenV0162, options, old, flannel.IPv4) {
			c := rs.Chain(want.ID)
			own := rs.Chain(flannel.MasqChain(old, flannel.IPv4))
			if want.ID.Table == flannel.TableFilter {
				own = rs.Chain(flannel.ForwardChain(old, flannel.IPv4))
			}
			*own = flannel.Chain{ID: own.ID}
			other, _ := flannel.ParseRule("-s 172.17.0.0/16 -j MASQUERADE")
			c.Entries = []flannel.Entry{w.entry(old, other)}
			for _, r := range want.Rules {
				c.Entries = append(c.Entries, w.entry(old, r))
			}
		}
	}
	bare()
	w.s = NewState()
	n := flannel.Node{Networks: flannel.Know(networks, "/run/flannel/subnet.env", w.now)}
	n.Subnets = flannel.Know(subnets, "/run/flannel/subnet.env", w.now)
	w.s.Apply(&Observation{Time: w.now, Node: &n})
	w.procs(w.flanneld(time.Hour))
	w.read(old)
	base := baseOf(legacy)
	w.count(base, 10).wait(time.Second).read(old)
	w.count(base, 10).wait(time.Second).read(old)
	if c := w.chain(base); c.State != flannel.ChainOK || c.Rate.Packets != 40 || len(c.Rules) != 4 || c.Rules[3].Rate.Packets != 10 {
		t.Errorf("%+v", c)
	}
	w.change(func() { w.rules[old].Chain(base).Entries = slices.Clone(w.rules[old].Chain(base).Entries[:1]) })
	w.wait(time.Second).read(old)
	if got := w.events(); !slices.Contains(got, EventEmptied) {
		t.Errorf("events %q", got)
	}
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	w := newWorld(t, nft)
	for i := range 3 * maxEvents / 2 {
		w.s.note(Event{Text: fmt.Sprint(i)})
	}
	v := w.view()
	if n := len(v.Events); n > maxEvents || v.Events[n-1].Text != fmt.Sprint(3*maxEvents/2-1) {
		t.Errorf("%d events, the last %q", n, v.Events[n-1].Text)
	}
	for range 2 * maxFaults {
		w.s.Apply(&Observation{Time: w.now, Fault: &Fault{Reader: fmt.Sprint(len(w.s.faults)), Why: "no"}})
	}
	if n := len(w.view().Faults); n > maxFaults {
		t.Errorf("%d faults", n)
	}
	c := w.s.chains[masq]
	for i := range 3 * maxSpans {
		d := c.diff
		d.State = []flannel.ChainState{flannel.ChainOK, flannel.ChainEmpty}[i%2]
		c.setState(d, w.now)
	}
	if len(c.lane) > maxSpans {
		t.Errorf("%d spans in a lane", len(c.lane))
	}
	for i := range 2 * maxChains {
		w.s.track(flannel.ChainID{Backend: nft, Name: fmt.Sprint(i)})
	}
	if len(w.s.chains) > maxChains {
		t.Errorf("%d chains", len(w.s.chains))
	}
	for range 3 * maxCommits {
		w.s.noteAuthor(&Commit{Backend: nft, Generation: 1}, w.now)
	}
	if len(w.s.commits) > maxCommits {
		t.Errorf("%d commits", len(w.s.commits))
	}
}

func TestAChainWithMoreRulesThanFollowedStillReads(t *testing.T) {
	w := newWorld(t, nft)
	w.change(func() {
		c := w.rules[nft].Chain(fwd)
		for range 2 * maxRules {
			c.Entries = append(c.Entries, w.entry(nft, c.Entries[0].Rule))
		}
	}).wait(time.Second).read(nft)
	w.count(fwd, 1).wait(time.Second).read(nft)
	if c := w.chain(fwd); c.Rate.Packets != maxRules {
		t.Errorf("rate %+v", c.Rate)
	}
}

func TestWhatTheSenderKeepsIsNotKept(t *testing.T) {
	w := newWorld(t, nft)
	procs := []diagnose.Process{{
		PID: 7, Kind: diagnose.ProcFlanneld, Comm: "flanneld", Cmdline: []string{"flanneld", "-v=2"},
		Env: map[string]string{"FLANNELD_IFACE": "eth0"}, Started: w.now,
	}}
	w.procs(procs...)
	procs[0].Cmdline[1], procs[0].Env["FLANNELD_IFACE"] = "x", "x"
	if p := w.s.facts.Procs.Value[0]; p.Cmdline[1] != "-v=2" || p.Env["FLANNELD_IFACE"] != "eth0" {
		t.Error("the state shares a process with its sender")
	}
	origin := Origin{Parents: Fact[[]Ancestor]{Value: []Ancestor{{Comm: "bash"}}}}
	c := Commit{Backend: nft, Generation: 4900, Who: Who{Comm: "nft", Origin: &origin}}
	w.s.Apply(&Observation{Time: w.now, Commit: &c})
	origin.Parents.Value[0].Comm = "x"
	if got := w.s.commits[len(w.s.commits)-1].who.Origin.Parents.Value[0].Comm; got != "bash" {
		t.Errorf("the state shares an origin with its sender: %q", got)
	}
	links := []diagnose.Link{{Name: "flannel.1"}}
	r := flannel.Know(links, "", w.now)
	w.s.Apply(&Observation{Time: w.now, Links: &r})
	links[0].Name = "x"
	if w.s.facts.Links.Value[0].Name != "flannel.1" {
		t.Error("the state shares links with their sender")
	}
}
