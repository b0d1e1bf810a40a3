package cli_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/vt"
	"golang.org/x/sys/unix"

	"flanwatch/watcher/incident"
	"flanwatch/watcher/journal"
	"flanwatch/watcher/lab/labtest"
)

// full tells whether to test at length.
func full() bool { return os.Getenv("FLANWATCH_FULL") == "1" }

// flannelNode is a node on which Flannel runs and everything is as it should be.
func flannelNode(t *testing.T) *labtest.Namespace {
	t.Helper()
	n := node(t)
	n.Feed(rules4, "iptables-nft-restore")
	n.Feed(rules6, "ip6tables-nft-restore")
	n.Flanneld("--ip-masq", "--kube-subnet-mgr")
	return n
}

// display is the built program on a pseudo-terminal, whose person reads or does not.
type display struct {
	cmd    *exec.Cmd
	person *os.File

	mu       sync.Mutex
	emulator *vt.Emulator
	first    string // the first picture with anything on it
}

const displayWidth, displayHeight = 120, 40

func startWatch(t *testing.T, n *labtest.Namespace, program, state string, reads bool) *display {
	t.Helper()
	x := newTerminal(t)
	_ = unix.IoctlSetWinsize(int(x.tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: displayHeight, Col: displayWidth})
	d := &display{person: x.person, emulator: vt.NewEmulator(displayWidth, displayHeight)}
	d.cmd = exec.Command(program, "watch", "--netns", n.Path(), "--root", n.Root(), "--state", state)
	d.cmd.Env = append(os.Environ(), "TERM=xterm-256color", "COLORTERM=truecolor", "TZ=UTC")
	d.cmd.Stdin, d.cmd.Stdout, d.cmd.Stderr = x.tty, x.tty, x.tty
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	x.pause(!reads)
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait()
	})
	if reads {
		go d.show(x)
	}
	return d
}

// show draws what the program writes, some fifty times a second.
func (d *display) show(x *terminal) {
	drawn := 0
	go func() { // the emulator answers questions, which nobody has to read
		buffer := make([]byte, 256)
		for {
			if _, err := d.emulator.Read(buffer); err != nil {
				return
			}
		}
	}()
	for range 5000 {
		time.Sleep(20 * time.Millisecond)
		text := x.screen()
		d.mu.Lock()
		_, _ = d.emulator.Write([]byte(text[drawn:]))
		drawn = len(text)
		if now := d.emulator.String(); d.first == "" && strings.Contains(now, "FLANNEL") {
			d.first = now
		}
		d.mu.Unlock()
	}
}

func (d *display) firstPicture(t *testing.T) string {
	t.Helper()
	for range 1000 {
		d.mu.Lock()
		first := d.first
		d.mu.Unlock()
		if first != "" {
			return first
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("nothing is shown")
	return ""
}

func (d *display) picture() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.emulator.String()
}

// quit ends the program by its key.
func (d *display) quit(t *testing.T) {
	t.Helper()
	if _, err := d.person.WriteString("q"); err != nil {
		t.Error(err)
	}
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("after q: %v", err)
	}
}

// recorded lists the incidents of a journal.
func recorded(t *testing.T, state string) []incident.Incident {
	t.Helper()
	rec, err := journal.Load(filepath.Join(state, "journal"))
	if err != nil {
		t.Fatal(err)
	}
	return rec.Final.Incidents
}

func emptyFor(n *labtest.Namespace, length time.Duration) {
	n.Must("iptables-nft -w -t nat -F FLANNEL-POSTRTG")
	time.Sleep(length)
	n.Feed(rules4, "iptables-nft-restore")
}

func TestWhatWasRecordedIsOnTheFirstPictureAndNothingIsThereTwice(t *testing.T) {
	program, n, state := buildFlanwatch(t), flannelNode(t), t.TempDir()
	r := startRecord(t, n, program, state)
	time.Sleep(1500 * time.Millisecond)
	emptyFor(n, 100*time.Millisecond)
	r.waitFor(t, `incident 1 flushed: .*over after`)

	d := startWatch(t, n, program, state, true)
	if first := d.firstPicture(t); !strings.Contains(first, "emptied") || !strings.Contains(first, "refilled") {
		t.Errorf("the first picture does not tell of the incident:\n%s", first)
	}
	time.Sleep(3 * time.Second)
	emptyFor(n, 300*time.Millisecond)
	r.waitFor(t, `incident 2 flushed: .*over after`)
	time.Sleep(1500 * time.Millisecond)
	picture := d.picture()
	if strings.Count(picture, "emptied") != 2 || !strings.Contains(picture, "recorded by another process") {
		t.Errorf("both gaps once, and who records them:\n%s", picture)
	}

	// Opened in the midst of a gap, it knows since when.
	n.Must("iptables-nft -w -t nat -F FLANNEL-POSTRTG")
	r.waitFor(t, `incident 3 \S+: .*since then`)
	time.Sleep(2 * time.Second)
	late := startWatch(t, n, program, state, true)
	if first := late.firstPicture(t); !strings.Contains(first, "empty") {
		t.Errorf("the first picture of an open gap:\n%s", first)
	}
	n.Feed(rules4, "iptables-nft-restore")
	r.waitFor(t, `incident 3 \S+: .*over after`)
	late.quit(t)
	d.quit(t)
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = r.cmd.Wait()
	list := recorded(t, state)
	for i, inc := range list {
		if inc.Number != i+1 || inc.Open || !inc.Complete {
			t.Errorf("%+v", inc)
		}
	}
	files, err := journal.Files(filepath.Join(state, "journal"))
	if len(list) != 3 || err != nil || len(files) != 1 {
		t.Errorf("%d incidents in %d files, %v", len(list), len(files), err)
	}
}

