package proc

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/lab/labtest"
)

func procFS(t testing.TB) *FS {
	t.Helper()
	fs, err := OpenFS("/proc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fs.Close() })
	if !fs.view().initial {
		t.Skip("needs the initial PID namespace")
	}
	return fs
}

func TestWhoReadsARunningProcess(t *testing.T) {
	fs := procFS(t)
	n := labtest.New(t)
	pid := start(t, n, "iptables", "-t", "nat", "-F")
	w := NewAsker(fs, nil).Who(incident.Who{PID: pid, Comm: "iptables"}, now())

	want := []string{"/run/bin/iptables", "-t", "nat", "-F"}
	if c := w.Origin.Cmdline; !slices.Equal(c.Value, want) || c.Certainty != incident.Exact {
		t.Errorf("command line %+v, want exactly %q", c, want)
	}
	parents := w.Origin.Parents
	if len(parents.Value) == 0 || parents.Value[0].PID != os.Getpid() || parents.Certainty != incident.Estimate {
		t.Errorf("parents %+v, want this process %d first, as an estimate", parents, os.Getpid())
	}
	if len(parents.Value) > generations {
		t.Errorf("%d parents", len(parents.Value))
	}
	if w.Origin.Container.Certainty != incident.Exact {
		t.Errorf("container %+v", w.Origin.Container)
	}
}

func TestWhoFillsInAMissingName(t *testing.T) {
	fs := procFS(t)
	pid := start(t, labtest.New(t), "iptables-legacy")
	if w := NewAsker(fs, nil).Who(incident.Who{PID: pid}, now()); w.Comm != "iptables-legacy" {
		t.Errorf("name %q", w.Comm)
	}
}

func TestWhoNeverTellsOfAnotherProcess(t *testing.T) {
	fs := procFS(t)
	n := labtest.New(t)
	pid := start(t, n, "successor")
	asker := NewAsker(fs, nil)
	nothing := func(w incident.Who) bool {
		return w.Origin.Cmdline.Value == nil && w.Origin.Cmdline.Certainty == "" && w.Origin.Cmdline.How != "" &&
			w.Origin.Parents.Value == nil && w.Origin.Container.Certainty == ""
	}
	before := now()
	before.Boot -= time.Hour
	if w := asker.Who(incident.Who{PID: pid, Comm: "nft"}, before); !nothing(w) || w.Comm != "nft" {
		t.Errorf("a process that started later: %+v", w.Origin)
	}
	if w := asker.Who(incident.Who{PID: 1 << 30, Comm: "nft"}, now()); !nothing(w) {
		t.Errorf("a number that nobody has: %+v", w.Origin)
	}
	if w := asker.Who(incident.Who{Comm: "nft"}, now()); !nothing(w) {
		t.Errorf("no number: %+v", w.Origin)
	}
	w := asker.Who(incident.Who{PID: pid, Comm: "nft"}, now())
	if c := w.Origin.Cmdline; c.Certainty != incident.Estimate || !strings.Contains(c.How, "successor") || w.Comm != "nft" {
		t.Errorf("a process that has executed another program since: %+v", c)
	}
}

func openExecs(t testing.TB, fs *FS) *Execs {
	t.Helper()
	labtest.RequireRoot(t)
	execs, err := OpenExecs(fs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := execs.Err(); err != nil {
			t.Error(err)
		}
		if err := execs.Close(); err != nil {
			t.Error(err)
		}
	})
	return execs
}

// TestWhoKnowsAProgramThatHasEnded has a shell start a program that ends at once; the shell ends too.
func TestWhoKnowsAProgramThatHasEnded(t *testing.T) {
	fs := procFS(t)
	execs := openExecs(t, fs)
	asker := NewAsker(fs, execs)
	labtest.RequireTools(t, "sh", "true")

	const times = 20
	exact := 0
	for i := range times {
		mark := fmt.Sprintf("round-%d", i)
		// The program lives for a moment, as a tool that changes rules does.
		cmd := exec.Command("sh", "-c", "sleep 0.05 & echo $!; exec sleep 0.08 # "+mark)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		var pid int
		if _, err := fmt.Sscan(string(out), &pid); err != nil {
			t.Fatal(err)
		}
		at := now()
		var w incident.Who
		waitFor(t, "the end is known", func() bool {
			s, ok := execs.Lookup(pid, at.Boot)
			return ok && s.Exited != 0
		})
		w = asker.Who(incident.Who{PID: pid, Comm: "sleep"}, at)
		if w.Origin.Cmdline.Certainty == incident.Exact && slices.Equal(w.Origin.Cmdline.Value, []string{"sleep", "0.05"}) {
			exact++
		}
		p := w.Origin.Parents
		if len(p.Value) < 2 || p.Value[0].PID != cmd.Process.Pid || p.Value[1].PID != os.Getpid() {
			t.Errorf("parents %+v, want %d, then this process", p, cmd.Process.Pid)
		}
	}
	if exact < times*9/10 {
		t.Errorf("%d of %d command lines are exact", exact, times)
	}
	t.Logf("%d of %d command lines of ended programs are exact", exact, times)
}

