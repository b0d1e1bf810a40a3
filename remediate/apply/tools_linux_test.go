package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"flanwatch/flannel"
	"flanwatch/remediate"
	"flanwatch/watcher/lab/labtest"
)

func TestRulesInNfTablesNeedNoProgramAndThoseOfLegacyTheirOwn(t *testing.T) {
	n := newNode(t)
	n.healthy(flannel.IptablesNft)
	n.Feed(nativeTables, "nft", "-f", "-")
	n.applier.Tools = &Tools{}
	n.must(purge)
	n.live, n.native = true, new(bool)
	r := n.must(reapply)
	if len(r.Notes) != 2 || !strings.Contains(r.Notes[0], "verified by reading alone: there is no iptables-nft") {
		t.Errorf("notes %q", r.Notes)
	}
	n.live = false
	n.must(undoOf(r))
	n.healthy(flannel.IptablesLegacy)
	before := n.save(true)
	var refused *RefusedError
	if _, err := n.apply(purge); !errors.As(err, &refused) || !strings.Contains(err.Error(), "ip6tables-legacy") && !strings.Contains(err.Error(), "iptables-legacy") {
		t.Fatalf("got %v", err)
	}
	wantSame(t, "ruleset", lines(n.save(true)), lines(before))
}

func TestLegacyProgramsOfEveryAgeWorkUnderTheRealLock(t *testing.T) {
	for _, release := range []string{"bullseye", "bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) {
			n := newNode(t)
			root := labtest.IptablesRoot(t, release)
			n.Must("mount --bind /proc " + root + "/proc")
			n.Must("mount -t tmpfs tmpfs " + root + "/run")
			n.healthy(flannel.IptablesLegacy)
			start := n.save(false)
			n.applier.Root = root
			if err := n.Do(func() error {
				n.applier.Tools = FindTools(context.Background(), root)
				tool, err := n.applier.Tools.Find(flannel.IptablesLegacy, flannel.IPv4, restore)
				if err == nil && tool.Backend != flannel.IptablesLegacy {
					err = fmt.Errorf("found %+v", tool)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			r := n.must(purge)
			if got := n.save(false); strings.Contains(got, "FLANNEL") {
				t.Errorf("left:\n%s", got)
			}
			r = n.must(undoOf(r))
			wantSame(t, "after undo", lines(n.save(false)), lines(start))
			if len(r.Notes) != 0 {
				t.Errorf("the root's own iptables -C was not asked: %q", r.Notes)
			}
		})
	}
}

// k3s unpacks one program of each backend, which is all of its programs by the word that follows; on a host without iptables
// there is nothing else.
func TestTheProgramsThatK3sUnpacksAreEnough(t *testing.T) {
	n := newNode(t)
	debian := labtest.IptablesRoot(t, "bookworm")
	n.Shell(`r=/run/host; aux=$r/var/lib/rancher/k3s/data/0123abcd/bin/aux; mkdir -p $aux $r/usr/lib $r/proc $r/run $r/dev
		mount --bind ` + debian + `/usr/lib $r/usr/lib; mount --bind /proc $r/proc; ln -s usr/lib $r/lib
		test -d ` + debian + `/usr/lib64 && { mkdir $r/usr/lib64; mount --bind ` + debian + `/usr/lib64 $r/usr/lib64; ln -s usr/lib64 $r/lib64; }
		cp ` + debian + `/usr/sbin/xtables-*-multi $aux`)
	n.healthy(flannel.IptablesLegacy)
	start := n.save(false)
	n.applier.Root = "/run/host"
	if err := n.Do(func() error {
		n.applier.Tools = FindTools(context.Background(), "/run/host")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		for _, verb := range []string{check, save, restore} {
			tool, err := n.applier.Tools.Find(p.b, p.f, verb)
			if err != nil || tool.Version != "1.8.9" || tool.Backend != p.b || len(tool.Words) != 1 ||
				!strings.HasPrefix(tool.Path, "/var/lib/rancher/k3s/data/0123abcd/bin/aux/xtables-") {
				t.Fatalf("%s%s: %+v, %v", p.name, verb, tool, err)
			}
		}
	}
	r := n.must(purge)
	if got := n.save(false); strings.Contains(got, "FLANNEL") {
		t.Errorf("left:\n%s", got)
	}
	if back := n.must(undoOf(r)); len(back.Notes) != 0 {
		t.Errorf("iptables -C was not asked: %q", back.Notes)
	}
	wantSame(t, "after undo", lines(n.save(false)), lines(start))
}

func TestTablesThatIptablesCallsIncompatibleAreFound(t *testing.T) {
	n := newNode(t)
	n.healthy(flannel.IptablesNft)
	n.Must("nft add chain ip nat strange { type nat hook postrouting priority 101 ; }")
	var got map[flannel.TableID]string
	if err := n.Do(func() error {
		got = n.tools().Incompatible(context.Background())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	nat := flannel.MasqChain(flannel.IptablesNft, flannel.IPv4).TableID()
	if len(got) != 1 || !strings.Contains(got[nat], "incompatible") {
		t.Errorf("got %v", got)
	}
}

func TestWordsAreSplitAsIptablesSaveQuotesThem(t *testing.T) {
	for text, want := range map[string][]string{
		`-s 10.0.0.0/8 -m comment --comment "flanneld masq" -j RETURN`: {"-s", "10.0.0.0/8", "-m", "comment", "--comment", "flanneld masq", "-j", "RETURN"},
		`--comment "a \"b\" c"`: {"--comment", `a "b" c`},
		`--comment "" -j X`:     {"--comment", "", "-j", "X"},
	} {
		if got := words(text); !slices.Equal(got, want) {
			t.Errorf("%s: got %q", text, got)
		}
	}
}

func TestAReceiptIsNotReadThroughALink(t *testing.T) {
	n := newNode(t)
	n.healthy(flannel.IptablesNft)
	r := n.must(purge)
	n.Must(fmt.Sprintf("ln -s %s.json %s/receipts/link.json", r.ID, n.state))
	if _, err := n.applier.Store.Get("link"); err == nil {
		t.Error("it was")
	}
	if _, err := n.applier.Store.Get("../receipts/" + r.ID); err == nil {
		t.Error("a path was taken for a name")
	}
	if list, err := n.applier.Store.List(); err == nil || len(list) != 1 || list[0].Result != remediate.ResultVerified {
		t.Errorf("listed %d, %v", len(list), err)
	}
}
