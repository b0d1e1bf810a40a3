package cli_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/ui/cli"
	"flanwatch/watcher/lab/labtest"
)

// TestCasesFromTheField makes the state of each case in a namespace and holds what check says of it against the case's
// expectations. A case is a shell script that runs behind prelude.sh, with lines that tell the rest:
//
//	#start PROGRAM ARGS...      a process of the node
//	#check FLAGS...             further flags of check
//	#expect ID SEVERITY REMEDY  a finding; lines that follow are about the last one
//	#by TEXT                    the rule that decides, or another piece of its evidence
//	#refuses TEXT               why the obvious remedy is not offered
//	#race                       two pods, pa and pc, connect from the same port at the same instant meanwhile
//	#late                       what follows is done just before the check, since it does not last
//
// All are made first, and checked when their flanneld is no longer starting.
// Whatever else is found may only be information: nothing is called critical, or worth a warning, that the case does not call
// so.
func TestCasesFromTheField(t *testing.T) {
	labtest.RequireTools(t, "bash", "ip", "bridge", "nft", "iptables-nft", "iptables-legacy", "conntrack", "flock")
	files, err := filepath.Glob("testdata/cases/*.case")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d cases, %v", len(files), err)
	}
	if len(files) > most { // each has half a dozen namespaces
		t.Fatalf("%d cases at once", len(files))
	}
	cases := make([]*fieldCase, len(files))
	for i, file := range files {
		cases[i] = readCase(t, file)
		cases[i].make(t)
	}
	time.Sleep(settled)
	for i, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".case"), cases[i].check)
	}
}

const (
	most = 60
	// settled is how old a flanneld is that no longer counts as starting, with the repair period of its default.
	settled = 10500 * time.Millisecond
)

// fieldCase is a case as its file tells it.
type fieldCase struct {
	node    *labtest.Namespace
	prelude string
	script  string
	late    string // done just before the check, for what does not last
	starts  [][]string
	flags   []string
	race    bool
	expects []expectation
}

type expectation struct {
	id, severity, remedy string
	by, refuses          []string
}

func readCase(t *testing.T, file string) *fieldCase {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	prelude, err := os.ReadFile("testdata/cases/prelude.sh")
	if err != nil {
		t.Fatal(err)
	}
	c := &fieldCase{prelude: string(prelude)}
	c.script, c.late, _ = strings.Cut(string(text), "#late\n")
	for line := range strings.Lines(c.script) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		words := strings.Fields(rest)
		switch word {
		case "#start":
			c.starts = append(c.starts, words)
		case "#race":
			c.race = true
		case "#check":
			c.flags = append(c.flags, words...)
		case "#expect":
			c.expects = append(c.expects, expectation{id: words[0], severity: words[1], remedy: words[2]})
		case "#by":
			last := &c.expects[len(c.expects)-1]
			last.by = append(last.by, rest)
		case "#refuses":
			last := &c.expects[len(c.expects)-1]
			last.refuses = append(last.refuses, rest)
		}
	}
	return c
}

// make brings a namespace into the state of the case.
func (c *fieldCase) make(t *testing.T) {
	t.Helper()
	c.node = labtest.New(t)
	c.bash(t, c.prelude+"\nnode\n"+c.script)
	for _, argv := range c.starts { // younger than the files that it reads
		c.node.StandIn(argv...)
	}
}

func (c *fieldCase) bash(t *testing.T, script string) {
	t.Helper()
	cmd := exec.Command("bash", "-eu", "-c", script)
	if out, err := c.node.Output(cmd); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, script)
	}
}

// check holds what flanwatch says of the node against the case.
func (c *fieldCase) check(t *testing.T) {
	if c.late != "" {
		c.bash(t, c.prelude+c.late)
	}
	got := c.look(t)
	for tries := 0; c.race && tries < 20 && !slices.ContainsFunc(got.Findings, func(f checkedFinding) bool { return f.ID == c.expects[0].id }); tries++ {
		race := newRace(t, c.node, "pa", "pc") // on a busy machine few rounds are simultaneous
		done := make(chan struct{})
		go func() {
			race.run()
			close(done)
		}()
		got = c.look(t)
		<-done
		race.close()
	}
	c.hold(t, got)
}

func (c *fieldCase) look(t *testing.T) checked {
	t.Helper()
	args := []string{
		"check", "-o", "json", "--netns", c.node.Path(), "--root", c.node.Root() + "/run/host", "--state", t.TempDir(),
	}
	var out, errs bytes.Buffer
	cli.Main(t.Context(), append(args, c.flags...), cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	if errs.Len() > 0 {
		t.Fatalf("check says: %s", errs.String())
	}
	return decode(t, out.Bytes())
}

// hold compares what was found with what was expected.
func (c *fieldCase) hold(t *testing.T, got checked) {
	met := make([]bool, len(c.expects))
	for _, f := range got.Findings {
		i := slices.IndexFunc(c.expects, func(e expectation) bool { return e.miss(f) == "" })
		if i >= 0 {
			met[i] = true
		} else if f.Severity != "info" {
			t.Errorf("not expected: %s", shownFinding(f))
		}
	}
	for i, e := range c.expects {
		if met[i] {
			continue
		}
		t.Errorf("missing: %+v", e)
		for _, f := range got.Findings {
			if f.ID == e.id {
				t.Logf("found, but %s: %s", e.miss(f), shownFinding(f))
			}
		}
	}
	if t.Failed() {
		for _, f := range got.Findings {
			t.Log(shownFinding(f))
		}
		t.Logf("flannel: %+v", got.Flannel)
	}
}

// miss tells what a finding lacks of the expectation, "" for nothing.
func (e expectation) miss(f checkedFinding) string {
	if f.ID != e.id || f.Severity != e.severity || f.Remedy != e.remedy {
		return "it is " + f.ID + " " + f.Severity + " " + f.Remedy
	}
	evidence := f.Object + "\n" + f.Summary + "\n" + strings.Join(f.Detail, "\n")
	for _, by := range e.by {
		if !regexp.MustCompile(by).MatchString(evidence) {
			return "it does not tell " + by
		}
	}
	for _, why := range e.refuses {
		if !strings.Contains(f.Refused, why) {
			return fmt.Sprintf("it refuses with %q", f.Refused)
		}
	}
	return ""
}

func shownFinding(f checkedFinding) string {
	return fmt.Sprintf("%s %s %s (%s): %s\n    %s\n    refused: %s",
		f.ID, f.Severity, f.Remedy, f.Object, f.Summary, strings.Join(f.Detail, "\n    "), f.Refused)
}
