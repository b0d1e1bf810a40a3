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
	slots, still := make(chan struct{}, 3), noteStalls(t)
	for _, r := range recordedRestarts(t) {
		if !full() && !r.typical() {
			continue
		}
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			for tries := 1; !r.play(t, still); tries++ { // the machine stood still
				if tries == 12 {
					t.Fatal("this machine is too busy to make the commits in time, or to measure them")
				}
			}
		})
	}
}

// typical tells whether to play a record in any case.
func (r restart) typical() bool {
	ends := r.Version == "v0.20.2" || r.Version == "v0.28.10"
	of := func(what ...string) bool {
		return slices.ContainsFunc(what, func(w string) bool { return strings.HasSuffix(r.Name, " "+w) })
	}
	today := r.Version == "v0.28.10" && r.Backend != flannel.IptablesLegacy
	more := today && of("lostenv 1", "changenet 1", "to-nftables TERM", "to-iptables KILL")
	return !r.Dual && (of("SIGTERM") || ends && of("SIGKILL 1") || more)
}

// kind is the incident that a restart makes, "" for none.
func (r restart) kind() incident.Kind {
	stopped := strings.HasSuffix(r.Name, "TERM") && r.Version == "v0.26.5"
	switch {
	case stopped:
		return incident.KindTeardown
	case strings.Contains(r.Name, "to-nftables"):
		if r.Version == "v0.26.5" { // what was there stays
			return ""
		}
		return incident.KindResidue
	case strings.Contains(r.Name, "to-iptables") && r.Version == "v0.26.5": // the native tables stay, and do their work
		return ""
	case strings.Contains(r.Name, "to-iptables"):
		return incident.KindResidue
	case r.Backend == flannel.Nftables, len(r.Commits) == 0:
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
	for _, w := range r.wanted() {
		if w.ID.Backend == flannel.Nftables {
			continue
		}
		tool := toolOf(w.ID)
		n.Feed("*nat\n:OTHER - [0:0]\n-A OTHER -j MASQUERADE\nCOMMIT\n", tool, "--noflush") // uses conntrack
		n.Feed(r.restoreText(w), tool, "--noflush")
	}
	if r.Others > 0 {
		n.Feed(otherRules(r.Others), toolOf(r.wanted()[0].ID), "--noflush")
	}
	r.setUpNative(t, n)
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

func toolOf(id flannel.ChainID) string {
	program := map[flannel.Family]string{flannel.IPv4: "iptables", flannel.IPv6: "ip6tables"}[id.Family]
	if id.Backend == flannel.IptablesLegacy {
		return program + "-legacy-restore"
	}
	return program + "-nft-restore"
}

func (r restart) restoreText(w flannel.Wanted) string {
	rules, present, hooked := r.before(w)
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n:%s ACCEPT [0:0]\n", w.ID.Table, w.HookChain.Name)
	if present {
		fmt.Fprintf(&b, ":%s - [0:0]\n", w.ID.Name)
	}
	if hooked {
		fmt.Fprintf(&b, "-A %s %s\n", w.HookChain.Name, w.Hook)
	}
	for _, rule := range w.Rules[:rules] {
		fmt.Fprintf(&b, "-A %s %s\n", w.ID.Name, rule)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

func (r restart) setUpNative(t *testing.T, n *labtest.Namespace) {
	t.Helper()
	native := slices.DeleteFunc(r.wanted(), func(w flannel.Wanted) bool {
		_, present, _ := r.before(w)
		return w.ID.Backend != flannel.Nftables || !present
	})
	if len(native) == 0 {
		return
	}
	if r.Before == nil {
		n.Feed("*nat\n:OTHER - [0:0]\n-A OTHER -j MASQUERADE\nCOMMIT\n", "iptables-nft-restore") // uses conntrack
	}
	a := newActor(t, n)
	for _, f := range flannel.Families {
		n.Must("nft add table " + f.String() + " " + flannel.NativeTable(f)) // both are made, whatever the node has
	}
	for _, w := range native {
		byNetlink("", flannel.Nftables, nil, func(t *testing.T, b *wire.Batch) {
			if err := b.AddBaseChain(w.ID, *w.Base); err != nil {
				t.Fatal(err)
			}
			fill(t, b, w)
		}).refill(a)
	}
}

// play makes a restart again and judges what was found, unless a commit came so late that it is another restart.
func (r restart) play(t *testing.T, still *stalls) (inTime bool) {
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
	f.wait("the first commits", func() bool { made, _ := madeTimes(t, log.Name()); return len(made) == earlier })
	_ = unix.Kill(old.Process.Pid, unix.SIGKILL)
	_ = old.Wait()
	if len(r.Commits) == 0 { // it leaves its rules, and nobody comes back
		time.Sleep(2500 * time.Millisecond)
		r.judge(t, f, nil)
		return true
	}
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
	failed := ""
	if !f.wait("all commits", func() bool {
		made, failed = madeTimes(t, log.Name())
		return len(made) == len(r.Commits) || failed != ""
	}) {
		return true
	}
	if failed != "" || !r.inTime(made) {
		t.Log("once more, a commit came late", failed)
		return false
	}
	time.Sleep(2500 * time.Millisecond) // processes have been looked for since
	if off := r.off(f, made); off > 0 && off <= still.longest(e.Zero+made[0].from, e.Zero+made[len(made)-1].to) {
		t.Logf("measured again: the window is off by %v, and the machine stood still for longer", off)
		return false
	}
	r.judge(t, f, made)
	return true
}

// inTime tells whether the commits were made in their order and about at their distances. Programs that copy a large table
// take their own time.
func (r restart) inTime(made map[int]span) bool {
	allowed := 50 * time.Millisecond
	if r.Others > 0 && r.Backend == flannel.IptablesLegacy {
		allowed = time.Second
	}
	for i := 1; i < len(r.Commits); i++ {
		late := made[i].from - made[i-1].from - duration(r.Commits[i].MS-r.Commits[i-1].MS)
		if made[i].from < made[i-1].to || late.Abs() > allowed {
			return false
		}
	}
	return true
}

func duration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

func startReplay(t *testing.T, n *labtest.Namespace, e errand, log *os.File) *exec.Cmd {
	t.Helper()
	argv := []string{"/opt/bin/flanneld", "--ip-masq", "--kube-subnet-mgr"}
	if e.Restart.NoForward {
		argv = append(argv, "--iptables-forward-rules=false")
	}
	cmd := e.prepared(argv...)
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

// madeTimes reads when commits were really made, and what one says that could not be: one that builds on it came too late.
func madeTimes(t *testing.T, path string) (made map[int]span, failed string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	made = map[int]span{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var i int
		var from, to int64
		if _, err := fmt.Sscan(lines.Text(), &i, &from, &to); err != nil {
			return made, lines.Text()
		}
		made[i] = span{time.Duration(from), time.Duration(to)}
	}
	return made, ""
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
	first, last := made[r.first()], made[r.last()]
	record := duration(r.Commits[r.last()].MS - r.Commits[r.first()].MS)
	t.Logf("%-36s %-14s %.3f ms, recorded %.3f, made again %.3f", r.Name, inc.Kind, ms(window), ms(record), ms(last.from-first.from))
	if off := r.off(f, made); off > 0 {
		t.Errorf("window off by %v", off)
	}
}

// off tells how far the window that was found lies outside of the times of the calls that made it, 0 if that is within the
// limit.
func (r restart) off(f *folded, made map[int]span) time.Duration {
	found := f.incidents()
	if len(found) != 1 || found[0].Open {
		return 0
	}
	first, last, window := made[r.first()], made[r.last()], found[0].End.Sub(found[0].Start)
	outside := max(last.from-first.to-window, window-(last.to-first.from), 0)
	limit := 5 * time.Millisecond
	if !full() {
		limit = tolerance().each
	}
	if outside <= limit {
		return 0
	}
	return outside
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
