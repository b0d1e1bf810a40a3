package lab

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// buildDemo builds testdata/demo where every user can run it.
func buildDemo(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("/var/tmp", "flanwatch-lab")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	demo := filepath.Join(folder, "labdemo")
	if out, err := exec.Command("go", "build", "-o", demo, "./testdata/demo").CombinedOutput(); err != nil {
		t.Fatalf("build demo: %v\n%s", err, out)
	}
	return demo
}

// running is a demo that has said "up".
type running struct {
	cmd   *exec.Cmd
	inner int
	stdin io.Writer
	rest  *bufio.Reader
}

func startDemo(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := &running{cmd: cmd, stdin: stdin, rest: bufio.NewReader(stdout)}
	t.Cleanup(func() { cmd.Process.Kill() })
	line, err := r.rest.ReadString('\n')
	if _, serr := fmt.Sscanf(line, "up %d\n", &r.inner); serr != nil {
		t.Fatalf("demo says %q, %v", line, err)
	}
	return r
}

// processesOf lists the living processes that run an executable, whatever they are called.
func processesOf(t *testing.T, path string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, link := range links {
		exe, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(exe, path) {
			continue
		}
		comm, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "comm"))
		found = append(found, filepath.Base(filepath.Dir(link))+" "+strings.TrimSpace(string(comm)))
	}
	return found
}

func waitUntilGone(t *testing.T, path string) {
	t.Helper()
	for deadline := time.Now().Add(6 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := processesOf(t, path)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes are left: %v", left)
		}
	}
}

func mounts(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

func TestAnOrdinaryUserCanBuildTheLab(t *testing.T) {
	needRoot(t) // to become somebody else
	demo := buildDemo(t)
	for _, tt := range []struct {
		name string
		end  func(r *running)
		code int
	}{
		{"its exit code is passed on", func(r *running) { fmt.Fprintln(r.stdin, 5) }, 5},
		{"SIGTERM is passed on", func(r *running) { r.cmd.Process.Signal(unix.SIGTERM) }, 143},
		{"SIGKILL of the outer process ends the inner one", func(r *running) { r.cmd.Process.Kill() }, -1},
		{"SIGKILL of the inner process ends the outer one", func(r *running) { unix.Kill(r.inner, unix.SIGKILL) }, 137},
	} {
		for _, uid := range []uint32{65534, 0} {
			t.Run(tt.name+", user "+strconv.Itoa(int(uid)), func(t *testing.T) {
				before := mounts(t)
				cmd := exec.Command(demo)
				cmd.Dir = "/"
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
				r := startDemo(t, cmd)
				if names := strings.Join(processesOf(t, demo), "\n"); !strings.Contains(names, "flanneld") {
					t.Errorf("no flanneld among the processes\n%s", names)
				}
				tt.end(r)
				cmd.Wait()
				if code := cmd.ProcessState.ExitCode(); code != tt.code {
					t.Errorf("exit code %d, want %d", code, tt.code)
				}
				waitUntilGone(t, demo)
				if after := mounts(t); after != before {
					t.Errorf("%d mounts before, %d after", before, after)
				}
			})
		}
	}
}

func TestAnInnerProcessThatHeedsNoSignalIsKilled(t *testing.T) {
	needRoot(t)
	demo := buildDemo(t)
	r := startDemo(t, exec.Command(demo, "stubborn"))
	r.cmd.Process.Kill()
	r.cmd.Wait()
	waitUntilGone(t, demo)
}

func TestWhereTheKernelGivesNoNamespacesTheErrorSaysSo(t *testing.T) {
	needRoot(t)
	demo := buildDemo(t)
	// In a user namespace that may have no further ones, an ordinary user is in the place of one on a hardened machine.
	cmd := exec.Command("sh", "-c", "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --reuid=1 --clear-groups "+demo)
	everybody := []syscall.SysProcIDMap{{Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: everybody, GidMappings: everybody, GidMappingsEnableSetgroups: true,
	}
	out, _ := cmd.CombinedOutput()
	if want := "neither root nor user namespaces are to be had"; !strings.Contains(string(out), want) || !strings.Contains(string(out), "true") {
		t.Errorf("demo says %q, want a privilege error with %q", out, want)
	}
}

func TestGoRunLeavesNothing(t *testing.T) {
	needRoot(t)
	for _, tt := range []struct {
		name string
		end  func(r *running)
	}{
		{"after SIGTERM of the go tool, newly built", func(r *running) { r.cmd.Process.Signal(unix.SIGTERM) }},
		{"after SIGTERM of the go tool, from the cache", func(r *running) { r.cmd.Process.Signal(unix.SIGTERM) }},
		{"after its own end", func(r *running) { fmt.Fprintln(r.stdin, 0) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			work := t.TempDir()
			cmd := exec.Command("go", "run", "./testdata/demo")
			cmd.Env = append(os.Environ(), "GOTMPDIR="+work, "GOFLAGS=")
			if strings.Contains(tt.name, "newly") {
				cmd.Env = append(cmd.Env, "GOFLAGS=-ldflags=-X=main.made="+strconv.FormatInt(time.Now().UnixNano(), 10))
			}
			r := startDemo(t, cmd)
			exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", r.inner))
			if err != nil {
				t.Fatal(err)
			}
			tt.end(r)
			cmd.Wait()
			waitUntilGone(t, exe)
			left, err := os.ReadDir(work)
			if err != nil || len(left) > 0 {
				t.Errorf("left in the work folder: %v, %v", left, err)
			}
		})
	}
}

// insideEnd tells the inner process of this test binary how to end.
const insideEnd = "FLANWATCH_TEST_END"

// playInside is what this test binary does as the inner process of Enclose.
func playInside() int {
	inside, _, err := Enclose()
	if !inside || err != nil {
		return 1
	}
	code, err := strconv.Atoi(os.Getenv(insideEnd))
	if err != nil {
		unix.Kill(os.Getppid(), unix.SIGTERM) // which the outer process passes on
		time.Sleep(time.Minute)
	}
	return code
}

func TestEncloseGivesTheExitCodeOfTheInnerProcess(t *testing.T) {
	needRoot(t)
	for end, want := range map[string]int{"0": 0, "7": 7, "signal": 143} {
		t.Setenv(insideEnd, end)
		inside, code, err := Enclose()
		if inside || code != want || err != nil {
			t.Errorf("%s: inside %t, code %d, %v, want %d", end, inside, code, err, want)
		}
	}
}

func TestTheTerminalIsRestored(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer master.Close()
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	saved := saveTerminal(tty)
	raw := *saved.state
	raw.Lflag &^= unix.ECHO | unix.ICANON
	if err := unix.IoctlSetTermios(int(tty.Fd()), unix.TCSETS, &raw); err != nil {
		t.Fatal(err)
	}
	saved.restore()
	if got := saveTerminal(tty); got.state.Lflag != saved.state.Lflag {
		t.Errorf("local modes are %#x, want %#x", got.state.Lflag, saved.state.Lflag)
	}
	sent := make([]byte, 100)
	if n, err := master.Read(sent); err != nil || !strings.HasPrefix(string(sent[:n]), "\x1b[?1049l") {
		t.Errorf("sent to the terminal: %q, %v", sent[:n], err)
	}
	saveTerminal(os.NewFile(^uintptr(0), "none")).restore()
}
