package nft

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/lab/labtest"
)

// heard is a commit and when it came.
type heard struct {
	*incident.Commit
	at time.Time
}

// listen hears commits until the end of the test.
func listen(t testing.TB, e *Events) <-chan heard {
	t.Helper()
	commits, done := make(chan heard, 1000), make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := e.Next(time.Time{})
			if errors.Is(err, ErrWoken) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			commits <- heard{c, time.Now()}
		}
	}()
	t.Cleanup(func() {
		if err := e.Wake(); err != nil {
			t.Error(err)
		}
		<-done
	})
	return commits
}

// next waits for a commit that changed something of Flannel's.
func next(t testing.TB, commits <-chan heard) heard {
	t.Helper()
	for {
		select {
		case c := <-commits:
			if c.Lost || len(c.Changes)+len(c.Tables) > 0 {
				return c
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no commit was heard of")
		}
	}
}

// describe writes a commit in one line: what happened to each table and chain, and how many rules it held afterwards.
func describe(c *incident.Commit) string {
	var parts []string
	mark := func(created, deleted bool) string {
		return map[[2]bool]string{{true, false}: "created ", {false, true}: "deleted "}[[2]bool{created, deleted}]
	}
	for _, t := range c.Tables {
		parts = append(parts, fmt.Sprintf("%stable %s %s", mark(t.Created, t.Deleted), t.Table.Family, t.Table.Name))
	}
	for _, ch := range c.Changes {
		parts = append(parts, fmt.Sprintf("%s%s -%d+%d=%d",
			mark(ch.Created, ch.Deleted), ch.Chain.Short(), len(ch.Removed), len(ch.Added), ch.Rules))
	}
	slices.Sort(parts)
	if c.Lost {
		parts = append([]string{"lost"}, parts...)
	}
	return strings.Join(parts, ", ")
}

func TestCommitsSayWhatHappenedToEachChainAndWhoDidIt(t *testing.T) {
	n := newNode(t)
	n.Feed(nativeTable, "nft", "-f", "-")
	commits := listen(t, subscribeIn(t, n))
	swap := strings.ReplaceAll(strings.ReplaceAll(masq, "[", "#["), "-A FLANNEL", "-D FLANNEL")
	repair := "*nat\n" + plain(swap) + plain(masq) + "COMMIT\n"
	for _, step := range []struct {
		name, command, stdin string
		who                  string
		backend              flannel.Backend
		want                 []string
	}{
		{
			"a foreign change before", "iptables-nft -t nat -N OTHER", "", "", 0, nil,
		}, {
			"Flannel's repair removes and adds in one commit", "iptables-nft-restore --noflush", repair,
			"iptables-nft-re", flannel.IptablesNft,
			[]string{"v4 nat FLANNEL-POSTRTG -6+6=6"},
		}, {
			"a counter zeroed", "iptables-nft -t nat -Z FLANNEL-POSTRTG 1", "",
			"iptables-nft", flannel.IptablesNft,
			[]string{"v4 nat FLANNEL-POSTRTG -1+1=6"},
		}, {
			"a rule replaced", "iptables-nft -t nat -R FLANNEL-POSTRTG 2 -j RETURN", "",
			"iptables-nft", flannel.IptablesNft,
			[]string{"v4 nat FLANNEL-POSTRTG -1+1=6"},
		}, {
			"flushed by iptables", "iptables-nft -t nat -F FLANNEL-POSTRTG", "",
			"iptables-nft", flannel.IptablesNft,
			[]string{"v4 nat FLANNEL-POSTRTG -6+0=0"},
		}, {
			"filled by restore", "iptables-nft-restore --noflush", "*nat\n" + plain(masq) + "COMMIT\n",
			"iptables-nft-re", flannel.IptablesNft,
			[]string{"v4 nat FLANNEL-POSTRTG -0+6=6"},
		}, {
			"flushed and filled in one commit by restore", "iptables-nft-restore --noflush",
			"*nat\n:FLANNEL-POSTRTG - [0:0]\n" + plain(masq) + "COMMIT\n",
			"iptables-nft-re", flannel.IptablesNft,
			[]string{"v4 nat FLANNEL-POSTRTG -6+6=6"},
		}, {
			"the hook deleted", "iptables-nft -t nat -D POSTROUTING 1", "",
			"iptables-nft", flannel.IptablesNft,
			[]string{"v4 nat POSTROUTING -1+0=0"},
		}, {
			"flushed by nft, in the other family", "nft flush chain ip6 nat FLANNEL-POSTRTG", "",
			"nft", flannel.IptablesNft,
			[]string{"v6 nat FLANNEL-POSTRTG -6+0=0"},
		}, {
			"a policy", "iptables-nft -P FORWARD ACCEPT", "",
			"iptables-nft", flannel.IptablesNft,
			[]string{"v4 filter FORWARD -0+0=1"},
		}, {
			"a chain deleted", "iptables-nft -t nat -F FLANNEL-POSTRTG", "",
			"iptables-nft", flannel.IptablesNft,
			[]string{"v4 nat FLANNEL-POSTRTG -6+0=0"},
		}, {
			"and its chain", "iptables-nft -t nat -X FLANNEL-POSTRTG", "",
			"iptables-nft", flannel.IptablesNft,
			[]string{"deleted v4 nat FLANNEL-POSTRTG -0+0=0"},
		}, {
			"made again", "iptables-nft -t nat -N FLANNEL-POSTRTG", "",
			"iptables-nft", flannel.IptablesNft,
			[]string{"created v4 nat FLANNEL-POSTRTG -0+0=0"},
		}, {
			"a table deleted", "nft delete table ip6 filter", "", "nft", flannel.IptablesNft,
			[]string{"deleted table ip6 filter", "deleted v6 filter FLANNEL-FWD -2+0=0", "deleted v6 filter FORWARD -1+0=0"},
		}, {
			"native rules flushed", "nft flush chain ip flannel-ipv4 forward", "",
			"nft", flannel.Nftables,
			[]string{"v4 flannel-ipv4 forward -2+0=0"},
		}, {
			"a native table replaced in one commit, as at a restart of Flannel", "nft -f -",
			"delete table ip flannel-ipv4\n" + nativeTable,
			"nft", flannel.Nftables,
			[]string{"created table ip flannel-ipv4", "created v4 flannel-ipv4 forward -0+2=2", "created v4 flannel-ipv4 postrtg -6+6=6"},
		}, {
			"a native table deleted", "nft delete table ip flannel-ipv4", "", "nft", flannel.Nftables,
			[]string{"deleted table ip flannel-ipv4", "deleted v4 flannel-ipv4 forward -2+0=0", "deleted v4 flannel-ipv4 postrtg -6+0=0"},
		}, {
			"everything flushed", "nft flush ruleset", "", "nft", flannel.IptablesNft, []string{
				"deleted table ip filter", "deleted table ip nat", "deleted table ip6 nat",
				"deleted v4 filter FLANNEL-FWD -2+0=0", "deleted v4 filter FORWARD -1+0=0",
				"deleted v4 nat FLANNEL-POSTRTG -0+0=0", "deleted v4 nat POSTROUTING -0+0=0",
				"deleted v6 nat FLANNEL-POSTRTG -0+0=0", "deleted v6 nat POSTROUTING -1+0=0",
			},
		},
	} {
		words := strings.Fields(step.command)
		n.Feed(step.stdin, words[0], words[1:]...)
		if step.want == nil {
			continue
		}
		c := next(t, commits)
		if got, want := describe(c.Commit), strings.Join(step.want, ", "); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", step.name, got, want)
		}
		if c.Who.Comm != step.who || c.Who.PID == 0 || c.Backend != step.backend {
			t.Errorf("%s: %s by %+v, want %s by %s", step.name, c.Backend, c.Who, step.backend, step.who)
		}
	}
}

