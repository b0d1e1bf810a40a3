package watcher_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
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

func recordedRestarts(t *testing.T) (all []restart) {
	t.Helper()
	file, err := os.Open("testdata/restarts.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for d := json.NewDecoder(file); d.More(); {
		var r restart
		if err := d.Decode(&r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// TestRecordedRestartsOfFlannelAreIncidents makes the same commits at the same distances as real flanneld of six years did
// while it was restarted, by processes of the same names. FLANWATCH_FULL=1 plays every record.
func TestRecordedRestartsOfFlannelAreIncidents(t *testing.T) {
	labtest.RequireTools(t, "iptables-nft-restore", "iptables-legacy-restore", "ip6tables-nft-restore")
	slots := make(chan struct{}, 3)
	for _, r := range recordedRestarts(t) {
		if !full() && !r.typical() {
			continue
		}
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			for tries := 1; !r.play(t); tries++ { // a commit came late
				if tries == 12 {
					t.Fatal("this machine is too busy to make the commits in time")
				}
			}
		})
	}
}

// typical tells whether to play a record in any case.
func (r restart) typical() bool {
	ends := r.Version == "v0.20.2" || r.Version == "v0.28.10"
	return !r.Dual && (strings.HasSuffix(r.Name, "SIGTERM") || ends && strings.HasSuffix(r.Name, "SIGKILL 1"))
}

// kind is the incident that a restart makes, "" for none.
func (r restart) kind() incident.Kind {
	stopped := strings.HasSuffix(r.Name, "SIGTERM") && r.Version == "v0.26.5"
	switch {
	case stopped:
		return incident.KindTeardown
	case r.Backend == flannel.Nftables:
		return ""
	}
	return incident.KindStartup
}

// first and last are the commits between which something was missing.
func (r restart) first() int { return 0 }

func (r restart) last() int {
	last := 0
	for i, c := range r.Commits {
		if slices.ContainsFunc(c.Changes, func(ch changed) bool { return ch.Added > 0 }) {
			last = i
		}
	}
	return last
}

// setUp makes the node as it was before.
func (r restart) setUp(t *testing.T) *labtest.Namespace {
	t.Helper()
	n := labtest.New(t)
	env := subnetEnv
	if r.Dual {
		env += "FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64\n"
	}
	n.Write("/run/flannel/subnet.env", env)
	n.Write("/run/xtables.lock", "")
	program := map[flannel.Backend]string{flannel.IptablesNft: "nft", flannel.IptablesLegacy: "legacy", flannel.Nftables: "nft"}[r.Backend]
	for _, w := range r.wanted() {
		tool := "iptables-" + program + "-restore"
		if w.ID.Family == flannel.IPv6 {
			tool = "ip6" + strings.TrimPrefix(tool, "ip")
		}
		n.Feed("*nat\n:OTHER - [0:0]\n-A OTHER -j MASQUERADE\nCOMMIT\n", tool, "--noflush") // uses conntrack
		if r.Backend != flannel.Nftables {
			n.Feed(restoreText(w), tool, "--noflush")
		}
	}
	if r.Backend == flannel.Nftables {
		r.setUpNative(t, n)
	}
	if err := n.Do(func() error {
		for _, name := range []string{"flanneld", "iptables", "iptables-restore", "ip6tables", "ip6tables-restore", "nft"} {
			if err := link(replayDir, name, "/proc/self/exe"); err != nil {
				return err
			}
			if err := link(legacyDir, name, "/usr/sbin/xtables-legacy-multi"); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

func restoreText(w flannel.Wanted) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n:%s - [0:0]\n-A %s %s\n", w.ID.Table, w.ID.Name, w.HookChain.Name, w.Hook)
	for _, r := range w.Rules {
		fmt.Fprintf(&b, "-A %s %s\n", w.ID.Name, r)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

func (r restart) setUpNative(t *testing.T, n *labtest.Namespace) {
	t.Helper()
	a := newActor(t, n)
	for _, f := range flannel.Families {
		n.Must("nft add table " + f.String() + " " + flannel.NativeTable(f)) // both are made, whatever the node has
	}
	for _, w := range r.wanted() {
		byNetlink("", r.Backend, nil, func(t *testing.T, b *wire.Batch) {
			if err := b.AddBaseChain(w.ID, *w.Base); err != nil {
				t.Fatal(err)
			}
			fill(t, b, w)
		}).refill(a)
	}
}

// play makes a restart again and judges what was found, unless a commit came so late that it is another restart.
func (r restart) play(t *testing.T) (inTime bool) {
	n := r.setUp(t)
	log, err := os.OpenFile(t.TempDir()+"/log", os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	earlier := 0
	for earlier < len(r.Commits) && r.Commits[earlier].MS < r.Started {
		earlier++
	}
	f := watchFolded(t, optionsOf(n))
	e := errand{Restart: r, Zero: bootTime() + lead, Count: earlier, Stays: true}
	old := f.startOld(func() *exec.Cmd { return startReplay(t, n, e, log) })
	sleepUntil(e.Zero + duration(r.Ended))
	f.wait("the first commits", func() bool { return len(madeTimes(t, log.Name())) == earlier })
	_ = unix.Kill(old.Process.Pid, unix.SIGKILL)
	_ = old.Wait()
	e.First, e.Count = earlier, len(r.Commits)-earlier
	next := duration(r.Commits[earlier].MS)
	if earlier > 0 { // it may start earlier than recorded, so as to be ready in time
		sleepUntil(e.Zero + min(duration(r.Started), next-lead))
	} else {
		sleepUntil(e.Zero + duration(min(r.Started, r.Ended+20)))
		e.Zero = max(e.Zero, bootTime()+lead-next)
	}
	startReplay(t, n, e, log)
	sleepUntil(e.Zero + duration(r.Commits[len(r.Commits)-1].MS))
	var made map[int]span
	if !f.wait("all commits", func() bool { made = madeTimes(t, log.Name()); return len(made) == len(r.Commits) }) {
		return true
	}
	if !r.inTime(made) {
		return false
	}
	time.Sleep(2500 * time.Millisecond) // processes have been looked for since
	r.judge(t, f, made)
	return true
}

// inTime tells whether the commits were made in their order and about at their distances.
func (r restart) inTime(made map[int]span) bool {
	for i := 1; i < len(r.Commits); i++ {
		late := made[i].from - made[i-1].from - duration(r.Commits[i].MS-r.Commits[i-1].MS)
		if made[i].from < made[i-1].to || late.Abs() > 50*time.Millisecond {
			return false
		}
	}
	return true
}

func duration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

func startReplay(t *testing.T, n *labtest.Namespace, e errand, log *os.File) *exec.Cmd {
	t.Helper()
	cmd := e.prepared("/opt/bin/flanneld", "--ip-masq", "--kube-subnet-mgr")
	cmd.Stdout = log
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// span is the time that a call took, from the start of the record.
type span struct{ from, to time.Duration }

// madeTimes reads when commits were really made.
func madeTimes(t *testing.T, path string) map[int]span {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	made := map[int]span{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var i int
		var from, to int64
		if _, err := fmt.Sscan(lines.Text(), &i, &from, &to); err != nil {
			t.Fatalf("the replay says: %s", lines.Text())
		}
		made[i] = span{time.Duration(from), time.Duration(to)}
	}
	return made
}

// judge compares what was found with what is known of the restart.
func (r restart) judge(t *testing.T, f *folded, made map[int]span) {
	t.Helper()
	found := f.incidents()
	if r.kind() == "" {
		if len(found) > 0 {
			t.Errorf("%d incidents where none was: %+v", len(found), found)
		}
		return
	}
	if len(found) != 1 {
		for _, inc := range found {
			t.Logf("%s: %+v", inc.Kind, inc)
		}
		t.Fatalf("%d incidents", len(found))
	}
	inc := found[0]
	if inc.Kind != r.kind() || inc.Open || !inc.Complete || inc.Verified.IsZero() || inc.Uncertain || inc.Before {
		t.Errorf("it is a %s, want %s; open %t, complete %t, verified %v, uncertain %t, before %t", inc.Kind, r.kind(), inc.Open,
			inc.Complete, inc.Verified, inc.Uncertain, inc.Before)
	}
	r.judgeAuthors(t, inc)
	window := inc.End.Sub(inc.Start)
	record := duration(r.Commits[r.last()].MS - r.Commits[r.first()].MS)
	first, last := made[r.first()], made[r.last()]
	outside := max(last.from-first.to-window, window-(last.to-first.from), 0)
	t.Logf("%-36s %-14s %.3f ms, recorded %.3f, made again %.3f", r.Name, inc.Kind, ms(window), ms(record), ms(last.from-first.from))
	limit := 5 * time.Millisecond
	if r.Backend == flannel.IptablesLegacy {
		limit = 30 * time.Millisecond // programs take their time
	}
	if !full() {
		limit = tolerance().each
	}
	if outside > limit {
		t.Errorf("window off by %v", outside)
	}
}

// judgeAuthors wants both programs named, as flanneld's.
func (r restart) judgeAuthors(t *testing.T, inc incident.Incident) {
	t.Helper()
	first, last := r.Commits[r.first()].Program, r.Commits[r.last()].Program
	for _, a := range []struct {
		role, want string
		who        *incident.Who
	}{{"begun", first, inc.By}, {"ended", last, inc.RecoveredBy}} {
		switch {
		case a.who == nil:
			t.Errorf("%s by nobody", a.role)
		case a.want != "" && a.who.Comm != a.want:
			t.Errorf("%s by %q, want %q", a.role, a.who.Comm, a.want)
		case a.who.Origin == nil || len(a.who.Origin.Parents.Value) == 0 || a.who.Origin.Parents.Value[0].Comm != "flanneld":
			t.Errorf("%s by %+v, not known as flanneld's", a.role, a.who.Origin)
		}
	}
}
