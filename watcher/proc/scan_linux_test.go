package proc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/lab/labtest"
)

func TestScanDescribesFlanneld(t *testing.T) {
	n := labtest.New(t)
	before := time.Now()
	pid := start(t, n, "flanneld", "--ip-masq", "--kube-subnet-mgr")
	start(t, n, "kube-proxy", "--cluster-cidr=10.244.0.0/16")
	s := scannerOf(t, n)
	found := s.Scan(now())

	if found.Flannel.State != flannel.Known || len(found.Flannel.Value) != 1 {
		t.Fatalf("found %+v", found.Flannel)
	}
	p := found.Flannel.Value[0]
	if p.PID != pid || p.Kind != diagnose.ProcFlanneld || p.Comm != "flanneld" {
		t.Errorf("process is %+v, want pid %d", p, pid)
	}
	if want := []string{"/run/bin/flanneld", "--ip-masq", "--kube-subnet-mgr"}; !slices.Equal(p.Cmdline, want) {
		t.Errorf("command line %q, want %q", p.Cmdline, want)
	}
	if p.Env["FLANNELD_IPTABLES_RESYNC"] != "7" || p.Env["POD_NAME"] == "" || len(p.Env) != 2 {
		t.Errorf("environment %v", p.Env)
	}
	if age := p.Started.Wall.Sub(before); age < -20*time.Millisecond || age > 5*time.Second {
		t.Errorf("started %v after it was started", age)
	}
	if p.Version != "" {
		t.Errorf("a program that is not Flannel has Flannel's version %q", p.Version)
	}
	if got := pidsOf(found.Near); !strings.HasPrefix(got, "kube-proxy ") || len(found.Near) != 1 {
		t.Errorf("near:\n%s", got)
	}

	again := s.Scan(now().Add(time.Second))
	if !slices.EqualFunc(found.Flannel.Value, again.Flannel.Value, func(a, b diagnose.Process) bool {
		return a.PID == b.PID && a.Started == b.Started
	}) {
		t.Errorf("a second look differs: %+v", again.Flannel.Value)
	}
}

func TestScanNeverSeesAnotherNamespacesProcess(t *testing.T) {
	a, b, c := labtest.New(t), labtest.New(t), labtest.New(t)
	pa, pb := start(t, a, "flanneld"), start(t, b, "flanneld")
	for _, x := range []struct {
		name string
		n    *labtest.Namespace
		want string
	}{
		{"the first", a, fmt.Sprintf("flanneld %d\n", pa)},
		{"the second", b, fmt.Sprintf("flanneld %d\n", pb)},
		{"one without", c, ""},
	} {
		found := scannerOf(t, x.n).Scan(now())
		if got := pidsOf(found.Flannel.Value); got != x.want || found.Flannel.State != flannel.Known {
			t.Errorf("%s: found %v %q, want %q", x.name, found.Flannel.State, got, x.want)
		}
	}
}