// plain strips the counters that only iptables-restore -c takes.
func plain(save string) string {
	var b strings.Builder
	for line := range strings.Lines(save) {
		b.WriteString(line[strings.Index(line, "-"):])
	}
	return b.String()
}

func TestRemovedRulesCarryTheirFinalCounters(t *testing.T) {
	n := newNode(t)
	before, _ := mustRead(t, openIn(t, n))
	want := slices.Clone(before.Chain(postrtg).Entries)
	commits := listen(t, subscribeIn(t, n))
	n.Must("iptables-nft -t nat -F FLANNEL-POSTRTG")
	removed := next(t, commits).Changes[0].Removed
	if len(removed) != len(want) {
		t.Fatalf("%d rules removed of %d", len(removed), len(want))
	}
	for i, r := range removed {
		if w := want[i]; r.Handle != w.Handle || r.Body != w.Body || r.Counter != w.Counter || !r.Counted {
			t.Errorf("rule %d: %+v, want handle %d, body %x, %v", i+1, r, w.Handle, w.Body, w.Counter)
		}
	}
}

func TestAddedRulesTellTheirPlaceAndIdentity(t *testing.T) {
	n := newNode(t)
	r := openIn(t, n)
	commits := listen(t, subscribeIn(t, n))
	n.Must("iptables-nft -t nat -I FLANNEL-POSTRTG 3 -j RETURN")
	added := next(t, commits).Changes[0].Added[0]
	nft, _ := mustRead(t, r)
	entries := nft.Chain(postrtg).Entries
	if want := (incident.RuleAdded{Handle: entries[2].Handle, After: entries[1].Handle, Body: entries[2].Body}); added != want {
		t.Errorf("got %+v, want %+v", added, want)
	}
	n.Must("iptables-nft -t nat -A FLANNEL-POSTRTG -j ACCEPT")
	if added := next(t, commits).Changes[0].Added[0]; added.After != 0 || !added.Last {
		t.Errorf("an appended rule: %+v", added)
	}
	n.Must("iptables-nft -t nat -I FLANNEL-POSTRTG -j ACCEPT")
	if added := next(t, commits).Changes[0].Added[0]; added.After != 0 || added.Last {
		t.Errorf("a rule in first place: %+v", added)
	}
}

