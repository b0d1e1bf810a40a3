package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"flanwatch/assets"
	"flanwatch/ui/cli"
	"flanwatch/watcher/lab/labtest"
)

// remedied is what a command printed.
type remedied struct {
	code      int
	out, errs string
}

// flanwatch runs a command on a namespace, without a terminal.
func flanwatch(t *testing.T, n *labtest.Namespace, state string, args ...string) remedied {
	t.Helper()
	var out, errs bytes.Buffer
	args = append(args, "--netns", n.Path(), "--root", n.Root(), "--state", state)
	code := cli.Main(t.Context(), args, cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	return remedied{code, out.String(), errs.String()}
}

type planned struct {
	ID, Title, Backup, Undo string
	Why                     []string
	Steps                   []struct{ Mark, Text string }
	Guards                  []struct {
		Guard, Why, Change string
		OK, Judge          bool
	}
}

// preview gives the plan of a command.
func preview(t *testing.T, n *labtest.Namespace, state string, code int, args ...string) (p planned) {
	t.Helper()
	got := flanwatch(t, n, state, append(args, "--dry-run", "-o", "json")...)
	if got.code != code {
		t.Fatalf("exit code %d, want %d\n%s%s", got.code, code, got.out, got.errs)
	}
	hold(t, assets.PlanSchema, []byte(got.out))
	if err := json.Unmarshal([]byte(got.out), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// hold validates a document.
func hold(t *testing.T, schema, doc []byte) {
	t.Helper()
	s, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", s); err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	if err != nil {
		t.Fatalf("%v\n%s", err, doc)
	}
	if err := c.MustCompile("schema.json").Validate(value); err != nil {
		t.Fatalf("%v\n%s", err, doc)
	}
}

func TestReapplyFromTheFirstLookToTheUndo(t *testing.T) {
	n := node(t)
	state := filepath.Join(t.TempDir(), "state")
	n.Feed(rules4, "iptables-nft-restore")
	n.Feed(rules6, "ip6tables-nft-restore")
	n.Flanneld("--ip-masq", "--kube-subnet-mgr", "--iptables-resync=1")
	n.Must("iptables-nft -t nat -F FLANNEL-POSTRTG")

	refused := preview(t, n, state, cli.ExitRefused, "reapply")
	if len(refused.Guards) == 0 || !strings.Contains(refused.Guards[0].Why, "starting") || refused.Guards[0].Change == "" {
		t.Errorf("guards %+v", refused.Guards)
	}
	time.Sleep(6500 * time.Millisecond)

	p := preview(t, n, state, cli.ExitFinding, "reapply")
	if !strings.Contains(p.Title, "6 rules") || !strings.Contains(p.Title, "FLANNEL-POSTRTG") {
		t.Errorf("title %q", p.Title)
	}
	if got := flanwatch(t, n, state, "reapply"); got.code != cli.ExitUsage || !strings.Contains(got.errs, "--plan ID") {
		t.Errorf("without a terminal: %+v", got)
	}
	if got := flanwatch(t, n, state, "reapply", "--plan", p.ID, "--read-only"); got.code != cli.ExitRefused {
		t.Errorf("read-only: %+v", got)
	}
	if got := flanwatch(t, n, state, "reapply", "--plan", "0123456789abcdef", "--look-again", "0"); got.code != cli.ExitRefused || !strings.Contains(got.errs, "stale") {
		t.Errorf("another plan: %+v", got)
	}
	if _, err := os.Stat(state); err == nil {
		t.Error("something was written already")
	}
	n.Must("iptables-nft -I FORWARD -s 192.0.2.1/32 -j ACCEPT")
	if got := flanwatch(t, n, state, "reapply", "--plan", p.ID, "--look-again", "100ms"); got.code != cli.ExitOK || !strings.Contains(got.out, "still so") {
		t.Fatalf("apply: %+v", got)
	}
	c, code := check(t, n)
	wantOK(t, c, code, 4)
	if got := preview(t, n, state, cli.ExitOK, "reapply"); got.ID != "" || len(got.Steps) != 0 {
		t.Errorf("again: %+v", got)
	}

	var history struct {
		Receipts []struct{ ID, Plan, Result string }
	}
	got := flanwatch(t, n, state, "history", "-o", "json")
	hold(t, assets.HistorySchema, []byte(got.out))
	if err := json.Unmarshal([]byte(got.out), &history); err != nil || len(history.Receipts) != 1 || history.Receipts[0].Plan != p.ID {
		t.Fatalf("history %s, %v", got.out, err)
	}
	back := preview(t, n, state, cli.ExitFinding, "undo")
	if got := flanwatch(t, n, state, "undo", history.Receipts[0].ID, "--plan", back.ID); got.code != cli.ExitOK {
		t.Fatalf("undo: %+v", got)
	}
	if rules := n.Must("iptables-nft -t nat -S FLANNEL-POSTRTG"); strings.Count(rules, "\n") != 1 {
		t.Errorf("after undo: %s", rules)
	}
}

func TestPurgeIsRefusedWhileFlannelRunsAndWorksAfterwards(t *testing.T) {
	n := node(t)
	state := filepath.Join(t.TempDir(), "state")
	n.Feed(rules4, "iptables-legacy-restore")
	n.Feed(rules6, "ip6tables-nft-restore")
	cmd, err := n.Namespace.StandIn("/opt/bin/flanneld", "--ip-masq")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	p := preview(t, n, state, cli.ExitRefused, "purge")
	if len(p.Guards) == 0 || !strings.Contains(p.Guards[0].Why, "flanneld[") {
		t.Errorf("guards %+v", p.Guards)
	}
	cmd.Process.Kill() //nolint:errcheck // it may be gone
	cmd.Wait()         //nolint:errcheck // it was killed
	p = preview(t, n, state, cli.ExitFinding, "purge")
	got := flanwatch(t, n, state, "purge", "--plan", p.ID, "--look-again", "0")
	if got.code != cli.ExitOK {
		t.Fatalf("%+v", got)
	}
	left := n.Shell("iptables-legacy-save; ip6tables-nft-save")
	if strings.Contains(left, "FLANNEL") || strings.Contains(left, "10.244") {
		t.Errorf("left: %s", left)
	}
	if got := preview(t, n, state, cli.ExitOK, "purge"); got.ID != "" {
		t.Errorf("again: %+v", got)
	}
}

func TestAnEditedRuleMakesThePlanStaleForTheCommand(t *testing.T) {
	n := node(t)
	state := filepath.Join(t.TempDir(), "state")
	n.Feed(rules4, "iptables-nft-restore")
	p := preview(t, n, state, cli.ExitFinding, "purge")
	n.Must("iptables-nft -D FLANNEL-FWD 1")
	if got := flanwatch(t, n, state, "purge", "--plan", p.ID); got.code != cli.ExitRefused || !strings.Contains(got.errs, "stale") {
		t.Errorf("%+v", got)
	}
	if out, err := exec.Command("ls", state).CombinedOutput(); err == nil {
		t.Errorf("written: %s", out)
	}
}
