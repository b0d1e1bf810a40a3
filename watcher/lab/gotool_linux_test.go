package lab

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestOnlyTheOneFolderThatCanBeTheToolsIsRemoved(t *testing.T) {
	for _, tt := range []struct {
		name   string
		make   []string // folders and files in the temporary folder
		remain int
	}{
		{"one empty folder", []string{"go-build1/"}, 0},
		{"two empty folders, one of them of another build", []string{"go-build1/", "go-build2/"}, 2},
		{"a folder that is in use", []string{"go-build1/b001/"}, 1},
		{"an empty folder beside one in use", []string{"go-build1/b001/", "go-build2/"}, 1},
		{"folders of other names", []string{"go-build/", "go-buildx/", "x/", "go-build1"}, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			where := t.TempDir()
			t.Setenv("GOTMPDIR", where)
			for _, path := range tt.make {
				var err error
				if path[len(path)-1] == '/' {
					err = os.MkdirAll(filepath.Join(where, path), 0o755)
				} else {
					err = os.WriteFile(filepath.Join(where, path), nil, 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			const gone = -1 // no process has this parent
			tool := &goTool{pid: gone, empty: emptyFoldersSince(time.Now().Add(-time.Minute))}
			tool.clean()
			left, err := os.ReadDir(where)
			if err != nil || len(left) != tt.remain {
				t.Errorf("%d are left, %v, want %d", len(left), err, tt.remain)
			}
		})
	}
}

func TestFoldersOlderThanTheToolAreNotItsOwn(t *testing.T) {
	where := t.TempDir()
	t.Setenv("GOTMPDIR", where)
	if err := os.Mkdir(filepath.Join(where, "go-build1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := emptyFoldersSince(time.Now().Add(time.Minute)); len(got) != 0 {
		t.Errorf("found %v", got)
	}
	if got := emptyFoldersSince(time.Time{}); len(got) != 0 {
		t.Errorf("found %v for a tool whose age is unknown", got)
	}
}

func TestAToolThatLivesIsNotCleanedUpAfter(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "go-build1")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	(&goTool{pid: os.Getppid(), built: folder}).clean()
	if _, err := os.Stat(folder); err != nil {
		t.Error(err)
	}
	var none *goTool
	none.clean()
	(&goTool{pid: -1, built: folder}).clean()
	if _, err := os.Stat(folder); err == nil {
		t.Error("the folder of a tool that is gone is left")
	}
}

func TestTheStartOfAProcessIsKnown(t *testing.T) {
	got := started(os.Getpid())
	if age := time.Since(got); age < 0 || age > 10*time.Minute {
		t.Errorf("this process has been running for %v", age)
	}
	if got := started(-1); !got.IsZero() {
		t.Errorf("no process started at %v", got)
	}
}
