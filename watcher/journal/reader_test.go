package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"flanwatch/watcher/incident"
)

// fileOf writes a journal of one file.
func fileOf(t testing.TB, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.jsonl")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// all reads a journal to its end.
func all(t testing.TB, path string) ([]incident.Observation, Report) {
	t.Helper()
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var out []incident.Observation
	for {
		o, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, r.Report
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, cloned(o))
	}
}

func TestAJournalCutAtAnyByteOpensWithAllWholeLines(t *testing.T) {
	_, text, _ := written(t, 3, 120)
	text = text[:len(text)-1]
	for cut := len(text) - 1024; cut <= len(text); cut++ {
		whole := bytes.Count(text[:cut], []byte("\n"))
		torn := true
		if cut == len(text) || text[cut] == '\n' {
			whole, torn = whole+1, false // only the line feed is missing
		} else if text[cut-1] == '\n' {
			torn = false
		}
		_, report := all(t, fileOf(t, text[:cut]))
		if report.Lines != whole || report.Damaged != 0 || report.Torn != torn {
			t.Fatalf("cut at %d of %d: %+v, want %d lines, torn %v", cut, len(text), report, whole, torn)
		}
	}
}

func TestADamagedLineIsPassedOverAndNamed(t *testing.T) {
	seen, text, _ := written(t, 4, 120)
	lines := bytes.Split(text, []byte("\n"))
	lines[20] = []byte(`{"time":"2026-11-30T12:00:00Z 5","fau`)
	lines[40] = []byte("[9,1]")
	got, report := all(t, fileOf(t, bytes.Join(lines, []byte("\n"))))
	if report.Damaged != 2 || report.First[0].Line != 21 || report.First[1].Line != 41 {
		t.Fatalf("report %+v", report)
	}
	if lost := len(seen) - len(got); lost > 2+report.Skipped || lost < 1 {
		t.Errorf("%d of %d observations lost, %d skipped", lost, len(seen), report.Skipped)
	}
	for _, o := range got {
		same := func(x incident.Observation) bool { return cmp.Equal(x, o, sameAll) }
		if !slices.ContainsFunc(seen, same) {
			t.Errorf("read what nobody wrote: %s at %v", describe(&o), o.Time)
		}
	}
	if notes := report.Notes(); !strings.Contains(notes[0], "2 lines are damaged, the first is a.jsonl:21") {
		t.Errorf("notes %q", notes)
	}
}

func TestALineLongerThanAnyIsDamage(t *testing.T) {
	_, text, _ := written(t, 4, 10)
	first, rest, _ := bytes.Cut(text, []byte("\n"))
	long := bytes.Repeat([]byte("x"), maxLine+100)
	joined := bytes.Join([][]byte{first, long, rest}, []byte("\n"))
	want, _ := all(t, fileOf(t, text))
	got, report := all(t, fileOf(t, joined))
	if len(got) != len(want) || report.Damaged != 1 {
		t.Errorf("%d observations of %d, %+v", len(got), len(want), report)
	}
}

