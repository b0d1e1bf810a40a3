package apply

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/remediate"
)

// healthy fills the namespace with today's rules in one backend.
func (n *node) healthy(b flannel.Backend) {
	n.t.Helper()
	n.healthyBy(nil, b)
}

// healthyBy does so by the programs that some words lead to.
func (n *node) healthyBy(words []string, b flannel.Backend) {
	n.t.Helper()
	for _, f := range flannel.Families {
		var text strings.Builder
		for _, w := range flannel.Expected(networks, subnets, flannel.GenV0210, all, b, f) {
			fmt.Fprintf(&text, "*%s\n:%s - [0:0]\n-A %s %s\n", w.ID.Table, w.ID.Name, w.HookChain.Name, w.Hook)
			for _, r := range w.Rules {
				fmt.Fprintf(&text, "-A %s %s\n", w.ID.Name, r)
			}
			text.WriteString("COMMIT\n")
		}
		words := append(slices.Clone(words), remediate.Program(b, f)+"-restore", "--noflush")
		n.Feed(text.String(), words[0], words[1:]...)
	}
}

func TestACommitOnTheRulesConcernedMakesAPlanStale(t *testing.T) {
	n := newNode(t)
	n.healthy(flannel.IptablesNft)
	id := n.plan(purge).ID
	n.Must("iptables-nft -t nat -D FLANNEL-POSTRTG 3")
	before := n.save(true)
	_, err := n.applyID(id, purge)
	if !errors.Is(err, ErrStale) {
		t.Fatalf("got %v", err)
	}
	wantSame(t, "ruleset", lines(n.save(true)), lines(before))
	if list, err := n.applier.Store.List(); err != nil || len(list) != 0 {
		t.Errorf("receipts %v, %v", list, err)
	}
}

func TestAnUnrelatedCommitLeavesAPlanAsItIs(t *testing.T) {
	n := newNode(t)
	n.healthy(flannel.IptablesNft)
	id := n.plan(purge).ID
	n.Must("iptables-nft -t nat -I POSTROUTING -s 192.0.2.0/24 -j RETURN")
	n.Must("iptables-nft -P FORWARD DROP")
	commits := 0
	n.applier.before = func(m commitMoment) { // between our read and our batch
		if m.step == "batch" && m.try < 3 {
			if out, err := exec.Command("iptables-nft", "-I", "FORWARD", "-s", "192.0.2.9/32", "-j", "RETURN").CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			commits++
		}
	}
	if _, err := n.applyID(id, purge); err != nil {
		t.Fatal(err)
	}
	if got := n.save(true); commits != 3 || strings.Contains(got, "FLANNEL") || strings.Count(got, "192.0.2.") != 4 {
		t.Errorf("%d commits between, then\n%s", commits, got)
	}
}

func TestARelatedCommitBetweenReadAndBatchStopsThePlan(t *testing.T) {
	n := newNode(t)
	n.healthy(flannel.IptablesNft)
	var before string
	n.applier.before = func(m commitMoment) {
		if m.step == "batch" && m.try == 0 {
			exec.Command("iptables-nft", "-F", "FLANNEL-FWD").Run() //nolint:errcheck // seen below
			out, _ := exec.Command("iptables-nft-save").Output()
			before = string(out)
		}
	}
	if _, err := n.apply(purge); !errors.Is(err, ErrStale) {
		t.Fatalf("got %v", err)
	}
	if !strings.Contains(before, ":FLANNEL-FWD") || !strings.Contains(n.Must("iptables-nft-save"), ":FLANNEL-FWD") {
		t.Error("something was changed")
	}
}

func TestAHeldLockIsWaitedForWithABoundAndItsHolderNamed(t *testing.T) {
	n := newNode(t)
	n.healthy(flannel.IptablesLegacy)
	before := n.save(true)
	hold := exec.Command("flock", "/run/xtables.lock", "sleep", "30")
	if err := n.Start(hold); err != nil {
		t.Fatal(err)
	}
	defer func() {
		hold.Process.Kill() //nolint:errcheck // it may be gone
		hold.Wait()         //nolint:errcheck // it was killed
	}()
	for i := 0; i < 100 && !strings.Contains(n.Must("cat /proc/locks"), fmt.Sprint(hold.Process.Pid)); i++ {
		time.Sleep(10 * time.Millisecond)
	}
	start := time.Now()
	_, err := n.apply(purge)
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("[%d]", hold.Process.Pid)) {
		t.Errorf("got %v", err)
	}
	if d := time.Since(start); d > 3*time.Second {
		t.Errorf("waited %v", d)
	}
	if !strings.Contains(before, "FLANNEL-POSTRTG") {
		t.Error("no rules to begin with")
	}
	wantSame(t, "ruleset", lines(n.save(true)), lines(before))
}

