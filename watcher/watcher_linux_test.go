package watcher_test

import (
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/lab/labtest"
)

func TestMain(m *testing.M) {
	replayPart()
	labtest.Main(m)
}

const rules = `*nat
:POSTROUTING ACCEPT
:FLANNEL-POSTRTG -
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
`

// recording keeps copies of what a watcher says.
type recording struct {
	mu   sync.Mutex
	seen []incident.Observation
}

func (r *recording) sink(o *incident.Observation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := *o
	if o.Rules != nil {
		read := *o.Rules
		read.Ruleset.Value = read.Ruleset.Value.Clone()
		c.Rules = &read
	}
	r.seen = append(r.seen, c)
}

// find waits for an observation.
func (r *recording) find(t *testing.T, what string, is func(incident.Observation) bool) incident.Observation {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		r.mu.Lock()
		for _, o := range r.seen {
			if is(o) {
				r.mu.Unlock()
				return o
			}
		}
		r.mu.Unlock()
	}
	t.Fatalf("no observation of %s", what)
	return incident.Observation{}
}

func (r *recording) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = nil
}

func (r *recording) count(is func(incident.Observation) bool) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, o := range r.seen {
		if is(o) {
			n++
		}
	}
	return n
}

func start(t *testing.T, o watcher.Options) (*watcher.Watcher, *recording) {
	t.Helper()
	r := &recording{}
	return run(t, o, r.sink), r
}

func optionsOf(n *labtest.Namespace) watcher.Options {
	return watcher.Options{NetNS: n.Path(), Root: n.Root(), Interval: time.Second}
}

// rulesIn tells whether the observation is a reading with so many rules in FLANNEL-POSTRTG.
func rulesIn(b flannel.Backend, rules int) func(incident.Observation) bool {
	id := flannel.ChainID{Backend: b, Family: flannel.IPv4, Table: "nat", Name: "FLANNEL-POSTRTG"}
	return func(o incident.Observation) bool {
		if o.Rules == nil || o.Rules.Backend != b {
			return false
		}
		c := o.Rules.Ruleset.Value.Chain(id)
		return c != nil && c.Present && len(c.Entries) == rules
	}
}

func TestAFlushIsReadAtOnceWithTheProgramThatDidIt(t *testing.T) {
	n := labtest.New(t)
	n.Feed(rules, "iptables-nft-restore")
	o := optionsOf(n)
	o.Interval = time.Minute // so that only the announcement can have led to the reading
	_, r := start(t, o)
	r.find(t, "one rule", rulesIn(flannel.IptablesNft, 1))
	time.Sleep(100 * time.Millisecond) // until it listens
	n.Must("iptables-nft -t nat -F FLANNEL-POSTRTG")
	read := r.find(t, "no rule", rulesIn(flannel.IptablesNft, 0))
	commit := r.find(t, "the commit", func(o incident.Observation) bool { return o.Commit != nil && len(o.Commit.Changes) > 0 })
	if commit.Commit.Who.Comm != "iptables-nft" || commit.Commit.Who.PID == 0 {
		t.Errorf("done by %+v", commit.Commit.Who)
	}
	if d := read.Time.Sub(commit.Time); d < 0 || d > time.Second {
		t.Errorf("read %v after the announcement", d)
	}
}

func TestALegacyFlushIsReadWhenTheLockIsReleased(t *testing.T) {
	n := labtest.New(t)
	n.Feed(rules, "iptables-legacy-restore")
	o := optionsOf(n)
	o.Interval = time.Minute
	_, r := start(t, o)
	r.find(t, "one rule", rulesIn(flannel.IptablesLegacy, 1))
	time.Sleep(100 * time.Millisecond)
	n.Must("iptables-legacy -t nat -F FLANNEL-POSTRTG")
	r.find(t, "no rule", rulesIn(flannel.IptablesLegacy, 0))
}

func TestTheIntervalCanBeChangedWhileWatching(t *testing.T) {
	n := labtest.New(t)
	o := optionsOf(n)
	o.Interval = time.Minute
	w, r := start(t, o)
	isRead := func(o incident.Observation) bool { return o.Rules != nil && o.Rules.Backend == flannel.IptablesNft }
	r.find(t, "a first reading", isRead)
	time.Sleep(100 * time.Millisecond)
	r.forget()
	w.SetInterval(100 * time.Millisecond)
	time.Sleep(1050 * time.Millisecond)
	if got := r.count(isRead); got < 7 || got > 13 {
		t.Errorf("%d readings in a second at an interval of 100 ms", got)
	}
	if w.Interval() != 100*time.Millisecond {
		t.Errorf("interval %v", w.Interval())
	}
}

func TestANamespaceThatIsDeletedIsAFaultAndNotAnEnd(t *testing.T) {
	n := labtest.New(t)
	name := t.TempDir() + "/net"
	n.Must("touch " + name)
	if out, err := exec.Command("mount", "--bind", n.Path(), name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	mounted := true
	unmount := func() { // lazily, as `ip netns delete` does: our own file keeps it busy
		if mounted {
			_ = exec.Command("umount", "--lazy", name).Run()
			mounted = false
		}
	}
	t.Cleanup(unmount)
	_, r := start(t, watcher.Options{NetNS: name, Root: n.Root(), Interval: time.Second})
	r.find(t, "a first reading", func(o incident.Observation) bool { return o.Rules != nil })
	unmount()
	fault := r.find(t, "the fault", func(o incident.Observation) bool { return o.Fault != nil && o.Fault.Reader == "namespace" })
	if !strings.Contains(fault.Fault.Why, name) {
		t.Errorf("it says %q", fault.Fault.Why)
	}
}

func TestWhatCannotBeWatchedIsAnErrorThatNamesIt(t *testing.T) {
	labtest.RequireRoot(t)
	for name, o := range map[string]watcher.Options{
		"no such namespace":          {NetNS: "no-such-namespace", Root: "/"},
		"a path that is none":        {NetNS: "/proc/self/ns/mnt/none", Root: "/"},
		"a folder that is not there": {Root: "/no/such/folder"},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := watcher.Open(o)
			if err == nil {
				w.Close()
				t.Fatal("no error")
			}
			if what := o.NetNS + o.Root; !strings.Contains(err.Error(), strings.Trim(what, "/")) && !strings.Contains(err.Error(), o.Root) {
				t.Errorf("%v does not name it", err)
			}
		})
	}
}

func TestOnceReadsEveryBackendAndTheNode(t *testing.T) {
	n := labtest.New(t)
	n.Must("mkdir -p /run/flannel")
	n.Feed("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPMASQ=true\n", "tee", "/run/flannel/subnet.env")
	n.Feed(rules, "iptables-nft-restore")
	w, err := watcher.Open(optionsOf(n))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r := &recording{}
	w.Once(r.sink)
	for _, b := range []flannel.Backend{flannel.IptablesNft, flannel.Nftables, flannel.IptablesLegacy} {
		r.find(t, b.String(), func(o incident.Observation) bool { return o.Rules != nil && o.Rules.Backend == b })
	}
	node := r.find(t, "the node", func(o incident.Observation) bool { return o.Node != nil })
	if got := node.Node.Networks; got.State != flannel.Known || got.Value[0].String() != "10.244.0.0/16" {
		t.Errorf("networks %+v", got)
	}
	procs := r.find(t, "processes", func(o incident.Observation) bool { return o.Procs != nil })
	if procs.Procs.State != flannel.Known || len(procs.Procs.Value) != 0 {
		t.Errorf("processes %+v", procs.Procs)
	}
}
