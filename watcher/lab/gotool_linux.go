package lab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// goTool is the `go run` that started this process. SIGTERM kills it without a word to its child and without clearing its
// work folder, so the child must notice and do both.
type goTool struct {
	pid   int
	built string   // the work folder, if the executable lies in it
	empty []string // else its empty work folder is one of these
}

var (
	workFolder = regexp.MustCompile(`^go-build[0-9]+$`)
	builtThere = regexp.MustCompile(`^(/.*/go-build[0-9]+)/b[0-9]+/exe/[^/]+$`)
)

// findGoTool gives nil if the parent is another program.
func findGoTool(self string) *goTool {
	parent := os.Getppid()
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", parent))
	if err != nil || string(comm) != "go\n" {
		return nil
	}
	if m := builtThere.FindStringSubmatch(self); m != nil {
		return &goTool{pid: parent, built: m[1]}
	}
	// The executable lies in the build cache. Then nothing but its age tells whose work folder is whose.
	return &goTool{pid: parent, empty: emptyFoldersSince(started(parent))}
}

func emptyFoldersSince(start time.Time) []string {
	where := os.Getenv("GOTMPDIR")
	if where == "" {
		where = os.TempDir()
	}
	entries, err := os.ReadDir(where)
	if err != nil || start.IsZero() {
		return nil
	}
	var found []string
	for _, e := range entries {
		info, err := e.Info()
		path := filepath.Join(where, e.Name())
		if err != nil || !e.IsDir() || !workFolder.MatchString(e.Name()) || info.ModTime().Before(start) || !empty(path) {
			continue
		}
		found = append(found, path)
	}
	return found
}

func empty(folder string) bool {
	entries, err := os.ReadDir(folder)
	return err == nil && len(entries) == 0
}

// started tells when a process was started, to a tick of 10 ms, rounded down; zero if it cannot be told.
func started(pid int) time.Time {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return time.Time{}
	}
	const ticksPerSecond, startField = 100, 19 // the 22nd field, counted from behind the name
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= startField {
		return time.Time{}
	}
	ticks, err := strconv.ParseInt(string(fields[startField]), 10, 64)
	if err != nil {
		return time.Time{}
	}
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(ticks)*time.Second/ticksPerSecond - time.Duration(boot.Nano()) - time.Second/ticksPerSecond)
}

// gone tells whether the tool has died before its child.
func (g *goTool) gone() bool { return g != nil && os.Getppid() != g.pid }

// clean removes the work folder of a tool that is gone. Where several empty ones could be it, none is touched: one may
// belong to somebody else's build.
func (g *goTool) clean() {
	if !g.gone() {
		return
	}
	if g.built != "" && own(g.built) {
		os.RemoveAll(g.built) //nolint:errcheck // what cannot be removed stays, as it would without us
		return
	}
	left := slices.DeleteFunc(g.empty, func(path string) bool { return !empty(path) || !own(path) })
	if len(left) == 1 {
		os.Remove(left[0]) //nolint:errcheck
	}
}

func own(path string) bool {
	var stat unix.Stat_t
	return unix.Lstat(path, &stat) == nil && int(stat.Uid) == os.Geteuid()
}