func TestWithoutABackupNothingIsChanged(t *testing.T) {
	n := newNode(t)
	n.healthy(flannel.IptablesNft)
	n.healthy(flannel.IptablesLegacy)
	before := n.save(true)
	for name, prepare := range map[string]func() string{
		"a full disk": func() string {
			n.Must("mkdir -p /run/full")
			n.Must("mount -t tmpfs -o size=4k tmpfs /run/full")
			return "/run/full/state"
		},
		"a disk that is full after the backup": func() string {
			n.Must("mkdir -p /run/small")
			n.Must("mount -t tmpfs -o size=24k tmpfs /run/small")
			return "/run/small/state"
		},
		"a read-only disk": func() string {
			n.Must("mkdir -p /run/ro")
			n.Must("mount -t tmpfs -o ro tmpfs /run/ro")
			return "/run/ro/state"
		},
		"a folder that others may write": func() string {
			n.Must("mkdir -p -m 0777 /run/open")
			n.Must("chmod 0777 /run/open")
			return "/run/open"
		},
		"a link in its place": func() string {
			n.Must("mkdir -p /run/elsewhere")
			n.Must("ln -s /run/elsewhere /run/link")
			return "/run/link"
		},
	} {
		n.applier = n.newApplier()
		n.applier.Store = NewStore(prepare())
		if _, err := n.apply(purge); !errors.Is(err, ErrNoBackup) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	wantSame(t, "ruleset", lines(n.save(true)), lines(before))
}

func TestReadOnlyRefusesToCarryOut(t *testing.T) {
	n := newNode(t)
	n.healthy(flannel.IptablesNft)
	n.applier.ReadOnly = true
	if _, err := n.apply(purge); !errors.Is(err, ErrReadOnly) {
		t.Errorf("got %v", err)
	}
}

func TestBackupAndReceiptAreForRootAlone(t *testing.T) {
	n := newNode(t)
	n.healthy(flannel.IptablesNft)
	r := n.must(purge)
	text, err := os.ReadFile(r.Backup)
	if err != nil || !strings.Contains(string(text), "-A FLANNEL-POSTRTG") {
		t.Errorf("backup: %v\n%s", err, text)
	}
	for path, mode := range map[string]os.FileMode{
		n.state: 0o700, n.state + "/backup": 0o700, n.state + "/receipts": 0o700, r.Backup: 0o600, n.state + "/receipts/" + r.ID + ".json": 0o600,
	} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, st.Mode(), err)
		}
	}
}

// failing puts a restore program in place that fails at its n-th real run.
func failing(n *node, at int) *Tools {
	script := fmt.Sprintf(`#!/bin/sh
case "$*" in *--test*|*-version*) ;; *)
	echo x >> /run/runs
	[ "$(wc -l < /run/runs)" -eq %d ] && { echo "injected failure" >&2; exit 1; } ;;
esac
exec %%s "$@"
`, at)
	t := &Tools{found: map[string]Tool{}}
	for name, tool := range n.tools().found {
		t.found[name] = tool
		if strings.Contains(name, "legacy-restore") {
			path := "/run/" + name
			n.Write(path, fmt.Sprintf(script, tool.Path))
			n.Must("chmod 755 " + path)
			tool.Path = path
			t.found[name] = tool
		}
	}
	return t
}

func TestARestoreThatFailsLaterReturnsToTheStateBefore(t *testing.T) {
	for at := 1; at <= 4; at++ {
		n := newNode(t)
		n.healthy(flannel.IptablesLegacy)
		n.healthy(flannel.IptablesNft)
		before := n.save(false)
		n.applier.Tools = failing(n, at)
		_, err := n.apply(purge)
		var u *UnverifiedError
		if !errors.As(err, &u) || !u.Returned || !strings.Contains(err.Error(), "injected failure") {
			t.Fatalf("table %d: %v", at, err)
		}
		wantSame(t, fmt.Sprintf("table %d", at), lines(n.save(false)), lines(before))
	}
}

