package apply

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
)

// resync is what flanneld does every period, with the programs and in the order that it uses: look for each rule, and where
// one is missing delete those that are there and add all.
const resync = `
look() { iptables-nft -t nat -C "$@" 2>/dev/null; }
rules() {
	echo 'POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG'
	echo 'FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN'
	echo 'FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j RETURN'
	echo 'FLANNEL-POSTRTG -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN'
	echo 'FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN'
	echo 'FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully'
	echo 'FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully'
}
while :; do
	iptables-nft -t nat -N FLANNEL-POSTRTG 2>/dev/null
	missing=
	rules > /run/rules
	while read -r r; do eval "look $r" || missing=1; done < /run/rules
	if [ "$missing" ]; then
		{ echo '*nat'
		while read -r r; do eval "look $r" && echo "-D $r"; echo "-A $r"; done < /run/rules
		echo COMMIT; } > /run/change
		iptables-nft-restore --noflush --wait < /run/change 2>/dev/null
		echo repaired >> /run/repairs
	fi
	sleep 0.05
done`

func TestReapplyBesideFlanneldsOwnResync(t *testing.T) {
	n := newNode(t)
	n.live = true
	n.healthy(flannel.IptablesNft)
	want := n.Shell("iptables-nft-save 2>/dev/null | grep -v '^[#:]'")
	loop := exec.Command("sh", "-c", resync)
	if err := n.Start(loop); err != nil {
		t.Fatal(err)
	}
	defer func() {
		loop.Process.Kill() //nolint:errcheck // it may be gone
		loop.Wait()         //nolint:errcheck // it was killed
	}()
	applied, stale, second := 0, 0, 0
	for range *rounds {
		n.Must("iptables-nft -t nat -F FLANNEL-POSTRTG")
		time.Sleep(time.Duration(rand.IntN(120)) * time.Millisecond)
		if p := n.plan(reapply); !p.Empty() {
			if _, err := n.applyID(p.ID, reapply); err == nil {
				applied++
			} else {
				stale++
			}
		}
		time.Sleep(400 * time.Millisecond) // two repair periods and more
		if p := n.plan(reapply); !p.Empty() {
			second++
			if _, err := n.applyID(p.ID, reapply); err != nil {
				t.Errorf("second look: %v", err)
			}
		}
		wantSame(t, "after the second look", lines(n.Shell("iptables-nft-save 2>/dev/null | grep -v '^[#:]'")), lines(want))
	}
	t.Logf("%d rounds: %d applied, %d times flanneld was faster on the way, %d times the second look found something", *rounds, applied, stale, second)
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
