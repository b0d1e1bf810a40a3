package apply

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"flanwatch/flannel"
	"flanwatch/remediate"
	"flanwatch/watcher/lab/labtest"
)

const addTwice = `-A FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT`

// broken are states of a node of which each calls for reapply; PROG is iptables of the backend.
var broken = map[string]string{
	"chain emptied":           "PROG -t nat -F FLANNEL-POSTRTG",
	"both emptied":            "PROG -t nat -F FLANNEL-POSTRTG; PROG -F FLANNEL-FWD",
	"chain and jump gone":     "PROG -t nat -F; PROG -t nat -X",
	"jump gone":               `PROG -t nat -D POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG`,
	"jump thrice":             `for i in 1 2; do PROG -t nat -A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG; done`,
	"a rule missing":          "PROG -t nat -D FLANNEL-POSTRTG 5",
	"the first missing":       "PROG -t nat -D FLANNEL-POSTRTG 1",
	"out of order":            "PROG -t nat -D FLANNEL-POSTRTG 1; PROG -t nat -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment 'flanneld masq' -j RETURN",
	"two thousand copies":     "{ echo '*filter'; for i in $(seq 2000); do echo '" + addTwice + "'; done; echo COMMIT; } | PROG-restore --noflush",
	"with and without random": "PROG -t nat -I FLANNEL-POSTRTG 5 -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment 'flanneld masq' -j MASQUERADE",
	"of another subnet": "PROG -t nat -D FLANNEL-POSTRTG 2; PROG -t nat -I FLANNEL-POSTRTG 2 -s 10.244.9.0/24 -d 10.244.0.0/16 " +
		"-m comment --comment 'flanneld masq' -j RETURN",
	"a match lost": "PROG -t nat -D FLANNEL-POSTRTG 1; PROG -t nat -I FLANNEL-POSTRTG -m comment --comment 'flanneld masq' -j RETURN",
}

func TestReapplyEndsInTheExpectedSet(t *testing.T) {
	for _, b := range []flannel.Backend{flannel.IptablesNft, flannel.IptablesLegacy} {
		for name, script := range broken {
			t.Run(b.String()+" "+name, func(t *testing.T) {
				n := newNode(t)
				n.live = true
				prog := remediate.Program(b, flannel.IPv4)
				n.Must(prog + " -A FORWARD -s 192.0.2.0/24 -j ACCEPT")
				n.Must(prog + " -t nat -A POSTROUTING -s 192.0.2.0/24 -j ACCEPT")
				n.healthy(b)
				want := n.Shell(prog + "-save 2>/dev/null | grep -v '^[#:]'")
				n.Shell(strings.ReplaceAll(script, "PROG", prog))
				r := n.must(reapply)
				if name != "chain and jump gone" { // which took the rules of others with it
					wantSame(t, "ruleset", lines(n.Shell(prog+"-save 2>/dev/null | grep -v '^[#:]'")), lines(want))
				}
				if p := n.plan(reapply); !p.Empty() {
					t.Errorf("again: %s", p.Title)
				}
				if b == flannel.IptablesNft && name == "a rule missing" && len(r.Edits) != 1 {
					t.Errorf("edits %+v", r.Edits)
				}
			})
		}
	}
}

func TestReapplyFromNothingIsFoundByEveryIptables(t *testing.T) {
	n := newNode(t)
	n.live, n.native = true, new(bool)
	n.Must("nft flush ruleset")
	n.must(reapply)
	for _, release := range []string{"bullseye", "bookworm", "trixie"} {
		root := labtest.IptablesRoot(t, release)
		for _, f := range flannel.Families {
			for _, w := range flannel.Expected(networks, subnets, flannel.GenV0210, all, flannel.IptablesNft, f) {
				prog := fmt.Sprintf("chroot %s %s -t %s -C ", root, remediate.Program(flannel.IptablesNft, f), w.ID.Table)
				n.Shell(prog + w.HookChain.Name + " " + w.Hook.String())
				for _, r := range w.Rules {
					n.Shell(prog + w.ID.Name + " " + r.String())
				}
			}
		}
	}
}

