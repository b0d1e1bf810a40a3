package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"flanwatch/assets"
	"flanwatch/ui/cli"
)

// fleetAt runs flanwatch fleet.
func fleetAt(t *testing.T, stdin string, args ...string) (out, errs string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	code = cli.Main(t.Context(), append([]string{"fleet"}, args...), cli.Streams{In: strings.NewReader(stdin), Out: &o, Err: &e})
	return o.String(), e.String(), code
}

// fleetTable gives node and state, findings, leftovers of each row, in the order of the table.
func fleetTable(t *testing.T, doc string) (rows []string) {
	t.Helper()
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(assets.FleetSchema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("fleet.json", schema); err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(doc))
	if err != nil {
		t.Fatalf("%v: %s", err, doc)
	}
	if err := c.MustCompile("fleet.json").Validate(value); err != nil {
		t.Fatal(err)
	}
	var r struct {
		Nodes []struct {
			Node, State         string
			Findings, Leftovers []string
		}
	}
	if err := json.Unmarshal([]byte(doc), &r); err != nil {
		t.Fatal(err)
	}
	for _, n := range r.Nodes {
		rows = append(rows, fmt.Sprint(n.Node, " ", n.State, " ", n.Findings, " ", n.Leftovers))
	}
	return rows
}

// checkDoc is an output of check with the parts that fleet reads.
func checkDoc(node string, at time.Time, findings, unreadable string) string {
	return fmt.Sprintf(`{"schema":"flanwatch.check/v1","time":%q,"node":{"name":%q,"networks":[]},"findings":[%s],"unreadable":[%s],"chains":[]}`,
		at.UTC().Format(time.RFC3339Nano), node, findings, unreadable)
}

const (
	emptyChain = `{"id":"chain-empty","severity":"critical","object":"x"}`
	oldRules   = `{"id":"old-generation-rules","severity":"warning","object":"x"}`
	justLeft   = `{"id":"leftover-chain","severity":"info","object":"x"}`
)

func sixNodes(now time.Time) []string {
	return []string{
		checkDoc("n1", now, "", ""),
		checkDoc("n2", now, emptyChain, `{"what":"nft","why":"x"}`),
		checkDoc("n3", now, oldRules, ""),
		checkDoc("n4", now, "", `{"what":"nft","why":"needs CAP_NET_ADMIN"}`),
		checkDoc("n5", now.Add(-time.Hour), "", ""),
		checkDoc("n6", now, justLeft, ""),
	}
}

var sixRows = []string{
	"n2 broken [chain-empty] []",
	"n3 warning [old-generation-rules] [old-generation-rules]",
	"n4 unknown [] []",
	"n5 unknown [] []",
	"n1 ok [] []",
	"n6 ok [] [leftover-chain]",
}

func TestAFleetOfFilesShowsTheWorstFirstAndTakesNothingForHealthyThatIsNot(t *testing.T) {
	out, errs, code := fleetAt(t, strings.Join(sixNodes(time.Now()), "\n"), "-", "-o", "json")
	if code != cli.ExitFinding || errs != "" {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	if got := fleetTable(t, out); fmt.Sprint(got) != fmt.Sprint(sixRows) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(sixRows, "\n"))
	}
	out, _, _ = fleetAt(t, strings.Join(sixNodes(time.Now()), "\n"), "-")
	for _, want := range []string{"NODE", "cannot read nft: needs CAP_NET_ADMIN", "nothing new for 1h0m", "6 nodes: 1 broken, 1 warning, 2 unknown, 2 ok"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestABrokenFileIsANodeOfWhichNothingIsKnown(t *testing.T) {
	dir := t.TempDir()
	good, torn, other, empty := filepath.Join(dir, "a.json"), filepath.Join(dir, "b.json"), filepath.Join(dir, "c.json"), filepath.Join(dir, "d.json")
	for path, text := range map[string]string{
		good: checkDoc("a", time.Now(), "", ""), torn: checkDoc("b", time.Now(), "", "")[:50],
		other: `{"schema":"flanwatch.flows/v1"}`, empty: "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, _, code := fleetAt(t, "", good, torn, other, empty, filepath.Join(dir, "e.json"), "-o", "json")
	want := []string{"b unknown [] []", "c unknown [] []", "d unknown [] []", "e unknown [] []", "a ok [] []"}
	if got := fleetTable(t, out); fmt.Sprint(got) != fmt.Sprint(want) || code != cli.ExitUnreadable {
		t.Errorf("exit code %d, got\n%s\nwant\n%s", code, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if _, errs, code := fleetAt(t, ""); code != cli.ExitUsage || !strings.Contains(errs, "name files") {
		t.Errorf("without a source: exit code %d, %s", code, errs)
	}
}

// kubeList is what kubectl prints of nodes on which node-problem-detector runs flanwatch.
func kubeList(now time.Time) string {
	node := func(name string, at time.Time, conditions ...string) string {
		var list []string
		for i := 0; i < len(conditions); i += 3 {
			list = append(list, fmt.Sprintf(`{"type":%q,"status":%q,"message":%q,"lastHeartbeatTime":%q}`,
				conditions[i], conditions[i+1], conditions[i+2], at.UTC().Format(time.RFC3339)))
		}
		return fmt.Sprintf(`{"metadata":{"name":%q},"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":%q}%s]}}`,
			name, now.UTC().Format(time.RFC3339), strings.Join(append([]string{""}, list...), ","))
	}
	masq, left, blind := "FlannelMasqueradeProblem", "FlannelLeftovers", "FlannelStateUnreadable"
	return `{"apiVersion":"v1","kind":"List","items":[` + strings.Join([]string{
		node("n1", now, masq, "False", "as expected", left, "False", "none", blind, "False", "every source can be read"),
		node("n2", now, masq, "True", "chain-empty iptables-nft ip nat FLANNEL-POSTRTG", left, "False", "none", blind, "False", ""),
		node("n3", now, masq, "False", "as expected", left, "True", "old-generation-rules iptables-nft ip nat POSTROUTING", blind, "False", ""),
		node("n4", now, masq, "Unknown", "cannot read nft: needs CAP_NET_ADMIN", blind, "True", "cannot-read iptables-nft"),
		node("n5", now.Add(-time.Hour), masq, "False", "as expected", left, "False", "none", blind, "False", ""),
		node("n7", now),
	}, ",") + `]}`
}

func TestNodesOfKubernetesGiveTheSameTable(t *testing.T) {
	out, _, code := fleetAt(t, kubeList(time.Now()), "-", "-o", "json")
	want := append(append([]string{}, sixRows[:4]...), "n7 unknown [] []", "n1 ok [] []")
	if got := fleetTable(t, out); fmt.Sprint(got) != fmt.Sprint(want) || code != cli.ExitFinding {
		t.Errorf("exit code %d, got\n%s\nwant\n%s", code, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestFiveThousandNodesArePutIntoOneTable(t *testing.T) {
	var in strings.Builder
	for i := range 5000 {
		in.WriteString(checkDoc(fmt.Sprintf("node-%04d", i), time.Now(), []string{"", emptyChain}[i%2], ""))
	}
	out, _, code := fleetAt(t, in.String(), "-")
	if code != cli.ExitFinding || !strings.Contains(out, "5000 nodes: 2500 broken, 0 warning, 0 unknown, 2500 ok") {
		t.Errorf("exit code %d, %s", code, out[max(0, len(out)-200):])
	}
}
