package journal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/lab/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }

func optionsFor(path string) Options {
	return Options{Path: path, Header: Header{Version: "v1", Node: "worker-3", BootID: "boot", Session: session}}
}

// play records a story and gives what was told and the state it led to.
func play(r *Recorder, seed uint64, steps int) (seen []incident.Observation, view *incident.View) {
	s := incident.NewState()
	w := newWorld(seed, r.Sink(func(o *incident.Observation) {
		seen = append(seen, cloned(o))
		s.Apply(o)
	}))
	w.node()
	w.procs()
	w.fill(flannel.IptablesNft)
	for range steps {
		w.random()
	}
	return seen, s.View(w.now)
}

func TestWhatIsRecordedIsReadBack(t *testing.T) {
	for _, name := range []string{"folder", "file.jsonl"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			r := NewRecorder(optionsFor(path))
			seen, want := play(r, 1, 150)
			r.Settle()
			s, reader, err := OpenState(path)
			if err != nil {
				t.Fatal(err)
			}
			reader.Close()
			if diff := cmp.Diff(want, s.View(want.Now), sameAll); diff != "" {
				t.Errorf("-live +journal\n%.2000s", diff)
			}
			file, size, err := r.State()
			if info, _ := os.Stat(file); err != nil || info.Size() != size || info.Mode() != 0o600 {
				t.Errorf("writes %s, %d bytes, %v; the file is %v", file, size, err, info.Mode())
			}
			r.Close()
			if got, report := all(t, path); !cmp.Equal(seen, got, sameAll) || report.Damaged+report.Skipped > 0 {
				t.Errorf("%d of %d observations, %+v", len(got), len(seen), report)
			}
		})
	}
}

func TestASecondProcessDoesNotWriteAndTakesOverWhenTheFirstEnds(t *testing.T) {
	path := t.TempDir()
	first := NewRecorder(optionsFor(path))
	play(first, 1, 10)
	first.Settle()
	second := NewRecorder(optionsFor(path))
	play(second, 2, 10)
	second.Settle()
	if _, _, err := second.State(); !errors.Is(err, ErrBusy) {
		t.Errorf("the second writer says %v", err)
	}
	if got, _ := all(t, path); len(got) == 0 {
		t.Error("the first writer wrote nothing")
	}
	first.Close()
	time.Sleep(retryAfter + 100*time.Millisecond)
	play(second, 3, 10)
	second.Close()
	files, err := Files(path)
	if err != nil || len(files) != 2 {
		t.Errorf("files %v, %v", files, err)
	}
	for _, o := range func() []incident.Observation { got, _ := all(t, path); return got }() {
		if o.Fault != nil && o.Fault.Reader == faultReader {
			t.Errorf("a gap is told where another process wrote: %s", o.Fault.Why)
		}
	}
}

func TestFilesAreRotatedAndTheOldestGo(t *testing.T) {
	o := optionsFor(filepath.Join(t.TempDir(), "new", "folder"))
	o.FileSize, o.MaxTotal = 20_000, 60_000
	r := NewRecorder(o)
	for seed := range uint64(6) {
		play(r, seed, 60)
		r.Settle()
	}
	r.Close()
	files, err := Files(o.Path)
	if err != nil || len(files) < 2 || len(files) > 4 {
		t.Fatalf("files %v, %v", files, err)
	}
	if info, _ := os.Stat(o.Path); info.Mode().Perm() != 0o700 {
		t.Errorf("folder %v", info.Mode())
	}
	if _, report := all(t, o.Path); report.Damaged+report.Skipped > 0 {
		t.Errorf("%+v", report)
	}
}