// A node has one iptables, and flanneld looks by it: what that wrote and what was put back must be found alike.
func TestRulesPutRightAreFoundByTheIptablesThatWroteTheRest(t *testing.T) {
	for i, release := range []string{"bullseye", "bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) {
			inRoot := "chroot " + labtest.IptablesRoot(t, release) + " "
			n := newNode(t)
			n.live = true
			for k, name := range slices.Sorted(maps.Keys(broken)) {
				if !full && i > 0 && k%4 != i {
					continue
				}
				n.Must("nft flush ruleset")
				n.healthyBy(strings.Fields(inRoot), flannel.IptablesNft)
				n.Shell(strings.ReplaceAll(broken[name], "PROG", inRoot+"iptables-nft"))
				n.must(reapply)
				var looks strings.Builder
				for _, w := range flannel.Expected(networks, subnets, flannel.GenV0210, all, flannel.IptablesNft, flannel.IPv4) {
					prog := fmt.Sprintf("%siptables-nft -t %s -C ", inRoot, w.ID.Table)
					fmt.Fprintln(&looks, prog+w.HookChain.Name, w.Hook)
					for _, r := range w.Rules {
						fmt.Fprintln(&looks, prog+w.ID.Name, r)
					}
				}
				if out, err := n.Run("sh", "-exc", looks.String()); err != nil {
					t.Errorf("%s: %v: %s", name, err, out)
				}
			}
		})
	}
}

// native are broken states of Flannel's own tables.
var native = map[string]string{
	"tables gone":    "nft delete table ip flannel-ipv4",
	"chain emptied":  "nft flush chain ip flannel-ipv4 postrtg",
	"a rule missing": "nft delete rule ip flannel-ipv4 forward handle $(nft -a list chain ip flannel-ipv4 forward | sed -n 's/.*daddr.*handle //p')",
	"another hook": `nft delete chain ip flannel-ipv4 forward
		nft 'add chain ip flannel-ipv4 forward { type filter hook forward priority 10; policy accept; }'`,
}

func TestReapplyInNftablesMode(t *testing.T) {
	for name, script := range native {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.live, n.native = true, new(bool)
			*n.native = true
			n.Must("nft flush ruleset")
			n.must(reapply)
			want := n.Must("nft list ruleset")
			n.Shell(script)
			n.must(reapply)
			got := n.Must("nft list ruleset")
			if sorted(got) != sorted(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// sorted makes listings comparable whose chains were made in another order.
func sorted(listing string) string {
	count := map[string]int{}
	for l := range strings.Lines(listing) {
		count[l]++
	}
	return fmt.Sprint(count)
}

func TestForeignRulesInFlannelsChainStay(t *testing.T) {
	n := newNode(t)
	n.live = true
	n.healthy(flannel.IptablesNft)
	n.Must("iptables-nft -t nat -I FLANNEL-POSTRTG 3 -s 198.51.100.0/24 -j RETURN")
	n.Must("iptables-nft -t nat -D FLANNEL-POSTRTG 5")
	n.must(reapply)
	got := n.Must("iptables-nft -t nat -S FLANNEL-POSTRTG")
	if !strings.Contains(lines(got)[3], "198.51.100.0/24") || strings.Count(got, "-A") != 7 {
		t.Errorf("got %s", got)
	}
	n.live = false
	err := n.Do(func() error {
		f, err := n.facts()
		if err != nil {
			return err
		}
		if _, refused := purge(f); len(refused) == 0 || refused[0].Name != remediate.GuardForeign {
			return fmt.Errorf("purge refused %+v", refused)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestUndoRefusesWhereSomebodyRewroteTheRules(t *testing.T) {
	for name, script := range map[string]string{
		"a chain made again": "iptables-nft -t nat -N FLANNEL-POSTRTG",
		"all made again":     "",
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.healthy(flannel.IptablesNft)
			r := n.must(purge)
			if script == "" {
				n.healthy(flannel.IptablesNft)
			} else {
				n.Must(script)
			}
			before := n.save(true)
			var refused *RefusedError
			if _, err := n.applyID("x", undoOf(r)); !errors.As(err, &refused) || refused.Refusals[0].Name != remediate.GuardRewritten {
				t.Fatalf("got %v", err)
			}
			wantSame(t, "ruleset", lines(n.save(true)), lines(before))
		})
	}
}

func TestUndoFindsItsPlaceAmongRulesThatChanged(t *testing.T) {
	n := newNode(t)
	for _, s := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} {
		n.Must("iptables-nft -A FORWARD -s " + s + "/32 -j ACCEPT")
	}
	n.healthy(flannel.IptablesNft)
	n.Must("iptables-nft -A FORWARD -s 192.0.2.4/32 -j ACCEPT")
	r := n.must(purge)
	n.Must("iptables-nft -D FORWARD 3") // the neighbour before
	n.Must("iptables-nft -I FORWARD -s 192.0.2.9/32 -j ACCEPT")
	n.Must("iptables-nft -A FORWARD -s 192.0.2.8/32 -j ACCEPT")
	n.must(undoOf(r))
	var order []string
	for _, l := range lines(n.Must("iptables-nft -S FORWARD"))[1:] {
		f := strings.Fields(l)
		order = append(order, strings.TrimSuffix(strings.TrimPrefix(f[3], "192.0.2."), "/32"))
	}
	if got := strings.Join(order, " "); got != "9 1 2 comment 4 8" {
		t.Errorf("order %s", got)
	}
}