// spell is a way to take Flannel's rules away and to bring them back, each in a commit of its own.
type spell struct {
	name     string
	id       flannel.ChainID
	rules    int
	who      string
	empty    func(w writer)
	fill     func(w writer)
	accurate bool // by a writer that knows to a fraction of a millisecond when it committed
}

func spells(t *testing.T) []spell {
	exprs := encoded(t, postrtg, "-j RETURN")
	self, err := os.ReadFile("/proc/thread-self/comm")
	if err != nil {
		t.Fatal(err)
	}
	restore := func(w writer) { w.Feed("*nat\n"+plain(masq)+"COMMIT\n", "iptables-nft-restore", "--noflush") }
	return []spell{
		{
			name: "iptables-nft -F", id: postrtg, rules: 6, who: "iptables-nft",
			empty: func(w writer) { w.Must("iptables-nft -t nat -F FLANNEL-POSTRTG") }, fill: restore,
		}, {
			name: "nft flush chain", id: postrtg, rules: 6, who: "nft",
			empty: func(w writer) { w.Must("nft flush chain ip nat FLANNEL-POSTRTG") }, fill: restore,
		}, {
			name: "nft delete table", id: native, rules: 6, who: "nft",
			empty: func(w writer) { w.Must("nft delete table ip flannel-ipv4") },
			fill:  func(w writer) { w.Feed(nativeTable, "nft", "-f", "-") },
		}, {
			name: "a netlink writer", id: postrtg, rules: 4, who: strings.TrimSpace(string(self)), accurate: true,
			empty: func(w writer) { w.commit(func(b *wire.Batch) { b.FlushChain(postrtg) }) },
			fill: func(w writer) {
				w.commit(func(b *wire.Batch) {
					for range 4 {
						b.AppendRule(postrtg, exprs)
					}
				})
			},
		},
	}
}

