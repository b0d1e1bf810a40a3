package watcher_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/lab/labtest"
	"flanwatch/watcher/legacy"
	"flanwatch/watcher/nft"
)

const subnetEnv = `FLANNEL_NETWORK=10.244.0.0/16
FLANNEL_SUBNET=10.244.1.1/24
FLANNEL_MTU=1450
FLANNEL_IPMASQ=true
`

const masqRules = `-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
`

// nodeRules are Flannel's, and a rule of another's that uses conntrack, as kube-proxy does on every node: without one, each
// flush would switch conntrack off, and each refill wait for it.
const nodeRules = `*nat
:FLANNEL-POSTRTG - [0:0]
:KUBE-POSTROUTING - [0:0]
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
` + masqRules + `COMMIT
*filter
:FLANNEL-FWD - [0:0]
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
`

const refillMasq = "*nat\n" + masqRules + "COMMIT\n"

// kubeRules are another's, as kube-proxy has them beside Flannel's native tables on every node: they keep conntrack and the
// hooks on. Without them each deletion of the tables would have the kernel patch its code to take the last hook out, and each
// new table patch it in again, for which a processor at rest is waited for.
const kubeRules = `*nat
:KUBE-POSTROUTING - [0:0]
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
*filter
:KUBE-FORWARD - [0:0]
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
`

// nativePostrtg fills the native chain anew.
const nativePostrtg = `add rule ip flannel-ipv4 postrtg meta mark 0x00004000 return
add rule ip flannel-ipv4 postrtg ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return
add rule ip flannel-ipv4 postrtg ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return
add rule ip flannel-ipv4 postrtg ip saddr != 10.244.1.0/24 ip daddr 10.244.0.0/16 return
add rule ip flannel-ipv4 postrtg ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
add rule ip flannel-ipv4 postrtg ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random
`

const nativeTable = `add table ip flannel-ipv4
add chain ip flannel-ipv4 postrtg { type nat hook postrouting priority 100 ; policy accept ; }
add chain ip flannel-ipv4 forward { type filter hook forward priority 0 ; policy accept ; }
` + nativePostrtg + `add rule ip flannel-ipv4 forward ip saddr 10.244.0.0/16 accept
add rule ip flannel-ipv4 forward ip daddr 10.244.0.0/16 accept
`

// node makes a node on which Flannel runs, with its rules as one backend has them.
func node(t *testing.T, b flannel.Backend) *labtest.Namespace {
	t.Helper()
	labtest.RequireTools(t, "iptables-nft", "iptables-legacy", "nft")
	n := labtest.New(t)
	n.Write("/run/flannel/subnet.env", subnetEnv)
	n.Write("/run/xtables.lock", "")
	n.Flanneld("--ip-masq", "--kube-subnet-mgr")
	switch b {
	case flannel.IptablesNft:
		n.Feed(nodeRules, "iptables-nft-restore")
	case flannel.IptablesLegacy:
		n.Feed(nodeRules, "iptables-legacy-restore")
	case flannel.Nftables:
		n.Feed(kubeRules, "iptables-nft-restore")
		n.Feed(nativeTable, "nft", "-f", "-")
	}
	return n
}

// hand empties and fills a chain, each by one transaction.
type hand struct {
	name          string
	backend       flannel.Backend
	others        int // rules beside Flannel's
	empty, refill func(*actor)
	byName        string // of the program, "" for our own
	refilledBy    string // likewise
}

// actor carries out what a hand does.
type actor struct {
	*labtest.Namespace
	t    *testing.T
	conn *netlink.Conn
	sent time.Duration // boot time of the last commit
}

func newActor(t *testing.T, n *labtest.Namespace) *actor {
	t.Helper()
	a := &actor{Namespace: n, t: t}
	if err := n.Do(func() (err error) {
		a.conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.conn.Close() })
	return a
}

func (a *actor) commit(b *wire.Batch) {
	a.sent = bootTime()
	if err := wire.Commit(a.conn, b); err != nil {
		a.t.Error(err)
	}
}

