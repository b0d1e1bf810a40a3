package apply

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
	"flanwatch/remediate"
)

// resync is what flanneld does every period for one list of rules, with the programs and in the order that it uses: look for
// each rule, and where one is missing write those that are there anew and add the rest. PROG is its iptables, TABLE and CHAIN
// are where its list belongs, and the list comes as input.
const resync = `
cat > /run/TABLE.rules
look() { PROG -t TABLE -S CHAIN 1 --wait >/dev/null 2>&1; PROG -t TABLE -C "$@" --wait 2>/dev/null; }
while :; do
	PROG -t TABLE -N CHAIN --wait 2>/dev/null
	missing=; there=
	while read -r r; do if eval "look $r"; then there="$there -D $r
"; else missing=1; fi; done < /run/TABLE.rules
	if [ "$missing" ]; then
		{ echo '*TABLE'; while read -r r; do case "$there" in *" -D $r
"*) echo "-D $r";; esac; echo "-A $r"; done < /run/TABLE.rules; echo COMMIT; } > /run/TABLE.change
		PROG-restore --noflush --wait < /run/TABLE.change 2>/dev/null && echo repaired >> /run/repairs
	fi
	echo x >> /run/TABLE.periods
	sleep 0.05
done`

// flanneld repairs Flannel's rules of IPv4 in a backend until the test ends.
func (n *node) flanneld(b flannel.Backend) {
	n.t.Helper()
	for _, w := range flannel.Expected(networks, subnets, flannel.GenV0210, all, b, flannel.IPv4) {
		list := w.HookChain.Name + " " + w.Hook.String() + "\n"
		for _, r := range w.Rules {
			list += w.ID.Name + " " + r.String() + "\n"
		}
		script := strings.NewReplacer("PROG", remediate.Program(b, flannel.IPv4), "TABLE", w.ID.Table, "CHAIN", w.ID.Name).Replace(resync)
		loop := exec.Command("sh", "-c", script)
		loop.Stdin = strings.NewReader(list)
		loop.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := n.Start(loop); err != nil {
			n.t.Fatal(err)
		}
		n.t.Cleanup(func() {
			syscall.Kill(-loop.Process.Pid, syscall.SIGKILL) //nolint:errcheck // it may be gone
			loop.Wait()                                      //nolint:errcheck // it was killed
		})
	}
}

// periods waits until flanneld has looked through every list from its beginning to its end, twice.
func (n *node) periods() {
	n.t.Helper()
	for _, table := range []string{flannel.TableNat, flannel.TableFilter} {
		count := func() int { return strings.Count(n.Shell("cat /run/"+table+".periods 2>/dev/null || :"), "x") }
		for begun, end := count(), time.Now().Add(30*time.Second); count() < begun+3; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				n.t.Fatal("flanneld does not look")
			}
		}
	}
}

// repairs tells how often flanneld found something to repair.
func (n *node) repairs() int {
	n.t.Helper()
	return strings.Count(n.Shell("cat /run/repairs 2>/dev/null || :"), "repaired")
}

// inOrder are the lines of a listing in the order of their words: where chains stand that flanneld writes anew is of no account.
func inOrder(listing string) []string {
	out := lines(listing)
	slices.Sort(out)
	return out
}