func TestScanFollowsEndAndRestart(t *testing.T) {
	n := labtest.New(t)
	s := scannerOf(t, n)
	labtest.RequireTools(t, "sleep")
	n.Shell("mkdir -p /run/bin; cp \"$(command -v sleep)\" /run/bin/flanneld")
	run := func() *exec.Cmd {
		cmd := exec.Command("/run/bin/flanneld", "60")
		if err := n.Start(cmd); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	kill := func(cmd *exec.Cmd) {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	count := func(want int) {
		t.Helper()
		waitFor(t, fmt.Sprintf("%d processes", want), func() bool { return len(s.Scan(now()).Flannel.Value) == want })
	}

	first := run()
	count(1)
	_ = first.Process.Kill()
	waitFor(t, "a zombie", func() bool {
		st, err := s.fs.stat(first.Process.Pid)
		return err == nil && st.dead()
	})
	count(0) // not reaped yet, and not alive
	_ = first.Wait()
	second, third := run(), run()
	defer kill(second)
	defer kill(third)
	count(2)
	found := s.Scan(now()).Flannel.Value
	if !found[0].Started.Wall.Before(found[1].Started.Wall.Add(time.Millisecond)) {
		t.Errorf("not ordered by start: %v", found)
	}
}

func TestScanFindsABystanderThatBecomesFlanneld(t *testing.T) {
	n := labtest.New(t)
	labtest.RequireTools(t, "sh", "sleep")
	n.Shell("mkdir -p /run/bin; cp \"$(command -v sleep)\" /run/bin/flanneld")
	cmd := exec.Command("sh", "-c", "read go; exec /run/bin/flanneld 60")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	s := scannerOf(t, n)
	for range youngLooks + 2 {
		if got := s.Scan(now()).Flannel.Value; len(got) != 0 {
			t.Fatalf("a shell was taken for Flannel: %+v", got)
		}
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the exec", func() bool {
		st, err := s.fs.stat(cmd.Process.Pid)
		return err == nil && st.comm == "flanneld"
	})
	for range oldRounds {
		if len(s.Scan(now()).Flannel.Value) == 1 {
			return
		}
	}
	t.Errorf("not found within %d rounds", oldRounds)
}

func TestScanCountsK3sOnlyWhereItRunsFlannel(t *testing.T) {
	n := labtest.New(t)
	start(t, n, "k3s-server", "server")
	start(t, n, "k3s", "kubectl", "logs", "-f", "x")
	start(t, n, "k3s-agent", "agent", "--flannel-backend=none")
	if got := scannerOf(t, n).Scan(now()).Flannel.Value; len(got) != 1 || got[0].Comm != "k3s-server" || got[0].Kind != diagnose.ProcK3s {
		t.Errorf("found:\n%s", pidsOf(got))
	}
}

func TestScanWithoutPtraceSaysSoAndCountsNothing(t *testing.T) {
	n := labtest.New(t)
	pid := start(t, n, "flanneld")
	s := scannerOf(t, n)
	without(t, n, unix.CAP_SYS_PTRACE, func() {
		found := s.Scan(now())
		if found.Flannel.State != flannel.Unreadable || len(found.Flannel.Value) != 0 {
			t.Errorf("found %+v", found.Flannel)
		}
		if !strings.Contains(found.Flannel.Why, fmt.Sprintf("flanneld (pid %d)", pid)) || !strings.Contains(found.Flannel.Why, "CAP_SYS_PTRACE") {
			t.Errorf("why: %s", found.Flannel.Why)
		}
	})
	if found := s.Scan(now()); len(found.Flannel.Value) != 1 {
		t.Errorf("with the privilege back: %+v", found.Flannel)
	}
}

func TestScanRecognizesItsNamespaceWithoutPtrace(t *testing.T) {
	n, other := labtest.New(t), labtest.New(t)
	pid := start(t, n, "flanneld", "--ip-masq")
	start(t, other, "flanneld")
	s := scannerOf(t, n)
	without(t, n, unix.CAP_SYS_PTRACE, func() {
		links, err := OpenLinks()
		if err != nil {
			t.Error(err)
			return
		}
		defer links.Close()
		s.Recognize(links)
		if _, err := s.fs.link(fmt.Sprintf("%d/ns/net", pid)); !denied(err) {
			t.Errorf("the namespace can be read: %v", err)
		}
		found := s.Scan(now())
		if got := pidsOf(found.Flannel.Value); found.Flannel.State != flannel.Known || got != fmt.Sprintf("flanneld %d\n", pid) {
			t.Errorf("found %+v", found.Flannel)
			return
		}
		if p := found.Flannel.Value[0]; len(p.Cmdline) != 2 || p.Started.IsZero() {
			t.Errorf("what can be told without the privilege: %+v", p)
		}
	})
}

func TestScanWithHiddenProcesses(t *testing.T) {
	n := labtest.New(t)
	start(t, n, "flanneld")
	n.Shell("mkdir /run/proc && mount -t proc -o hidepid=ptraceable proc /run/proc")
	ns, err := NamespaceAt(n.Path())
	if err != nil {
		t.Fatal(err)
	}
	without(t, n, unix.CAP_SYS_PTRACE, func() {
		fs, err := OpenFS("/run/proc")
		if err != nil {
			t.Error(err)
			return
		}
		defer fs.Close()
		found := New(fs, ns).Scan(now())
		if found.Flannel.State != flannel.Unreadable || !strings.Contains(found.Flannel.Why, "hidepid=") {
			t.Errorf("found %+v", found.Flannel)
		}
	})
}

func TestInAPIDNamespaceOfItsOwn(t *testing.T) {
	n := labtest.New(t)
	start(t, n, "flanneld")
	o := inPIDNamespace(t, n)
	if o.Found.Flannel.State != flannel.Unreadable || !strings.Contains(o.Found.Flannel.Why, "PID namespace") {
		t.Errorf("found %+v", o.Found.Flannel)
	}
	if o.Who.Comm != "nft" || o.Who.Origin == nil || o.Who.Origin.Cmdline.Certainty != "" ||
		o.Who.Origin.Cmdline.How != "process unknown: own PID namespace" || o.Who.Origin.Parents.Value != nil {
		t.Errorf("who: %+v %+v", o.Who, o.Who.Origin)
	}
	if !strings.Contains(o.ExecsFail, "PID namespace") {
		t.Errorf("process starts: %q", o.ExecsFail)
	}
}

func TestOpenFSRefusesOtherFileSystems(t *testing.T) {
	for _, dir := range []string{t.TempDir(), "/nonexistent"} {
		if _, err := OpenFS(dir); err == nil {
			t.Errorf("%s was taken for a proc file system", dir)
		}
	}
}

// TestVersionOfARealExecutable builds a program as Flannel is built.
func TestVersionOfARealExecutable(t *testing.T) {
	labtest.RequireTools(t, "go")
	n := labtest.New(t)
	dir := t.TempDir()
	write(t, dir, "go.mod", "module github.com/flannel-io/flannel\n\ngo 1.26\n")
	write(t, dir, "main.go", "package main\n\nimport (\n\t\"os\"\n\n\t\"github.com/flannel-io/flannel/pkg/version\"\n)\n\n"+
		"func main() { println(version.Version); os.Stdin.Read(make([]byte, 1)) }\n")
	write(t, dir, "pkg/version/version.go", "package version\n\nvar Version = \"\"\n")
	build := exec.Command("go", "build", "-o", "flanneld", "-ldflags",
		"-s -w -X github.com/flannel-io/flannel/pkg/version.Version=v0.28.10", ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	cmd := exec.Command(filepath.Join(dir, "flanneld"))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		_ = cmd.Wait()
	}()
	s := scannerOf(t, n)
	waitFor(t, "flanneld runs", func() bool { return len(s.Scan(now()).Flannel.Value) == 1 })
	if got := s.Scan(now()).Flannel.Value[0].Version; got != "v0.28.10" {
		t.Errorf("version %q", got)
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	name = filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// FuzzBuildInfo feeds damaged executables. The seed is the beginning of a real one.
func FuzzBuildInfo(f *testing.F) {
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		f.Fatal(err)
	}
	head := exe[:min(len(exe), 1<<10)]
	f.Add(head, -1, uint64(0))
	f.Add(head, 40, ^uint64(0)>>1) // the section table lies far outside
	f.Add(head, 40, uint64(64))    // it lies over the program table
	f.Add(head, 56, ^uint64(0))    // as many of both as can be counted
	f.Add(head, 96, uint64(1)<<40) // a segment larger than any file
	f.Add(exe[:min(len(exe), 8<<10)], 32, uint64(16))
	f.Fuzz(func(t *testing.T, b []byte, at int, word uint64) {
		if at >= 0 && at+8 <= len(b) {
			b = slices.Clone(b)
			for i := range 8 {
				b[at+i] = byte(word >> (8 * i))
			}
		}
		r := &boundedReader{r: strings.NewReader(string(b)), left: maxExecutable}
		if info, err := buildInfo(r); err == nil {
			_ = flannelVersion(info)
		}
		if r.left < 0 {
			t.Errorf("read %d bytes too many", -r.left)
		}
	})
}

func BenchmarkScan(b *testing.B) {
	n := labtest.New(b)
	start(b, n, "flanneld")
	for range 100 {
		start(b, n, "bystander")
	}
	s := scannerOf(b, n)
	if got := len(s.Scan(now()).Flannel.Value); got != 1 {
		b.Fatalf("%d processes", got)
	}
	names, err := s.fs.pids()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		s.Scan(flannel.Time{})
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(len(names))*100, "µs/100procs")
}

func BenchmarkPgrep(b *testing.B) {
	labtest.RequireTools(b, "pgrep")
	n := labtest.New(b)
	start(b, n, "flanneld")
	for range 100 {
		start(b, n, "bystander")
	}
	for b.Loop() {
		if err := exec.Command("pgrep", "-x", "flanneld").Run(); err != nil {
			b.Fatal(err)
		}
	}
}