// wanted gives Flannel's chains of IPv4 as it writes them today.
func wanted(b flannel.Backend) []flannel.Wanted {
	generation := flannel.GenV0210
	if b == flannel.Nftables {
		generation = flannel.GenV0250
	}
	networks := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	subnets := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	o := flannel.Options{RandomFully: true, Forward: true, Masq: true}
	return flannel.Expected(networks, subnets, generation, o, b, flannel.IPv4)
}

// fill puts into a batch what fills a chain.
func fill(t *testing.T, b *wire.Batch, w flannel.Wanted) {
	t.Helper()
	for _, r := range w.Rules {
		exprs, err := wire.Encode(w.ID, r)
		if err != nil {
			t.Fatal(err)
		}
		b.AppendRule(w.ID, exprs)
	}
}

// byNetlink makes a hand that sends batches of its own.
func byNetlink(name string, b flannel.Backend, empty, refill func(*testing.T, *wire.Batch)) hand {
	do := func(change func(*testing.T, *wire.Batch)) func(*actor) {
		return func(a *actor) {
			var batch wire.Batch
			change(a.t, &batch)
			a.commit(&batch)
		}
	}
	return hand{name: name, backend: b, empty: do(empty), refill: do(refill)}
}

func hands() []hand {
	flush := func(b flannel.Backend) func(*testing.T, *wire.Batch) {
		return func(_ *testing.T, batch *wire.Batch) { batch.FlushChain(wanted(b)[0].ID) }
	}
	refill := func(b flannel.Backend) func(*testing.T, *wire.Batch) {
		return func(t *testing.T, batch *wire.Batch) { fill(t, batch, wanted(b)[0]) }
	}
	rebuild := func(t *testing.T, batch *wire.Batch) {
		batch.AddTable(wanted(flannel.Nftables)[0].ID.TableID())
		for _, w := range wanted(flannel.Nftables) {
			if err := batch.AddBaseChain(w.ID, *w.Base); err != nil {
				t.Fatal(err)
			}
			fill(t, batch, w)
		}
	}
	drop := func(_ *testing.T, batch *wire.Batch) { batch.DeleteTable(wanted(flannel.Nftables)[0].ID.TableID()) }
	tool := func(stdin, line string) func(*actor) {
		words := strings.Fields(line)
		return func(a *actor) { a.Feed(stdin, words[0], words[1:]...) }
	}
	byLegacy := hand{
		name: "iptables-legacy", backend: flannel.IptablesLegacy, byName: "iptables-legacy", refilledBy: "iptables-legacy-restore",
		empty:  tool("", "iptables-legacy -t nat -F FLANNEL-POSTRTG"),
		refill: tool(refillMasq, "iptables-legacy-restore --noflush"),
	}
	few, many := byLegacy, byLegacy
	few.name, few.others = "iptables-legacy beside 10 rules", 10
	many.name, many.others = "iptables-legacy beside 1000 rules", 1000
	return []hand{
		byNetlink("iptables-nft by netlink", flannel.IptablesNft, flush(flannel.IptablesNft), refill(flannel.IptablesNft)),
		byNetlink("native chain by netlink", flannel.Nftables, flush(flannel.Nftables), refill(flannel.Nftables)),
		byNetlink("native table by netlink", flannel.Nftables, drop, rebuild),
		{
			name: "iptables-nft", backend: flannel.IptablesNft, byName: "iptables-nft", refilledBy: "iptables-nft-restore",
			empty:  tool("", "iptables-nft -t nat -F FLANNEL-POSTRTG"),
			refill: tool(refillMasq, "iptables-nft-restore --noflush"),
		},
		{
			name: "nft", backend: flannel.Nftables, byName: "nft", refilledBy: "nft",
			empty: tool("", "nft delete table ip flannel-ipv4"), refill: tool(nativeTable, "nft -f -"),
		},
		few, many,
	}
}

// round is one length of gaps, and how often.
type round struct {
	length time.Duration
	times  int
}

func (h hand) rounds() []round {
	times := []int{20, 20, 20, 5}
	switch {
	case full():
		times = []int{100, 100, 100, 100}
	case h.byName != "":
		times = []int{10, 10, 10, 2} // programs take their time
	}
	return []round{{0, times[0]}, {5 * time.Millisecond, times[1]}, {50 * time.Millisecond, times[2]}, {500 * time.Millisecond, times[3]}}
}