func TestAFullDiskIsToldAndRecordingGoesOnByItself(t *testing.T) {
	n := labtest.New(t)
	n.Must("mkdir -p /run/small")
	n.Must("mount -t tmpfs -o size=64k tmpfs /run/small")
	path := filepath.Join(n.Root(), "run/small/journal")
	r := NewRecorder(optionsFor(path))
	play(r, 1, 30)
	r.Settle()
	_, _ = n.Run("dd", "if=/dev/zero", "of=/run/small/filler", "bs=1k", "count=1000") // fails when all is used
	var trouble error
	for range 40 {
		play(r, 2, 20)
		r.Settle()
		if _, _, trouble = r.State(); trouble != nil {
			break
		}
	}
	if !errors.Is(trouble, unix.ENOSPC) {
		t.Fatalf("the full disk is told as %v", trouble)
	}
	n.Must("rm /run/small/filler")
	time.Sleep(retryAfter + 200*time.Millisecond)
	play(r, 3, 20)
	r.Settle()
	if _, _, err := r.State(); err != nil {
		t.Errorf("after room was made: %v", err)
	}
	r.Close()
	got, report := all(t, path)
	gaps := 0
	for _, o := range got {
		if o.Fault != nil && o.Fault.Reader == faultReader && strings.Contains(o.Fault.Why, "no space left") {
			gaps++
		}
	}
	if gaps != 1 || report.Damaged > 0 || report.Torn || report.Skipped > 0 {
		t.Errorf("%d gaps, %+v", gaps, report)
	}
}

func TestTheStreamDoesNotWaitForTheDiskAndSaysWhatWasLost(t *testing.T) {
	r := &Recorder{opt: optionsFor(t.TempDir()).withDefaults(), wake: make(chan struct{}, 1), done: make(chan struct{}), stopped: true}
	r.news, r.encoder, r.disk.opt = sync.NewCond(&r.mu), NewEncoder(r.opt.Header), r.opt
	long := incident.Observation{Fault: &incident.Fault{Reader: "nft", Why: strings.Repeat("x", 100_000)}}
	for i := range 60 { // nobody writes yet
		long.Time = flannel.Time{Wall: noon, Boot: time.Duration(i), Session: session}
		r.Observe(&long)
	}
	if r.gap == nil || r.bytes > maxQueue+200_000 {
		t.Fatalf("gap %v, %d bytes queued", r.gap, r.bytes)
	}
	lost := r.gap.Lost
	go r.run()
	time.Sleep(retryAfter + 100*time.Millisecond)
	r.Observe(&long)
	r.Close()
	got, _ := all(t, r.opt.Path)
	kept, told := 0, ""
	for _, o := range got {
		switch {
		case o.Fault.Reader == "nft":
			kept++
		case o.Fault.Why != "":
			told = o.Fault.Why
		}
	}
	if !strings.Contains(told, "observations were not recorded: the disk is slower") || kept < 61-lost {
		t.Errorf("%d kept, %d lost, told %q", kept, lost, told)
	}
}

func TestNothingButAJournalIsWrittenTo(t *testing.T) {
	dir := t.TempDir()
	other, link := filepath.Join(dir, "other.jsonl"), filepath.Join(dir, "link.jsonl")
	if err := errors.Join(os.WriteFile(other, []byte("precious\n"), 0o600), os.Symlink(other, link)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{other: errNoJournal, link: unix.ELOOP} {
		r := NewRecorder(optionsFor(path))
		play(r, 1, 3)
		r.Settle()
		if _, _, err := r.State(); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
		r.Close()
	}
	if text, _ := os.ReadFile(other); string(text) != "precious\n" {
		t.Errorf("the file is now %q", text)
	}
}

func TestASingleFileIsContinuedBehindItsLastWholeLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "one.jsonl")
	r := NewRecorder(optionsFor(path))
	seen, _ := play(r, 1, 20)
	r.Close()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`[1,12345`)
	f.Close()
	r = NewRecorder(optionsFor(path))
	more, _ := play(r, 2, 20)
	r.Close()
	if got, report := all(t, path); len(got) != len(seen)+len(more) || report.Damaged > 0 {
		t.Errorf("%d observations, want %d and %d; %+v", len(got), len(seen), len(more), report)
	}
}

func TestNamesOfFilesSortByTimeEvenIfTheClockIsSetBack(t *testing.T) {
	first := fileName(noon, "")
	second := fileName(noon.Add(-time.Hour), first)
	if second <= first || fileName(noon, "zzz.jsonl") <= "zzz.jsonl" {
		t.Errorf("%s comes before %s", second, first)
	}
}