func TestLegacyIsReturnedWhenTheBatchFails(t *testing.T) {
	n := newNode(t)
	n.healthy(flannel.IptablesLegacy)
	n.healthy(flannel.IptablesNft)
	n.Must("iptables-nft -t nat -N OTHER") // a reference that nobody looks for
	n.Must("iptables-nft -t nat -A OTHER -j FLANNEL-POSTRTG")
	before := n.save(false)
	_, err := n.apply(purge)
	var u *UnverifiedError
	if !errors.As(err, &u) || !u.Returned {
		t.Fatalf("got %v", err)
	}
	wantSame(t, "ruleset", lines(n.save(false)), lines(before))
}

func TestADeathOnTheWayLeavesBeforeOrAfter(t *testing.T) {
	n := newNode(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	befores, afters, halves := 0, 0, 0
	var span, longest time.Duration
	for i := range *kills + 1 {
		n.Shell("for p in iptables-legacy ip6tables-legacy; do for t in nat filter; do $p -t $t -F; $p -t $t -X; done; done; nft flush ruleset")
		n.healthy(flannel.IptablesLegacy)
		n.healthy(flannel.IptablesNft)
		n.Feed(nativeTables, "nft", "-f", "-")
		nftBefore, legacyBefore, before := n.nftState(), n.legacyState(), n.save(false)
		cmd := exec.Command(self, "purge-here", n.state, "gone")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Start(cmd); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 8)
		out.Read(buf)                       //nolint:errcheck // the apply begins
		if begun := time.Now(); span == 0 { // the first one shows how long it takes
			cmd.Wait() //nolint:errcheck // seen below
			span = time.Since(begun)
			continue
		}
		time.Sleep(time.Duration(rand.Int64N(int64(span))))
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		cmd.Wait()         //nolint:errcheck // it was killed
		died := time.Now()
		nftThen := n.nftState() // nobody may have to put nf_tables right
		if nftThen != nftBefore && strings.Contains(strings.ToLower(nftThen), "flannel") {
			t.Fatalf("kill %d: nf_tables is between:\n%s", i, nftThen)
		}
		for half := false; time.Since(died) < 2*time.Second; time.Sleep(time.Millisecond) {
			if now := n.legacyState(); now == legacyBefore || !strings.Contains(now, "FLANNEL") {
				break
			}
			longest = max(longest, time.Since(died))
			if !half {
				halves++
			}
			half = true
		}
		state := n.save(false)
		switch {
		case state == before:
			befores++
		case !strings.Contains(state, "FLANNEL") && nftThen != nftBefore:
			afters++
		default:
			t.Errorf("kill %d: neither before nor after:\n%s", i, state)
		}
	}
	list, err := n.applier.Store.List()
	if err != nil {
		t.Fatal(err)
	}
	rescued := 0
	for _, r := range list {
		if r.Result == remediate.ResultFailed && strings.Contains(r.Why, "died half-way") {
			rescued++
		}
	}
	t.Logf("%d kills in the %v of an apply: %d before, of them %d put back by the process that survives; %d after; %d seen half done, back after %v at most",
		*kills, span.Round(time.Millisecond), befores, rescued, afters, halves, longest.Round(time.Millisecond))
}

// nftState is what nf_tables holds, handles included.
func (n *node) nftState() string {
	n.t.Helper()
	return n.Must("nft -a list ruleset")
}

// legacyState is what iptables-legacy holds, read by us, since its programs take longer than what is waited for.
func (n *node) legacyState() string {
	n.t.Helper()
	var b strings.Builder
	if err := n.Do(func() error {
		f, err := n.eyes.rules(remediate.Facts{}, true)
		for _, c := range f.Facts.Rules[flannel.IptablesLegacy].Value.Chains {
			for _, e := range c.Entries {
				fmt.Fprintln(&b, c.ID, e.Rule)
			}
		}
		return err
	}); err != nil {
		n.t.Fatal(err)
	}
	return b.String()
}