func TestEveryEmptySpellIsSeenHoweverShort(t *testing.T) {
	for _, s := range spells(t) {
		t.Run(s.name, func(t *testing.T) {
			if !s.accurate {
				t.Parallel()
			}
			n := newNode(t)
			n.Feed(nativeTable, "nft", "-f", "-")
			w, commits := writerIn(t, n), listen(t, subscribeIn(t, n))
			s.empty(w)
			s.fill(w)
			for rulesIn(next(t, commits), s.id) != s.rules {
			}
			for _, pause := range []time.Duration{0, 5 * time.Millisecond, 50 * time.Millisecond} {
				s.repeat(t, w, commits, pause)
			}
		})
	}
}

// repeat empties and fills a chain a hundred times and compares with what is heard.
func (s spell) repeat(t *testing.T, w writer, commits <-chan heard, pause time.Duration) {
	times := 100
	if testing.Short() {
		times = 10
	}
	seen, named := 0, 0
	var off []time.Duration
	for range times {
		time.Sleep(rand.N(5 * time.Millisecond))
		emptied := time.Now()
		s.empty(w)
		time.Sleep(pause)
		filled := time.Now()
		s.fill(w)
		from, to := next(t, commits), next(t, commits)
		if rulesIn(from, s.id) == 0 && rulesIn(to, s.id) == s.rules {
			seen++
		}
		if from.Who.Comm == s.who && from.Who.PID != 0 {
			named++
		}
		off = append(off, (to.at.Sub(from.at) - filled.Sub(emptied)).Abs())
	}
	if seen != times || named != times {
		t.Errorf("for %v: %d of %d seen, %d named", pause, seen, times, named)
	}
	if !s.accurate {
		return
	}
	slices.Sort(off)
	t.Logf("for %v: length off by %v median, %v at most", pause, off[times/2], off[times-1])
	if off[times/2] > 500*time.Microsecond {
		t.Errorf("for %v: length off by %v median", pause, off[times/2])
	}
}

// rulesIn is how many rules a commit left in a chain, -1 where it does not say.
func rulesIn(c heard, id flannel.ChainID) int {
	for _, ch := range c.Changes {
		if ch.Chain == id {
			return ch.Rules
		}
	}
	return -1
}

func TestFlushesHiddenInLargeCommitsAreSeenCheaply(t *testing.T) {
	for _, limit := range []struct{ name, optmem string }{
		{"with this kernel's limit of filters", ""},
		{"with that before Linux 6.7", "20480"},
	} {
		t.Run(limit.name, func(t *testing.T) {
			n := newNode(t)
			if limit.optmem != "" {
				limitFilters(t, n, limit.optmem)
			}
			hideFlushes(t, n)
		})
	}
}

// limitFilters sets the room for socket filters in a namespace.
func limitFilters(t *testing.T, n *labtest.Namespace, bytes string) {
	t.Helper()
	err := n.Do(func() error { return os.WriteFile("/proc/sys/net/core/optmem_max", []byte(bytes), 0) })
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("this kernel has one limit for all namespaces")
	}
	if err != nil {
		t.Fatal(err)
	}
}