// gap is one time without rules, as its maker knows it.
type gap struct {
	emptied, emptiedDone flannel.Time // before and after the call, or the program
	filled, filledDone   flannel.Time
}

// TestEveryGapIsCaughtMeasuredAndNamed empties Flannel's chain for 0 to 500 ms, at random moments, and wants an incident of
// the right length each time. A poll ten times a second, as by `watch -n0.1`, looks on beside. FLANWATCH_FULL=1 makes 100
// gaps of each length.
func TestEveryGapIsCaughtMeasuredAndNamed(t *testing.T) {
	for _, h := range hands() {
		t.Run(h.name, func(t *testing.T) {
			n := node(t, h.backend)
			if h.others > 0 {
				n.Feed(otherRules(h.others), "iptables-legacy-restore", "--noflush")
			}
			f := watchFolded(t, optionsOf(n))
			p := startPoll(t, n, f, wanted(h.backend)[0].ID)
			a := newActor(t, n)
			_ = legacy.Hurry() // so that the times noted here are those of the changes
			still := noteStalls(t)
			for _, r := range h.rounds() {
				h.round(t, r, a, f, p, still)
			}
			if f.lost > 0 {
				t.Errorf("announcements were lost %d times", f.lost)
			}
		})
	}
}

func (h hand) round(t *testing.T, r round, a *actor, f *folded, p *poll, still *stalls) {
	var off []time.Duration
	var outside time.Duration
	named, polled, again, before := 0, 0, 0, len(f.incidents())
	for i := 0; i < r.times+again; i++ {
		time.Sleep(time.Duration(rand.IntN(100_000)) * time.Microsecond)
		g := h.make(r.length, a, f)
		known := f.wait(fmt.Sprintf("incident %d of %v", i+1, r.length), func() bool {
			all := f.incidents()
			return len(all) > before+i && !all[before+i].Open && !all[before+i].Verified.IsZero()
		})
		if !known {
			return
		}
		inc := f.incidents()[before+i]
		if p.sawBetween(g.emptied, g.filledDone) {
			polled++
		}
		if h.isNamed(t, inc) {
			named++
		}
		out := h.outside(inc, g)
		if stood := still.longest(g.emptied.Boot, max(inc.End.Boot, g.filledDone.Boot)); out > strictly && out <= stood && again < r.times/10 {
			again++ // the machine stood still for longer than the window is off
			continue
		}
		off = append(off, (inc.End.Sub(inc.Start) - g.filled.Sub(g.emptied)).Abs())
		if outside = max(outside, out); out > tolerance().each {
			t.Errorf("window %v to %v after the first call, which lasted for %v; the second was made from %v to %v", inc.Start.Sub(g.emptied),
				inc.End.Sub(g.emptied), g.emptiedDone.Sub(g.emptied), g.filled.Sub(g.emptied), g.filledDone.Sub(g.emptied))
		}
	}
	r.times += again
	if got := len(f.incidents()) - before; got != r.times {
		t.Errorf("%d incidents in %d gaps of %v", got, r.times, r.length)
	}
	slices.Sort(off)
	median := off[len(off)/2]
	t.Logf("%-32s %3d ms: caught %d of %d, named %d; length off by %.3f ms (median), %.3f ms outside of the calls (most); "+
		"a poll ten times a second caught %d; measured again, as the machine stood still: %d", h.name, r.length.Milliseconds(), r.times,
		r.times, named, ms(median), ms(outside), polled, again)
	if h.backend != flannel.IptablesLegacy && named != r.times {
		t.Errorf("program named in %d of %d gaps of %v", named, r.times, r.length)
	}
	if h.byName == "" && median > tolerance().median {
		t.Errorf("gaps of %v: median error %v", r.length, median)
	}
}

// make makes one gap.
func (h hand) make(length time.Duration, a *actor, f *folded) (g gap) {
	g.emptied = f.Now()
	h.empty(a)
	g.emptied.Boot = max(g.emptied.Boot, a.sent)
	g.emptiedDone = f.Now()
	time.Sleep(length)
	g.filled = f.Now()
	h.refill(a)
	g.filled.Boot = max(g.filled.Boot, a.sent)
	g.filledDone = f.Now()
	return g
}