func TestExecsDoNotMistakeALaterProcess(t *testing.T) {
	fs := procFS(t)
	execs := openExecs(t, fs)
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the end is known", func() bool {
		s, ok := execs.Lookup(cmd.Process.Pid, now().Boot)
		return ok && s.Exited != 0
	})
	before := now().Boot - time.Hour
	if s, ok := execs.Lookup(cmd.Process.Pid, before); ok {
		t.Errorf("an hour ago the number meant %+v", s)
	}
	if s, ok := execs.Lookup(cmd.Process.Pid, now().Boot+time.Hour); ok {
		t.Errorf("an hour later the number means %+v", s)
	}
}

func TestExecsNeedTheInitialNetworkNamespace(t *testing.T) {
	fs := procFS(t)
	n := labtest.New(t)
	if err := n.Do(func() error {
		execs, err := OpenExecs(fs)
		if err == nil {
			_ = execs.Close()
			t.Error("the kernel was taken to answer in another network namespace")
		} else if !strings.HasPrefix(err.Error(), "listen to process starts: ") {
			t.Errorf("error %v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestParentsThatHaveEndedAreStillKnown(t *testing.T) {
	fs := procFS(t)
	execs := openExecs(t, fs)
	labtest.RequireTools(t, "sh", "sleep")
	cmd := exec.Command("sh", "-c", "sleep 3 >/dev/null 2>&1 & echo $!")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(out), &pid); err != nil {
		t.Fatal(err)
	}
	time.Sleep(late + 200*time.Millisecond)
	w := NewAsker(fs, execs).Who(incident.Who{PID: pid, Comm: "sleep"}, now())
	p := w.Origin.Parents
	if len(p.Value) < 2 || p.Value[0].PID != cmd.Process.Pid || p.Value[0].Comm != "sh" || p.Value[1].PID != os.Getpid() {
		t.Errorf("parents %+v, want the shell %d and this process", p, cmd.Process.Pid)
	}
	if w.Origin.Container.Certainty != incident.Exact {
		t.Errorf("container %+v", w.Origin.Container)
	}
}

// BenchmarkExecs is the price of one start of a process: what listening adds is the difference.
func BenchmarkExecs(b *testing.B) {
	for _, listening := range []bool{false, true} {
		b.Run(fmt.Sprintf("listening=%v", listening), func(b *testing.B) {
			if listening {
				openExecs(b, procFS(b))
			}
			before := cpu(b)
			for b.Loop() {
				if err := exec.Command("true").Run(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

func BenchmarkWho(b *testing.B) {
	fs := procFS(b)
	pid := start(b, labtest.New(b), "iptables", "-t", "nat", "-F")
	asker := NewAsker(fs, nil)
	for b.Loop() {
		asker.Who(incident.Who{PID: pid, Comm: "iptables"}, now())
	}
}

// cpu is what this process has used, without its children.
func cpu(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestExecsIgnoreOtherSenders(t *testing.T) {
	labtest.RequireRoot(t)
	fs := procFS(t)
	execs := openExecs(t, fs)
	conn, err := execs.file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var port uint32
	if err := conn.Control(func(fd uintptr) {
		sa, _ := unix.Getsockname(int(fd))
		port = sa.(*unix.SockaddrNetlink).Pid
	}); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_CONNECTOR)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	forged := message(eventFork, 1, 1, 4000001, 4000001)
	if err := unix.Sendto(fd, forged, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}); err != nil {
		t.Skipf("the kernel refuses to send: %v", err)
	}
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a later message is taken", func() bool {
		_, ok := execs.Lookup(cmd.Process.Pid, now().Boot)
		return ok
	})
	if s, ok := execs.Lookup(4000001, now().Boot); ok {
		t.Errorf("a forged message was believed: %+v", s)
	}
}

// elsewhere judges a namespace from its own thread.
func elsewhere(t *testing.T, n *labtest.Namespace) (reason string, is bool) {
	t.Helper()
	s := scannerOf(t, n)
	if err := n.Do(func() error {
		links, err := OpenLinks()
		if err != nil {
			return err
		}
		defer links.Close()
		s.Scan(now())
		reason, is = s.Elsewhere(links)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return reason, is
}

func TestElsewhere(t *testing.T) {
	procFS(t)
	t.Run("a namespace that process 1 does not live in", func(t *testing.T) {
		if reason, is := elsewhere(t, labtest.New(t)); !is || !strings.Contains(reason, "process 1") {
			t.Errorf("Elsewhere = %q, %v", reason, is)
		}
	})
	t.Run("the same without the privilege to see where process 1 lives", func(t *testing.T) {
		n := labtest.New(t)
		s := scannerOf(t, n)
		without(t, n, unix.CAP_SYS_PTRACE, func() {
			if _, err := s.fs.link("1/ns/net"); !denied(err) {
				t.Errorf("namespace of process 1: %v", err)
			}
			links, err := OpenLinks()
			if err != nil {
				t.Error(err)
				return
			}
			defer links.Close()
			if same, err := s.withInit(links); same || err != nil {
				t.Errorf("withInit = %v, %v", same, err)
			}
		})
	})
	t.Run("a namespace with a kubelet", func(t *testing.T) {
		n := labtest.New(t)
		start(t, n, "kubelet")
		if reason, is := elsewhere(t, n); is {
			t.Errorf("Elsewhere: %s", reason)
		}
	})
	t.Run("the namespace that the tests run in, as process 1 does", func(t *testing.T) {
		ns, err := Here()
		if err != nil {
			t.Fatal(err)
		}
		links, err := OpenLinks()
		if err != nil {
			t.Fatal(err)
		}
		defer links.Close()
		s := New(procFS(t), ns)
		if same, err := s.withInit(links); !same || err != nil {
			t.Errorf("withInit = %v, %v", same, err)
		}
	})
	t.Run("a pod with a PID namespace of its own", func(t *testing.T) {
		n, far := labtest.New(t), labtest.New(t)
		n.Shell(`ip link add eth0 type veth peer name far; ip link set eth0 up; ip link set far netns ` + far.Path() + `
			ip addr add 10.244.1.5/24 dev eth0; ip route add default via 10.244.1.1`)
		if o := inPIDNamespace(t, n); !strings.Contains(o.Elsewhere, "veth eth0") {
			t.Errorf("Elsewhere = %q", o.Elsewhere)
		}
	})
	t.Run("a node in a container, with its bridge", func(t *testing.T) {
		n, far := labtest.New(t), labtest.New(t)
		n.Shell(`ip link add eth0 type veth peer name far; ip link set eth0 up; ip link set far netns ` + far.Path() + `
			ip link add cni0 type bridge
			ip addr add 172.18.0.2/16 dev eth0; ip route add default via 172.18.0.1`)
		if o := inPIDNamespace(t, n); o.Elsewhere != "" {
			t.Errorf("Elsewhere = %q", o.Elsewhere)
		}
	})
}

func TestLinks(t *testing.T) {
	n := labtest.New(t)
	n.Shell(`ip link add cni0 type bridge; ip link set cni0 up
		ip link add flannel.1 type vxlan id 1 dstport 8472
		ip link add cali1234 type veth peer name p1; ip link add cali5678 type veth peer name p2
		ip link add eth7 type bridge`)
	var got flannel.Reading[[]string]
	if err := n.Do(func() error {
		r, err := OpenLinks()
		if err != nil {
			return err
		}
		defer r.Close()
		links := r.Read(now())
		got.State = links.State
		for _, l := range links.Value {
			got.Value = append(got.Value, fmt.Sprintf("%s %s %v", l.Name, l.Type, l.Up))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got.Value)
	want := []string{"cali1234 veth false", "cni0 bridge true", "flannel.1 vxlan false"}
	if got.State != flannel.Known || !slices.Equal(got.Value, want) {
		t.Errorf("links %v %q, want %q", got.State, got.Value, want)
	}
}

func TestIptablesOfTheHost(t *testing.T) {
	labtest.RequireTools(t, "iptables")
	r := IptablesHost(t.Context(), now())
	if r.State != flannel.Known || !strings.HasPrefix(r.Value, "1.") {
		t.Errorf("IptablesHost = %+v", r)
	}
}

// shelf is a root with files by name.
type shelf map[string]string

func (s shelf) ReadFile(name string, _ int64) ([]byte, time.Time, error) {
	text, ok := s[name]
	if !ok {
		return nil, time.Time{}, os.ErrNotExist
	}
	return []byte(text), time.Time{}, nil
}

func TestIptablesOfAContainer(t *testing.T) {
	for name, c := range map[string]struct {
		root  shelf
		state flannel.ReadState
		value string
	}{
		"Alpine":               {shelf{apkInstalled: "P:iptables\nV:1.8.11-r1\n\n"}, flannel.Known, "1.8.11-r1"},
		"Debian":               {shelf{dpkgStatus: "Package: iptables\nVersion: 1.8.9-2\n"}, flannel.Known, "1.8.9-2"},
		"one without iptables": {shelf{apkInstalled: "P:zlib\nV:1.3\n\n"}, flannel.Absent, ""},
		"one without packages": {shelf{}, flannel.Unreadable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if r := IptablesIn(c.root, now()); r.State != c.state || r.Value != c.value {
				t.Errorf("IptablesIn = %+v, want %v %q", r, c.state, c.value)
			}
		})
	}
}
