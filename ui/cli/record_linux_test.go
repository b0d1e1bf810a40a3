package cli_test

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"flanwatch/assets"
	"flanwatch/ui/cli"
	"flanwatch/watcher/lab/labtest"
)

// recording is a `flanwatch record` that runs beside a test.
type recording struct {
	cmd    *exec.Cmd
	out    *os.File
	notify *net.UnixConn
	state  string
}

func startRecord(t *testing.T, n *labtest.Namespace, program, state string) *recording {
	t.Helper()
	r := &recording{state: state}
	socket := filepath.Join(t.TempDir(), "notify")
	var err error
	if r.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	if r.out, err = os.Create(filepath.Join(t.TempDir(), "out")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.notify.Close(); r.out.Close() })
	r.cmd = exec.Command(program, "record", "--netns", n.Path(), "--root", n.Root(), "--state", state)
	r.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket, "WATCHDOG_USEC=400000")
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.out
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.cmd.Process.Kill()
		r.cmd.Wait()
	})
	r.told(t, "READY=1")
	return r
}

// told waits until the service manager is told something.
func (r *recording) told(t *testing.T, what string) {
	t.Helper()
	buffer := make([]byte, 1000)
	for {
		r.notify.SetReadDeadline(time.Now().Add(20 * time.Second))
		k, err := r.notify.Read(buffer)
		if err != nil {
			t.Fatalf("not told %s: %v; said %s", what, err, r.said(t))
		}
		if strings.Contains(string(buffer[:k]), what) {
			return
		}
	}
}

func (r *recording) said(t *testing.T) string {
	text, err := os.ReadFile(r.out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// waitFor waits for a line.
func (r *recording) waitFor(t *testing.T, line string) {
	t.Helper()
	want := regexp.MustCompile(line)
	for range 200 {
		if want.MatchString(r.said(t)) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("no line like %s in\n%s", line, r.said(t))
}

// printed runs a command line and gives what it prints.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := cli.Main(t.Context(), args, cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs}); code != cli.ExitOK {
		t.Fatalf("%q: exit code %d: %s", args, code, errs.String())
	}
	return out.String()
}

func TestAGapIsRecordedToldReplayedAndExported(t *testing.T) {
	program := buildFlanwatch(t)
	n := node(t)
	n.Feed(rules4, "iptables-nft-restore")
	n.Feed(rules6, "ip6tables-nft-restore")
	n.Flanneld("--ip-masq", "--kube-subnet-mgr")
	state := t.TempDir()
	r := startRecord(t, n, program, state)
	r.waitFor(t, `recording to `+regexp.QuoteMeta(state))
	r.told(t, "WATCHDOG=1")
	time.Sleep(1500 * time.Millisecond) // the rules have been read as they should be
	n.Must("iptables-nft -w -t nat -F FLANNEL-POSTRTG")
	r.waitFor(t, `incident 1 flushed: iptables-nft ip nat FLANNEL-POSTRTG, since then, by iptables`)
	n.Feed(rules4, "iptables-nft-restore")
	r.waitFor(t, `incident 1 flushed: iptables-nft ip nat FLANNEL-POSTRTG, over after \d+\.\d{3} s.*restored by iptables`)

	// A SIGKILL takes nothing of what was said.
	r.cmd.Process.Kill()
	r.cmd.Wait()
	list := printed(t, "export", "--list", "--state", state)
	if !strings.Contains(list, "incident 1 flushed") || strings.Count(list, "\n") != 1 {
		t.Errorf("list:\n%s", list)
	}
	if lines := printed(t, "replay", "--state", state); !strings.Contains(lines, "FLANNEL-POSTRTG emptied, −6 rules, by iptables") {
		t.Errorf("replay:\n%s", lines)
	}
	checkReport(t, printed(t, "export", "--incident", "1", "--state", state))
	checkExported(t, printed(t, "export", "-o", "json", "--state", state))

	// The next one goes on counting where the last one was killed, and ends when asked to.
	r = startRecord(t, n, program, state)
	time.Sleep(2 * time.Second)
	n.Must("iptables-nft -w -t nat -F FLANNEL-POSTRTG")
	r.waitFor(t, `incident 2 flushed`)
	r.cmd.Process.Signal(syscall.SIGTERM)
	if err := r.cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	if strings.Contains(r.said(t), "incident 1 ") {
		t.Errorf("told again what was told before:\n%s", r.said(t))
	}
}

func checkReport(t *testing.T, report string) {
	t.Helper()
	first := strings.SplitN(report, "\n", 6)
	for i, want := range []string{
		"# Incident 1: flushed of `iptables-nft ip nat FLANNEL-POSTRTG`", "* When: 20", "* How long: ", "* Who: iptables",
		"* Effect on pods: v4 masquerading: new connections of pods in 10.244.1.0/24",
	} {
		if !strings.HasPrefix(first[i], want) {
			t.Errorf("line %d is %q, want %q…", i+1, first[i], want)
		}
	}
	for _, want := range []string{"# ok, 6 of 6 rules", "# empty, 0 of 6 rules", "-j MASQUERADE --random-fully", "* Kernel: ", "restored by iptables"} {
		if !strings.Contains(report, want) {
			t.Errorf("report lacks %q:\n%s", want, report)
		}
	}
}

func checkExported(t *testing.T, text string) {
	t.Helper()
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(assets.ExportSchema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("export", schema); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("export")
	if err != nil {
		t.Fatal(err)
	}
	var x any
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(x); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}
