package ctnl

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

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
