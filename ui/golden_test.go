package ui

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"

	"github.com/charmbracelet/x/ansi"
)

var update = flag.Bool("update", false, "write the pictures anew")

// oneProbe takes two words.
func oneProbe(text string) error {
	if strings.Count(text, " ") != 1 {
		return errors.New("want a target and a pod")
	}
	return nil
}

// still is a screen on which no time passes.
func still(t testing.TB, view *incident.View, o Options) *model {
	t.Helper()
	clock := now
	o.Clock = func() time.Time { return clock }
	o.Location = time.UTC
	if o.Environ == nil {
		o.Environ = []string{"TERM=xterm-256color", "COLORTERM=truecolor"}
	}
	if o.Interval == 0 {
		o.Interval, o.SetInterval = time.Second, func(time.Duration) {}
	}
	if o.Look == nil {
		o.Look = func(bool, *flannel.ChainID) {}
	}
	if o.Ask == nil {
		o.Ask, o.Answers = func(Wish) {}, NewAnswers()
	}
	if o.Flows == nil {
		o.Flows = func(bool) {}
	}
	if o.Probe == nil {
		o.Probe = oneProbe
	}
	if o.Status == nil {
		o.Status = func() string { return "recording /var/lib/flanwatch/worker-3.jsonl 3.1 MB" }
	}
	o.Dir = t.TempDir()
	m := newModel(context.Background(), o.withDefaults())
	if view != nil {
		m.receive(view)
	}
	return m
}

func (m *model) at(w, h int) string {
	m.width, m.height = w, h
	m.redraw()
	return m.picture
}

var goldenSizes = [][2]int{{100, 30}, {80, 24}, {200, 50}}

func TestPicturesAreAsKept(t *testing.T) {
	for _, sc := range slices.Concat(scenes, laterScenes, flowScenes, remedyScenes, pathScenes) {
		for _, size := range goldenSizes {
			name := fmt.Sprintf("%s-%dx%d", sc.name, size[0], size[1])
			t.Run(name, func(t *testing.T) {
				m := still(t, sc.view(), Options{})
				if sc.set != nil {
					sc.set(m)
				}
				colour := m.at(size[0], size[1])
				golden(t, name+".txt", plain(colour))
				if size == goldenSizes[0] {
					golden(t, name+".ansi", colour+"\n")
				}
			})
		}
	}
}

// plain is the text of a picture, one line a row, without what fills it up.
func plain(picture string) string {
	var b strings.Builder
	for l := range strings.Lines(ansi.Strip(picture)) {
		b.WriteString(strings.TrimRight(l, " \n") + "\n")
	}
	return b.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test -update writes it)", err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update accepts it); got:\n%s\nwant:\n%s", name, ansi.Strip(got), ansi.Strip(string(want)))
	}
}

func TestEveryLineFitsAtEverySize(t *testing.T) {
	for _, sc := range slices.Concat(scenes, laterScenes, flowScenes, remedyScenes, pathScenes) {
		m := still(t, sc.view(), Options{})
		if sc.set != nil {
			sc.set(m)
		}
		for w := 20; w <= 300; w += 28 {
			for h := 5; h <= 100; h += 5 {
				m.focus = panel(w+h) % panels
				checkFit(t, sc.name, m.at(w, h), w, h)
			}
		}
		for _, size := range [][2]int{{59, 15}, {60, 14}, {60, 15}, {61, 16}, {79, 24}, {80, 29}, {80, 30}, {99, 30}, {110, 31}, {1, 1}} {
			checkFit(t, sc.name, m.at(size[0], size[1]), size[0], size[1])
		}
	}
}

func checkFit(t *testing.T, name, picture string, w, h int) {
	t.Helper()
	lines := strings.Split(picture, "\n")
	if len(lines) != h {
		t.Fatalf("%s at %dx%d has %d lines", name, w, h, len(lines))
	}
	for i, l := range lines {
		if n := ansi.StringWidth(l); n != w {
			t.Fatalf("%s at %dx%d: line %d has %d columns:\n%s", name, w, h, i, n, ansi.Strip(l))
		}
	}
}
