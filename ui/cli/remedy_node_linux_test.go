package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flanwatch/assets"
	"flanwatch/ui/cli"
	"flanwatch/watcher/lab/labtest"
)

// bare is a root without any program, as the node of a distribution that has none, seen from a debug pod.
func bare(t *testing.T, n *labtest.Namespace) string {
	t.Helper()
	n.Shell("mkdir -p /run/bare/proc /run/bare/run/flannel; mount --bind /proc /run/bare/proc; cp /run/flannel/subnet.env /run/bare/run/flannel")
	return n.Root() + "/run/bare"
}

// flanwatchIn runs a command with the files and programs of a root, and without any of ours.
func flanwatchIn(t *testing.T, n *labtest.Namespace, root, state string, args ...string) remedied {
	t.Helper()
	path := os.Getenv("PATH")
	os.Setenv("PATH", "/nonexistent")
	defer os.Setenv("PATH", path)
	var out, errs bytes.Buffer
	args = append(args, "--netns", n.Path(), "--root", root, "--state", state)
	code := cli.Main(t.Context(), args, cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	return remedied{code, out.String(), errs.String()}
}

func planID(t *testing.T, out string) string {
	t.Helper()
	for line := range strings.Lines(out) {
		if id, ok := strings.CutPrefix(line, "plan "); ok {
			return strings.TrimSpace(id)
		}
	}
	t.Fatalf("no plan in\n%s", out)
	return ""
}

func TestWithoutAnyProgramEverythingOnNfTablesWorksAndLegacySaysWhatItLacks(t *testing.T) {
	n := node(t)
	state, root := filepath.Join(t.TempDir(), "state"), bare(t, n)
	n.Feed(rules4, "iptables-nft-restore")
	n.Feed(rules6, "ip6tables-nft-restore")
	n.Feed("table ip flannel-ipv4 {\n\tchain postrtg {\n\t\ttype nat hook postrouting priority 100; policy accept;\n\t}\n}\n", "nft", "-f", "-")
	rules := func() string { return n.Shell(allRules + "; nft list tables") }
	before := rules()
	p := flanwatchIn(t, n, root, state, "purge", "--dry-run")
	if p.code != cli.ExitFinding {
		t.Fatalf("%+v", p)
	}
	if got := flanwatchIn(t, n, root, state, "purge", "--plan", planID(t, p.out), "--look-again", "0"); got.code != cli.ExitOK {
		t.Fatalf("%+v", got)
	}
	if left := rules(); strings.Contains(strings.ToLower(left), "flannel") {
		t.Errorf("left:\n%s", left)
	}
	p = flanwatchIn(t, n, root, state, "undo", "--dry-run")
	got := flanwatchIn(t, n, root, state, "undo", "--plan", planID(t, p.out))
	if got.code != cli.ExitOK || !strings.Contains(got.out, "verified by reading alone: there is no iptables-nft") {
		t.Errorf("%+v", got)
	}
	if after := rules(); after != before {
		t.Errorf("it was\n%s\nand is\n%s", before, after)
	}

	n.Feed(rules4, "iptables-legacy-restore")
	for _, args := range [][]string{{"--dry-run"}, {"--plan", "0123456789abcdef"}} {
		got := flanwatchIn(t, n, root, state, append([]string{"purge"}, args...)...)
		if got.code != cli.ExitRefused || !strings.Contains(got.out, "changed by its own program, and there is none: find iptables-legacy-restore") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if after := n.Shell("iptables-legacy-save"); !strings.Contains(after, "FLANNEL-POSTRTG") {
		t.Errorf("then\n%s", after)
	}
}

// The files of the node lie below --root, its programs run there, and its packet filter is in --netns.
func TestAnotherRootsOwnProgramsDoTheWorkAndAreAsked(t *testing.T) {
	n := node(t)
	state, debian := filepath.Join(t.TempDir(), "state"), labtest.IptablesRoot(t, "bookworm")
	n.Shell("mkdir -p /run/host; mount --bind " + debian + " /run/host; mount --bind /proc /run/host/proc; mount -t tmpfs tmpfs /run/host/run; mkdir /run/host/run/flannel; mv /run/flannel/subnet.env /run/host/run/flannel")
	root := n.Root() + "/run/host"
	n.Feed(rules4, "iptables-legacy-restore")
	n.Feed(rules6, "ip6tables-nft-restore")
	before := n.Shell(allRules)
	p := flanwatchIn(t, n, root, state, "purge", "--dry-run")
	if p.code != cli.ExitFinding || !strings.Contains(p.out, "iptables-legacy-restore --noflush, table nat") {
		t.Fatalf("%+v", p)
	}
	got := flanwatchIn(t, n, root, state, "purge", "--plan", planID(t, p.out), "--look-again", "0")
	if left := n.Shell(allRules); got.code != cli.ExitOK || strings.Contains(left, "FLANNEL") {
		t.Fatalf("%+v\n%s", got, left)
	}
	if out := n.Shell("ls /run/host/run/xtables.lock"); out == "" {
		t.Error("the lock of that root was not taken")
	}
	p = flanwatchIn(t, n, root, state, "undo", "--dry-run")
	got = flanwatchIn(t, n, root, state, "undo", "--plan", planID(t, p.out))
	if got.code != cli.ExitOK || strings.Contains(got.out, "note:") {
		t.Errorf("%+v", got)
	}
	if after := n.Shell(allRules); after != before {
		t.Errorf("it was\n%s\nand is\n%s", before, after)
	}
	history := flanwatch(t, n, state, "history", "-o", "json")
	hold(t, assets.HistorySchema, []byte(history.out))

	other := node(t)
	other.Feed(rules4, "iptables-nft-restore")
	if got := flanwatch(t, other, state, "undo", lastOf(t, history.out), "--dry-run"); got.code != cli.ExitRefused {
		t.Errorf("in another namespace: %+v", got)
	}
}

func lastOf(t *testing.T, history string) string {
	t.Helper()
	_, rest, _ := strings.Cut(history, `"id": "`)
	id, _, ok := strings.Cut(rest, `"`)
	if !ok {
		t.Fatal(history)
	}
	return id
}

func TestAChainThatIsEmptiedAgainAndAgainIsNotRepairedUnlessAPersonSaysSo(t *testing.T) {
	program := buildFlanwatch(t)
	n := node(t)
	state := filepath.Join(t.TempDir(), "state")
	n.Feed(rules4, "iptables-nft-restore")
	n.Feed(rules6, "ip6tables-nft-restore")
	n.Flanneld("--ip-masq", "--kube-subnet-mgr", "--iptables-resync=1")
	time.Sleep(6500 * time.Millisecond)
	startRecord(t, n, program, state)
	time.Sleep(time.Second)
	for range 4 {
		n.Must("iptables-nft -t nat -F FLANNEL-POSTRTG")
		time.Sleep(2500 * time.Millisecond)
		n.Feed(rules4, "iptables-nft-restore")
		time.Sleep(500 * time.Millisecond)
	}
	n.Must("iptables-nft -t nat -F FLANNEL-POSTRTG")
	time.Sleep(1500 * time.Millisecond)
	p := preview(t, n, state, cli.ExitRefused, "reapply")
	if len(p.Guards) == 0 || !strings.Contains(p.Guards[len(p.Guards)-1].Why, "damaged again and again (5 times in 5m0s, last by iptables") || !p.Guards[len(p.Guards)-1].Judge {
		t.Errorf("guards %+v", p.Guards)
	}
	p = preview(t, n, state, cli.ExitFinding, "reapply", "--override", "flapping")
	if got := flanwatch(t, n, state, "reapply", "--override", "flapping", "--plan", p.ID, "--look-again", "0"); got.code != cli.ExitOK {
		t.Errorf("%+v", got)
	}
	if got := flanwatch(t, n, state, "history", "-o", "json"); !strings.Contains(got.out, `"flapping"`) {
		t.Errorf("the override is not recorded: %s", got.out)
	}
}

func TestTheSecondLookReportsARuleThatFlanneldDoubled(t *testing.T) {
	n := node(t)
	state := filepath.Join(t.TempDir(), "state")
	n.Feed(rules4, "iptables-nft-restore")
	n.Feed(rules6, "ip6tables-nft-restore")
	n.Flanneld("--ip-masq", "--kube-subnet-mgr", "--iptables-resync=1")
	n.Must("iptables-nft -t nat -D FLANNEL-POSTRTG 1")
	time.Sleep(6500 * time.Millisecond)
	p := preview(t, n, state, cli.ExitFinding, "reapply")
	doubled := make(chan error, 1)
	go func() { // flanneld looked before the repair, and adds after it
		for strings.Contains(n.Must("iptables-nft -t nat -S FLANNEL-POSTRTG 1"), "10.244.1.0/24") {
			time.Sleep(20 * time.Millisecond)
		}
		_, err := n.Run("sh", "-c", `iptables-nft -t nat -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN`)
		doubled <- err
	}()
	got := flanwatch(t, n, state, "reapply", "--plan", p.ID) // it looks again after two periods of a second
	if err := <-doubled; err != nil {
		t.Fatal(err)
	}
	if got.code != cli.ExitUnverified || !strings.Contains(got.errs, "after 2s it is not as it was left") || !strings.Contains(got.errs, "emove 1 rule") {
		t.Errorf("%+v", got)
	}
}