// TestATerminalThatNobodyReadsHidesNothingFromTheJournal leaves the screen unread for five seconds, with FLANWATCH_FULL=1 for
// a minute.
func TestATerminalThatNobodyReadsHidesNothingFromTheJournal(t *testing.T) {
	program, n, state := buildFlanwatch(t), flannelNode(t), t.TempDir()
	startWatch(t, n, program, state, false)
	unread := 5 * time.Second
	if full() {
		unread = time.Minute
	}
	time.Sleep(3 * time.Second) // everything has been read
	gaps := 0
	for end := time.Now().Add(unread); time.Now().Before(end); gaps++ {
		emptyFor(n, 50*time.Millisecond)
		time.Sleep(700 * time.Millisecond)
	}
	time.Sleep(time.Second)
	list := recorded(t, state)
	t.Logf("%d of %d gaps are in the journal after %v", len(list), gaps, unread)
	if len(list) != gaps {
		t.Errorf("%d incidents of %d gaps", len(list), gaps)
	}
	for _, inc := range list {
		if inc.Open || inc.By == nil || !strings.HasPrefix(inc.By.Comm, "iptables") {
			t.Errorf("%+v", inc)
		}
	}
}

// TestAFullDiskIsSaidAndRecordingResumes fills the small disk that the journal lies on.
func TestAFullDiskIsSaidAndRecordingResumes(t *testing.T) {
	program, n := buildFlanwatch(t), flannelNode(t)
	n.Must("mkdir -p /run/small")
	n.Must("mount -t tmpfs -o size=128k tmpfs /run/small")
	state := n.Root() + "/run/small"
	r := startRecord(t, n, program, state)
	time.Sleep(1500 * time.Millisecond)
	emptyFor(n, 50*time.Millisecond)
	r.waitFor(t, `incident 1 flushed: .*over after`)
	_, _ = n.Run("dd", "if=/dev/zero", "of=/run/small/filler", "bs=1k", "count=1000") // fails when all is used
	for i := 0; i < 40 && !strings.Contains(r.said(t), "NOT RECORDING"); i++ {
		emptyFor(n, 20*time.Millisecond)
		time.Sleep(200 * time.Millisecond)
	}
	r.waitFor(t, `NOT RECORDING: .*no space left on device`)
	n.Must("rm /run/small/filler")
	r.waitFor(t, `the journal is written again`)
	before := strings.Count(r.said(t), "over after")
	emptyFor(n, 50*time.Millisecond)
	r.waitFor(t, fmt.Sprintf(`incident %d \S+: .*over after`, before+1))
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	_ = r.cmd.Wait()
	report := printed(t, "export", "--journal", filepath.Join(state, "journal"))
	if !strings.Contains(report, "# Incident") || !strings.Contains(report, "no space left") {
		t.Errorf("the report does not say what is missing:\n%s", report)
	}
	list := recorded(t, state)
	if last := list[len(list)-1]; last.Open || last.Duration(last.End) < 50*time.Millisecond {
		t.Errorf("the last gap: %+v", last)
	}
}

// TestADeathTakesNothingOfWhatWasSaid kills a recorder at random moments of a gap, with FLANWATCH_FULL=1 five hundred times:
// whatever line it has printed, the journal tells the same.
func TestADeathTakesNothingOfWhatWasSaid(t *testing.T) {
	program, n := buildFlanwatch(t), flannelNode(t)
	deaths, lines := 4, 0
	if full() {
		deaths = 500
	}
	var state string
	for i := range deaths {
		if i%20 == 0 { // else the journal's history grows and grows
			state = t.TempDir()
		}
		lines += killed(t, n, program, state)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d deaths, %d lines said, all of them in the journal", deaths, lines)
}

// killed lets a recorder see a gap and die, and compares what it said with the journal.
func killed(t *testing.T, n *labtest.Namespace, program, state string) (lines int) {
	t.Helper()
	r := startRecord(t, n, program, state)
	time.Sleep(time.Duration(700+time.Now().UnixNano()%200) * time.Millisecond) // the rules have been read
	n.Must("iptables-nft -w -t nat -F FLANNEL-POSTRTG")
	time.Sleep(time.Duration(time.Now().UnixNano() % 20e6))
	n.Feed(rules4, "iptables-nft-restore")
	time.Sleep(time.Duration(time.Now().UnixNano() % 150e6))
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
	list := printed(t, "export", "--list", "--state", state)
	for line := range strings.Lines(r.said(t)) {
		begin, _, told := strings.Cut(line, ", since then")
		if !told {
			begin, _, told = strings.Cut(line, ", restored by")
		}
		if !told {
			continue
		}
		lines++
		if !strings.Contains(list, begin) {
			t.Errorf("it said\n%sand the journal tells\n%s", line, list)
		}
	}
	return lines
}