// copies gives Flannel's lines that stand more than once.
func copies(save string) []string {
	count, out := map[string]int{}, []string(nil)
	for line := range strings.Lines(save) {
		if count[line]++; count[line] == 2 && strings.Contains(line, "flanneld") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

func TestReapplyBesideFlanneldsOwnResync(t *testing.T) {
	n := newNode(t)
	n.live = true
	n.healthy(flannel.IptablesNft)
	rules := func() string { return n.Shell("iptables-nft-save 2>/dev/null | grep -v '^[#:]'") }
	want := rules()
	n.flanneld(flannel.IptablesNft)
	applied, faster, doubled := 0, 0, 0
	damage := []string{
		"iptables-nft -t nat -F FLANNEL-POSTRTG", "iptables-nft -F FLANNEL-FWD",
		`iptables-nft -t nat -D POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG`, "iptables-nft -t nat -D FLANNEL-POSTRTG 6",
	}
	for i := range *rounds {
		n.Shell(damage[i%len(damage)] + " || :") // a rule that flanneld is just writing anew cannot be deleted
		time.Sleep(time.Duration(rand.IntN(120)) * time.Millisecond)
		if p := n.plan(reapply); !p.Empty() {
			if r, err := n.applyID(p.ID, reapply); err == nil {
				applied++
			} else if _, known := err.(*UnverifiedError); known || errors.Is(err, ErrStale) || errors.Is(err, ErrNothing) {
				faster++
			} else {
				t.Errorf("round %d: %v, %+v", i, err, r)
			}
		}
		n.periods()
		made := copies(rules())
		p := n.plan(reapply)
		switch {
		case len(made) > 0 && p.Empty():
			t.Errorf("round %d: the second look does not see %q", i, made)
		case len(made) > 0:
			doubled++
		}
		for try := 0; !p.Empty() && try < 5; try++ { // flanneld may be at it this very moment
			if _, err := n.applyID(p.ID, reapply); err != nil && try == 4 {
				t.Errorf("second look: %v", err)
			}
			p = n.plan(reapply)
		}
		wantSame(t, fmt.Sprintf("round %d, after the second look", i), inOrder(rules()), inOrder(want))
	}
	t.Logf("%d rounds: %d applied, %d times flanneld was faster on the way; it repaired %d times, and doubled %d times what it had just looked for",
		*rounds, applied, faster, n.repairs(), doubled)
}

func TestPurgeOfResidueBesideFlanneldsOwnResync(t *testing.T) {
	n := newNode(t)
	n.live, n.native = true, new(bool) // in iptables mode, so that the native tables are residue
	n.healthy(flannel.IptablesNft)
	rules := func() string {
		return n.Shell("for p in iptables ip6tables; do $p-nft-save 2>/dev/null | grep -v '^[#:]'; done")
	}
	want := rules()
	n.flanneld(flannel.IptablesNft)
	most := 0
	n.applier.before = func(m commitMoment) { most = max(most, m.try) }
	for i := range *rounds {
		n.Feed(nativeTables, "nft", "-f", "-")
		var bare strings.Builder // of a generation without chains
		for _, w := range flannel.Expected(networks, subnets, flannel.GenV0162, all, flannel.IptablesNft, flannel.IPv6) {
			fmt.Fprintf(&bare, "*%s\n", w.ID.Table)
			for _, r := range w.Rules {
				fmt.Fprintf(&bare, "-A %s %s\n", w.ID.Name, r)
			}
			bare.WriteString("COMMIT\n")
		}
		n.Feed(bare.String(), "ip6tables-nft-restore", "--noflush")
		n.Shell("iptables-nft -t nat -D FLANNEL-POSTRTG 6 || :") // flanneld has something to write
		time.Sleep(time.Duration(rand.IntN(120)) * time.Millisecond)
		if _, err := n.apply(purge); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if left := n.Must("nft list tables"); strings.Contains(left, "flannel") {
			t.Fatalf("round %d: left\n%s", i, left)
		}
		got := inOrder(rules())
		for end := time.Now().Add(3 * time.Second); !slices.Equal(got, inOrder(want)) && time.Now().Before(end); got = inOrder(rules()) {
			time.Sleep(20 * time.Millisecond)
		}
		wantSame(t, fmt.Sprintf("round %d", i), got, inOrder(want))
	}
	t.Logf("%d purges, of which the longest took %d tries; flanneld repaired %d times", *rounds, most+1, n.repairs())
}

func TestTheSecondLookFindsWhatFlanneldsCheckThenAddDoubled(t *testing.T) {
	n := newNode(t)
	n.live = true
	n.healthy(flannel.IptablesNft)
	rules := func() string { return n.Shell("iptables-nft-save 2>/dev/null | grep -v '^[#:]'") }
	want := rules()
	hook := `POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG`
	rule := `FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN`
	n.Shell("iptables-nft -t nat -D " + hook + "; iptables-nft -t nat -D " + rule)
	n.Shell("! iptables-nft -t nat -C " + hook + " 2>/dev/null; ! iptables-nft -t nat -C " + rule + " 2>/dev/null") // flanneld looks,
	n.must(reapply)
	n.Shell("iptables-nft -t nat -A " + hook + "; iptables-nft -t nat -A " + rule) // and adds
	p := n.plan(reapply)
	if p.Empty() || !strings.Contains(p.Title, "emove 1 rule") {
		t.Errorf("the second look says %q", p.Title)
	}
	n.must(reapply)
	wantSame(t, "after the second look", lines(rules()), lines(want))
}

func TestAProgramThatDoesNotKeepTheLockLosesNoRuleToUs(t *testing.T) {
	n := newNode(t)
	n.healthy(flannel.IptablesLegacy)
	n.Must("iptables-legacy -A FORWARD -s 192.0.2.1/32 -j ACCEPT")
	n.Must("iptables-legacy -t nat -I POSTROUTING -s 192.0.2.2/32 -j RETURN")
	heedless := func(args ...string) {
		cmd := exec.Command("iptables-legacy", args...)
		cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE=/run/another.lock")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	n.applier.before = func(m commitMoment) { // we have read, and the restore program has not
		if m.step == "transaction" && m.try == 0 {
			heedless("-I", "FORWARD", "-s", "192.0.2.3/32", "-j", "ACCEPT")
			heedless("-t", "nat", "-I", "POSTROUTING", "-s", "192.0.2.4/32", "-j", "RETURN")
		}
	}
	r := n.must(purge)
	if got := n.save(true); strings.Contains(got, "FLANNEL") || strings.Count(got, "192.0.2.") != 4 {
		t.Errorf("then\n%s", got)
	}
	n.applier.before = nil
	n.must(undoOf(r))
	if got := n.save(true); strings.Count(got, "-A FLANNEL-POSTRTG") != 12 || strings.Count(got, "192.0.2.") != 4 {
		t.Errorf("after undo\n%s", got)
	}
}

func TestOthersWhoCommitAllTheTimeDoNotStopThePlan(t *testing.T) {
	n := newNode(t)
	n.healthy(flannel.IptablesNft)
	n.Must("iptables-nft -t nat -N KUBE-SERVICES")
	var s *socket
	if err := n.Do(func() (err error) {
		s, err = dial()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	id := flannel.ChainID{Backend: flannel.IptablesNft, Family: flannel.IPv4, Table: "nat", Name: "KUBE-SERVICES"}
	rule, err := wire.Encode(id, flannel.Rule{Target: flannel.Target{Kind: flannel.TargetReturn}})
	if err != nil {
		t.Fatal(err)
	}
	var commits atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			b := &wire.Batch{}
			b.FlushChain(id)
			b.AppendRule(id, rule)
			if wire.Commit(s, b) == nil {
				commits.Add(1)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}()
	most := 0
	n.applier.before = func(m commitMoment) { most = max(most, m.try) }
	n.must(purge)
	cancel()
	<-ended
	t.Logf("%d commits of others, %d tries", commits.Load(), most+1)
}