func hideFlushes(t *testing.T, n *labtest.Namespace) {
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	n.Feed(kubeRules(10000, "A"), "iptables-nft-restore", "--noflush")
	e := subscribeIn(t, n)
	// The default of net.core.rmem_default, whatever the privileges here.
	if err := unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 212992/2); err != nil {
		t.Fatal(err)
	}
	commits, cpu := make(chan heard, 1000), make(chan time.Duration, 1)
	go func() { cpu <- hearAll(t, e, commits) }()

	kube := strings.TrimSuffix(kubeRules(10000, "A"), "COMMIT\n")
	half := strings.Index(kube, "\n-A KUBE-SERVICES") + 1
	flush := kube[:half] + "-F FLANNEL-POSTRTG\n" + kube[half:] + "COMMIT\n"
	refill := kube + plain(masq) + "COMMIT\n"
	for range rounds {
		n.Feed(flush, "iptables-nft-restore", "--noflush")
		n.Feed(refill, "iptables-nft-restore", "--noflush")
	}
	for i := range rounds {
		for _, want := range []string{"v4 nat FLANNEL-POSTRTG -6+0=0", "v4 nat FLANNEL-POSTRTG -0+6=6"} {
			if got := describe(next(t, commits).Commit); got != want {
				t.Errorf("round %d: got %s, want %s", i, got, want)
			}
		}
	}
	if err := e.Wake(); err != nil {
		t.Fatal(err)
	}
	each := <-cpu / time.Duration(2*rounds)
	t.Logf("listener: %v CPU for a commit of 10,000 rules", each)
	if each > 5*time.Millisecond {
		t.Errorf("the listener takes %v CPU a commit", each)
	}
}

// hearAll hears commits until it is woken, and gives the CPU time of its thread.
func hearAll(t *testing.T, e *Events, commits chan<- heard) time.Duration {
	stop := threadCPU(t)
	for {
		c, err := e.Next(time.Time{})
		if err != nil {
			if !errors.Is(err, ErrWoken) {
				t.Error(err)
			}
			return stop()
		}
		commits <- heard{c, time.Now()}
	}
}

func TestLostAnnouncementsAreSaidAndMadeGood(t *testing.T) {
	n := newNode(t)
	e := subscribeIn(t, n)
	w := writerIn(t, n)
	if err := unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil { // the least there is, some 2 KiB
		t.Fatal(err)
	}
	exprs := encoded(t, postrtg, `-m comment --comment "flanneld masq" -j RETURN`)
	swap := func() {
		w.commit(func(b *wire.Batch) {
			b.FlushChain(postrtg)
			for range 5 {
				b.AppendRule(postrtg, exprs)
			}
		})
	}
	for range 10 {
		swap()
	}
	deadline := time.Now().Add(10 * time.Second)
	lost := 0
	for {
		c, err := e.Next(deadline)
		if err != nil {
			t.Fatal(err)
		}
		for _, ch := range c.Changes {
			if c.Lost && ch.Rules != -1 {
				t.Errorf("a commit among lost ones claims to know the number of rules: %s", describe(c))
			}
		}
		if c.Lost {
			lost++
		}
		if c.Lost && c.Who.PID == 0 {
			break // the state is known again
		}
	}
	if lost == 0 {
		t.Error("the loss was not told")
	}
	if err := unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 100000); err != nil {
		t.Fatal(err)
	}
	w.commit(func(b *wire.Batch) { b.FlushChain(postrtg) })
	c, err := e.Next(deadline)
	if err != nil {
		t.Fatal(err)
	}
	if want := "v4 nat FLANNEL-POSTRTG -5+0=0"; describe(c) != want {
		t.Errorf("after the loss: got %s, want %s", describe(c), want)
	}
}

func TestNextEndsAtTheDeadlineAndWhenWoken(t *testing.T) {
	e := subscribeIn(t, newNamespace(t))
	if _, err := e.Next(time.Now().Add(10 * time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("at the deadline: %v", err)
	}
	if _, err := e.Next(time.Now().Add(-time.Hour)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	for _, early := range []bool{true, false} {
		go func() {
			if !early {
				time.Sleep(20 * time.Millisecond)
			}
			if err := e.Wake(); err != nil {
				t.Error(err)
			}
		}()
		if _, err := e.Next(time.Time{}); !errors.Is(err, ErrWoken) {
			t.Errorf("woken: %v", err)
		}
	}
	if _, err := e.Next(time.Now().Add(time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one wake ended two calls: %v", err)
	}
}
