package ui

import (
	"os"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

func TestHelpFooterAndTableAgreeWithTheKeys(t *testing.T) {
	m := still(t, emptied(), Options{})
	m.width, m.height = 300, 60
	recording := still(t, emptied(), Options{Mode: ModeReplay, Player: &recorder{}})
	recording.width, recording.height = 300, 60
	help := ansi.Strip(strings.Join(append(m.helpPage().lines, recording.helpPage().lines...), "\n"))
	table := KeyTable()
	footers := ansi.Strip(recording.footer()) + "\n"
	for f := range panels {
		m.focus = f
		footers += ansi.Strip(m.footer()) + "\n"
	}
	m.dialog = &dialog{phase: phaseAsking}
	footers += ansi.Strip(m.footer()) + "\n"
	m.dialog = nil
	for _, p := range []page{pageHelp, pageIncidents, pageIncident, pageFindings} {
		m.page = p
		footers += ansi.Strip(m.footer()) + "\n"
	}
	for _, b := range bindings {
		if !strings.Contains(help, b.show) || !strings.Contains(help, b.does) {
			t.Errorf("help leaves out %s: %s", b.show, b.does)
		}
		if !strings.Contains(table, b.does+" |") {
			t.Errorf("the table leaves out %s: %s", b.show, b.does)
		}
		if key, _, _ := strings.Cut(b.show, ","); b.short != "" && !strings.Contains(footers, key+" "+b.short) {
			t.Errorf("no footer offers %s %s:\n%s", key, b.short, footers)
		}
	}
	if got, want := strings.Count(table, "\n"), len(bindings)+2; got != want {
		t.Errorf("the table has %d lines, want %d", got, want)
	}
}

func TestNoKeyIsBoundTwice(t *testing.T) {
	type meaning struct {
		key  string
		mode mode
	}
	seen := map[meaning]string{}
	for _, b := range bindings {
		for _, k := range b.keys {
			if other, ok := seen[meaning{k, b.mode}]; ok {
				t.Errorf("%s does %q and %q", k, other, b.does)
			}
			seen[meaning{k, b.mode}] = b.does
		}
	}
}

// What is replayed has no interval: its keys are neither offered nor listed.
func TestKeysThatDoNothingHereAreNotListed(t *testing.T) {
	m := still(t, emptied(), Options{Mode: ModeReplay})
	m.interval = 0
	m.width, m.height = 200, 60
	for _, text := range []string{ansi.Strip(m.footer()), ansi.Strip(strings.Join(m.helpPage().lines, "\n"))} {
		if strings.Contains(text, "slower") || strings.Contains(text, "less often") {
			t.Errorf("offers the interval:\n%s", text)
		}
	}
}

func TestQuitIsAlwaysInTheFooter(t *testing.T) {
	m := still(t, emptied(), Options{})
	for w := minWidth; w < 200; w++ {
		m.width, m.height = w, 30
		if f := ansi.Strip(m.footer()); !strings.Contains(f, "q quit") || !strings.Contains(f, "? help") {
			t.Fatalf("at %d columns: %q", w, f)
		}
	}
}

func TestReadmeHoldsTheKeys(t *testing.T) {
	const path, begin, end = "../README.md", "<!-- keys:", "<!-- end of keys -->"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	readme := string(data)
	from, to := strings.Index(readme, begin), strings.Index(readme, end)
	if from < 0 || to < from {
		t.Fatalf("%s has no place for the keys", path)
	}
	from += strings.IndexByte(readme[from:], '\n') + 1
	want := "\n" + KeyTable() + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(readme[:from]+want+readme[to:]), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got := readme[from:to]; got != want {
		t.Errorf("README lists other keys (go test ./ui -update writes them):\n%s", got)
	}
}