// strictly is how far a window may be off unless the machine stood still meanwhile.
const strictly = 3 * time.Millisecond

// limits are how far a window may be off.
type limits struct{ each, median time.Duration }

// tolerance is far wider than what is reached at rest, since a test machine is shared and may stand still for long: the real
// limits are held with FLANWATCH_FULL.
func tolerance() limits {
	if full() {
		return limits{strictly, 500 * time.Microsecond}
	}
	return limits{2 * time.Second, 20 * time.Millisecond}
}

// outside gives how far the window of an incident is from what is possible. A change happens at some time of the call, or of
// the life of the program, that makes it: with iptables' extensions the kernel first waits until what was deleted before is
// destroyed.
func (hand) outside(inc incident.Incident, g gap) time.Duration {
	return max(inc.Start.Sub(g.emptiedDone), inc.End.Sub(g.filledDone), g.emptied.Sub(inc.Start), g.filled.Sub(inc.End), 0)
}

// isNamed tells whether both programs are known, and complains about wrong ones.
func (h hand) isNamed(t *testing.T, inc incident.Incident) bool {
	t.Helper()
	by, back := h.byName, h.refilledBy
	if by == "" {
		by, back = ownName(t), ownName(t)
	}
	ok := true
	for _, who := range []struct {
		who  *incident.Who
		want string
	}{{inc.By, by}, {inc.RecoveredBy, back}} {
		want := who.want[:min(len(who.want), 15)]
		switch {
		case who.who == nil || who.who.Comm == "":
			ok = false
		case who.who.Comm != want:
			t.Errorf("named %q, was %q", who.who.Comm, want)
			ok = false
		}
	}
	return ok
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// poll looks ten times a second how many rules a chain has, and keeps when it had none.
type poll struct {
	seen chan flannel.Time
	all  []flannel.Time
}

func startPoll(t *testing.T, n *labtest.Namespace, f *folded, id flannel.ChainID) *poll {
	t.Helper()
	p := &poll{seen: make(chan flannel.Time, 10000)}
	read := pollReader(t, n, f, id.Backend)
	tick, done := time.NewTicker(100*time.Millisecond), make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			at := f.Now()
			if c := read().Chain(id); c == nil || len(c.Entries) == 0 {
				p.seen <- at
			}
		}
	}()
	t.Cleanup(func() {
		close(done)
		<-ended
	})
	return p
}

func pollReader(t *testing.T, n *labtest.Namespace, f *folded, b flannel.Backend) func() *flannel.Ruleset {
	t.Helper()
	var read func() (*flannel.Ruleset, error)
	err := n.Do(func() error {
		if b == flannel.IptablesLegacy {
			r, err := legacy.Open()
			if err == nil {
				t.Cleanup(func() { r.Close() })
				read = func() (*flannel.Ruleset, error) { return r.Read(f.Now()) }
			}
			return err
		}
		r, err := nft.Open()
		if err == nil {
			t.Cleanup(func() { r.Close() })
			read = func() (*flannel.Ruleset, error) {
				ours, native, err := r.Read()
				if b == flannel.Nftables {
					ours = native
				}
				return ours, err
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() *flannel.Ruleset {
		rs, err := read()
		if err != nil {
			t.Error(err)
			return &flannel.Ruleset{}
		}
		return rs
	}
}

// sawBetween tells whether a look between two moments found nothing.
func (p *poll) sawBetween(from, to flannel.Time) bool {
	for len(p.seen) > 0 {
		p.all = append(p.all, <-p.seen)
	}
	return slices.ContainsFunc(p.all, func(at flannel.Time) bool { return at.Sub(from) >= 0 && at.Sub(to) <= 0 })
}

// otherRules are rules in the shape of kube-proxy's.
func otherRules(n int) string {
	var b strings.Builder
	b.WriteString("*nat\n:KUBE-SERVICES - [0:0]\n")
	for i := range n {
		fmt.Fprintf(&b, "-A KUBE-SERVICES -d 10.96.%d.%d/32 -p tcp -m comment --comment \"ns/svc%d:http\" -m tcp --dport 80 -j ACCEPT\n", i/250, i%250+1, i)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}