func TestWhatIsNoJournalGivesNothing(t *testing.T) {
	for _, text := range []string{"", "\n", "hello\nworld\n", `{"schema":"other/v1"}` + "\n" + `{"time":"x"}` + "\n"} {
		if got, report := all(t, fileOf(t, []byte(text))); len(got) != 0 || report.Damaged != strings.Count(text, "\n") {
			t.Errorf("%q gives %d observations, %+v", text, len(got), report)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none.jsonl")); err == nil {
		t.Error("a file that is not there opens")
	}
}

// parts writes a story into several files, rotated after each so many observations.
func parts(t *testing.T, seed uint64, steps, each int) (folder string, seen []incident.Observation, want *incident.View) {
	t.Helper()
	seen, _, want = written(t, seed, steps)
	folder = t.TempDir()
	e := NewEncoder(Header{Session: session})
	for i := 0; i < len(seen); i += each {
		text, err := e.Begin(nil, seen[i].Time, nil)
		for _, o := range seen[i:min(i+each, len(seen))] {
			if err == nil {
				text, _, err = e.Append(text, &o)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("%04d.jsonl", i)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder, seen, want
}

func TestASeriesOfFilesReadsAsOneStream(t *testing.T) {
	folder, seen, want := parts(t, 5, 200, 17)
	got, report := all(t, folder)
	if diff := cmp.Diff(seen, got, sameAll); diff != "" || report.Damaged+report.Skipped != 0 {
		t.Errorf("%+v, -written +read\n%.2000s", report, diff)
	}
	s, r, err := OpenState(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if diff := cmp.Diff(want, s.View(want.Now), sameAll); diff != "" {
		t.Errorf("-live +opened\n%.2000s", diff)
	}
}

func TestWhoStartsLaterIsToldWhatLasts(t *testing.T) {
	folder, _, want := parts(t, 6, 300, 40)
	files, err := Files(folder)
	if err != nil {
		t.Fatal(err)
	}
	r := openFiles(files[len(files)-3:])
	s := incident.NewState()
	for {
		o, err := r.Next()
		if err != nil {
			break
		}
		s.Apply(o)
	}
	if diff := cmp.Diff(want.Node, s.View(want.Now).Node, sameAll); diff != "" || want.Node.Name == "" && want.Node.MTU.State == 0 {
		t.Errorf("-node known to all +known to who came late\n%s", diff)
	}
}

func TestAFollowerSeesLinesWhenTheyAreWholeAndGoesOnIntoNewFiles(t *testing.T) {
	folder, seen, _ := parts(t, 7, 60, 25)
	files, err := Files(folder)
	if err != nil {
		t.Fatal(err)
	}
	grown := t.TempDir()
	r, err := Open(grown)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() {
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Error(err)
				return
			}
			f, err := os.Create(filepath.Join(grown, filepath.Base(name)))
			if err != nil {
				t.Error(err)
				return
			}
			for chunk := range slices.Chunk(text, len(text)/3+1) {
				f.Write(chunk)
				time.Sleep(100 * time.Millisecond)
			}
			f.Close()
		}
	}()
	var got []incident.Observation
	if err := r.Follow(ctx, grown, func(o *incident.Observation) {
		if got = append(got, cloned(o)); len(got) == len(seen) {
			cancel()
		}
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(seen, got, sameAll); diff != "" || r.Damaged > 0 {
		t.Errorf("%+v, %d of %d, -written +read\n%.2000s", r.Report, len(got), len(seen), diff)
	}
}

func TestARecordingCanBeEnteredAnywhere(t *testing.T) {
	folder, seen, want := parts(t, 8, 300, 90)
	rec, err := load(folder, 100)
	if err != nil {
		t.Fatal(err)
	}
	if rec.Count != len(seen) || len(rec.frames) != 1+rec.Count/100 {
		t.Fatalf("%d observations of %d, %d keyframes", rec.Count, len(seen), len(rec.frames))
	}
	if diff := cmp.Diff(want, rec.Final, sameAll); diff != "" {
		t.Errorf("-live +final\n%.2000s", diff)
	}
	straight := incident.NewState()
	views := map[int]*incident.View{}
	stops := []int{0, 1, 99, 100, 101, 170, rec.Count}
	for i, o := range seen {
		if slices.Contains(stops, i) {
			views[i] = straight.View(o.Time)
		}
		straight.Apply(&o)
	}
	views[rec.Count] = want
	c := rec.Cursor()
	for _, n := range []int{170, 100, 99, 0, 101, 1, rec.Count, 100, rec.Count} {
		c.Go(n)
		if diff := cmp.Diff(views[n], c.View(views[n].Now), sameAll); diff != "" || c.Number() != n {
			t.Errorf("at %d (cursor at %d): -straight +entered\n%.2000s", n, c.Number(), diff)
		}
	}
	if c.Step() {
		t.Error("there is a step behind the end")
	}
	c.Go(10)
	at := c.Time()
	later := slices.IndexFunc(seen, func(o incident.Observation) bool { return o.Time.Wall.After(at.Wall) })
	if c.GoTo(at.Wall); c.Number() != later {
		t.Errorf("went to observation %d, want %d", c.Number(), later)
	}
}

func FuzzReader(f *testing.F) {
	for seed := range uint64(3) {
		_, text, _ := written(f, seed, 40)
		f.Add(text)
		f.Add(bytes.Replace(text, []byte(","), []byte(",-"), 40))
	}
	f.Add([]byte(`{"schema":"flanwatch.journal/v1"}` + "\n[1,2,3]\n[]\n[1\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d := NewDecoder()
		s := incident.NewState()
		for line := range bytes.SplitSeq(text, []byte("\n")) {
			if o, err := d.Line(line); err == nil && o != nil {
				s.Apply(o)
			}
		}
		s.View(d.last)
	})
}
