package cli_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"flanwatch/assets"
	"flanwatch/ui/cli"
	"flanwatch/watcher/lab/labtest"
)

type abilities struct {
	Abilities []struct {
		Name, Why string
		OK        bool
	}
}

func decodeAbilities(t *testing.T, doc []byte) map[string]bool {
	t.Helper()
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(assets.DoctorSchema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("doctor.json", schema); err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	if err != nil {
		t.Fatalf("%v: %s", err, doc)
	}
	if err := c.MustCompile("doctor.json").Validate(value); err != nil {
		t.Fatalf("%v\n%s", err, doc)
	}
	var a abilities
	if err := json.Unmarshal(doc, &a); err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, x := range a.Abilities {
		if x.Why == "" {
			t.Errorf("%s: no reason", x.Name)
		}
		out[x.Name] = x.OK
	}
	return out
}

func TestDoctorSaysWhatANodeLetsOneDo(t *testing.T) {
	n := node(t)
	n.Feed(rules4, "iptables-nft-restore")
	args := []string{"doctor", "--netns", n.Path(), "--root", n.Root(), "--state", t.TempDir()}
	var out, errs bytes.Buffer
	if code := cli.Main(t.Context(), append(args, "-o", "json"), cli.Streams{Out: &out, Err: &errs}); code != cli.ExitOK {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	got := decodeAbilities(t, out.Bytes())
	for _, name := range []string{"CAP_NET_ADMIN", "network namespace", "read nf_tables", "hear changes of nf_tables", "write the journal", "program nft"} {
		if !got[name] {
			t.Errorf("not able: %s", name)
		}
	}
	out.Reset()
	cli.Main(t.Context(), args, cli.Streams{Out: &out, Err: &errs})
	for line := range strings.Lines(out.String()) {
		if len([]rune(strings.TrimRight(line, "\n"))) > 100 {
			t.Errorf("wider than 100 columns: %s", line)
		}
	}
}

func TestDoctorWithoutPrivilegesSaysWhichAreMissing(t *testing.T) {
	labtest.RequireTools(t, "setpriv")
	program := buildFlanwatch(t)
	n := node(t)
	out, err := n.Run("setpriv", "--bounding-set=-all", "--inh-caps=-all", program, "doctor", "-o", "json", "--state", t.TempDir())
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != cli.ExitUnreadable {
		t.Fatalf("%v: %s", err, out)
	}
	if got := decodeAbilities(t, []byte(out)); got["CAP_NET_ADMIN"] || got["read nf_tables"] {
		t.Errorf("%v", got)
	}
}
