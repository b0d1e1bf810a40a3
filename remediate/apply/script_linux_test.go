package apply

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"flanwatch/flannel"
	"flanwatch/remediate"
)

// byHand runs the script of a plan, as a person does who has no flanwatch.
func (n *node) byHand(p remediate.Plan) {
	n.t.Helper()
	cmd := exec.Command("sh")
	cmd.Stdin = strings.NewReader(p.Script())
	if out, err := n.Output(cmd); err != nil {
		n.t.Fatalf("%v: %s\n%s", err, out, p.Script())
	}
}

// twins are two namespaces in the same state: what a plan does in one by itself and in the other by hand must be the same.
func twins(t *testing.T, maker Maker, prepare func(n *node)) (applied, handled *node) {
	t.Helper()
	applied, handled = newNode(t), newNode(t)
	prepare(applied)
	prepare(handled)
	p := handled.plan(maker)
	if p.Empty() || p.ID != applied.plan(maker).ID {
		t.Fatalf("plan %q: %s", p.ID, p.Title)
	}
	applied.must(maker)
	handled.byHand(p)
	return applied, handled
}

// listing is what both backends hold, without counters and handles. Chains that were made are listed in the order of their
// making, which is of no account.
func (n *node) listing() string {
	var b strings.Builder
	for _, p := range programs {
		for line := range strings.Lines(n.Shell(p.name + "-save 2>/dev/null | grep -v '^[#:]' || :")) {
			b.WriteString(p.name + " " + line)
		}
	}
	return b.String() + sorted(n.Shell("for t in ip6:flannel-ipv6 ip:flannel-ipv4; do nft list table ${t%:*} ${t#*:} 2>/dev/null || :; done"))
}

func TestTheScriptOfARepairDoesWhatTheRepairDoes(t *testing.T) {
	for _, b := range []flannel.Backend{flannel.IptablesNft, flannel.IptablesLegacy} {
		for name, script := range broken {
			if !full && b == flannel.IptablesLegacy && !slices.Contains([]string{"jump thrice", "two thousand copies", "both emptied"}, name) {
				continue
			}
			t.Run(b.String()+" "+name, func(t *testing.T) {
				prog := remediate.Program(b, flannel.IPv4)
				applied, handled := twins(t, reapply, func(n *node) {
					n.live = true
					n.Must(prog + " -A FORWARD -s 192.0.2.0/24 -j ACCEPT")
					n.healthy(b)
					n.Must(prog + " -t nat -A POSTROUTING -s 192.0.2.0/24 -j ACCEPT")
					n.Shell(strings.ReplaceAll(script, "PROG", prog))
				})
				wantSame(t, "by hand", lines(handled.listing()), lines(applied.listing()))
				if p := handled.plan(reapply); !p.Empty() {
					t.Errorf("something is left to do: %s\n%s", p.Title, p.Script())
				}
			})
		}
	}
	for name, script := range native {
		t.Run("nftables "+name, func(t *testing.T) {
			applied, handled := twins(t, reapply, func(n *node) {
				n.live, n.native = true, new(bool)
				*n.native = true
				n.Must("nft flush ruleset")
				n.must(reapply)
				n.Shell(script)
			})
			wantSame(t, "by hand", lines(handled.listing()), lines(applied.listing()))
		})
	}
}

func TestTheScriptsOfAPurgeAndOfItsUndoDoWhatTheseDo(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			start := ""
			applied, handled := twins(t, purge, func(n *node) {
				n.arrange(arrangement{rand.New(rand.NewPCG(seed, 3)), 60}, seed%2 == 0)
				start = n.listing()
			})
			wantSame(t, "purged by hand", lines(handled.listing()), lines(applied.listing()))

			receipt := lastReceipt(t, applied)
			undo := undoOf(receipt)
			back := applied.plan(undo)
			applied.byHand(back)
			wantSame(t, "taken back by hand", lines(applied.listing()), lines(start))
		})
	}
}

func lastReceipt(t *testing.T, n *node) remediate.Receipt {
	t.Helper()
	list, err := n.applier.Store.List()
	if err != nil || len(list) == 0 {
		t.Fatalf("%d receipts, %v", len(list), err)
	}
	return list[0]
}
