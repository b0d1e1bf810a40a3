package ctnl

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"flanwatch/conntrack"
)

func TestNetlinkAndProcfsTellTheSame(t *testing.T) {
	s := newSite(t)
	s.bursts(t, 20)
	refused := func() (*Reader, error) { return nil, ErrPrivilege }
	proc := openIn(t, s.node, func() (*Meter, error) { return openMeter("/proc", refused) })
	defer proc.Close()
	// What procfs lacks is no hindrance where netlink answers.
	link := openIn(t, s.node, func() (*Meter, error) { return openMeter(t.TempDir(), Open) })
	defer link.Close()
	a, errA := proc.Read()
	b, errB := link.Read()
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	if a.Source != conntrack.SourceProcfs || b.Source != conntrack.SourceNetlink || a.Count.N < 20 {
		t.Errorf("procfs %+v, netlink %+v", a, b)
	}
	a.Source = b.Source
	if a != b {
		t.Errorf("procfs  %+v\nnetlink %+v", a, b)
	}
	if _, err := proc.Reader(); !errors.Is(err, ErrPrivilege) {
		t.Errorf("a reader without netlink: %v", err)
	}
}

func TestWhereNeitherAnswersThatIsAnErrorAndNotZero(t *testing.T) {
	refused := func() (*Reader, error) { return nil, ErrPrivilege }
	locked := t.TempDir()
	stat := filepath.Join(locked, "thread-self/net/stat")
	if err := os.MkdirAll(filepath.Join(stat, "nf_conntrack"), 0o755); err != nil {
		t.Fatal(err)
	}
	m, err := openMeter(locked, refused)
	if err == nil {
		_, err = m.Read()
	}
	if !errors.Is(err, ErrPrivilege) || errors.Is(err, ErrNotPresent) {
		t.Errorf("got %v", err)
	}
	absent := func() (*Reader, error) { return nil, ErrNotPresent }
	if _, err := openMeter(t.TempDir(), absent); !errors.Is(err, ErrNotPresent) {
		t.Errorf("without connection tracking: %v", err)
	}
}

func TestTheKernelIsNotAskedForWhatItWouldHaveToLoad(t *testing.T) {
	const heard = "sk Eth Pid Groups\n0000000000000000 12  0          00000000 0\n"
	for name, c := range map[string]struct {
		fs   fstest.MapFS
		want error
	}{
		"a module": {fstest.MapFS{
			"proc/thread-self/net/netlink":         {Data: []byte(heard)},
			"sys/module/nf_conntrack_netlink/keep": {},
		}, nil},
		"built in": {fstest.MapFS{
			"proc/thread-self/net/netlink": {Data: []byte(heard)},
			"proc/kallsyms":                {Data: []byte("0 t other\n0 t ctnetlink_dump_table\n")},
		}, nil},
		"not there": {fstest.MapFS{
			"proc/thread-self/net/netlink": {Data: []byte(heard)},
			"proc/kallsyms":                {Data: []byte("0 t other\n")},
		}, ErrNotPresent},
		"no nfnetlink": {fstest.MapFS{
			"proc/thread-self/net/netlink": {Data: []byte("sk Eth Pid Groups\n0000000000000000 12  4711 00000000 0\n")},
		}, ErrNotPresent},
	} {
		if err := present(c.fs); !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}
