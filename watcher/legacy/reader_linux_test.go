package legacy_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/lab/labtest"
	"flanwatch/watcher/legacy"
)

// open gives a Reader of a namespace.
func open(t testing.TB, n *labtest.Namespace) *legacy.Reader {
	t.Helper()
	var r *legacy.Reader
	err := n.Do(func() error {
		var err error
		r, err = legacy.Open()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func read(t testing.TB, r *legacy.Reader) *flannel.Ruleset {
	t.Helper()
	rs, err := r.Read(now())
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

var began = time.Now()

func now() flannel.Time {
	return flannel.Time{Wall: time.Now(), Boot: time.Since(began), Session: "test"}
}

func id(f flannel.Family, table, chain string) flannel.ChainID {
	return flannel.ChainID{Backend: flannel.IptablesLegacy, Family: f, Table: table, Name: chain}
}

// texts gives the rules of a chain.
func texts(t testing.TB, rs *flannel.Ruleset, id flannel.ChainID) []string {
	t.Helper()
	c := rs.Chain(id)
	if c == nil {
		t.Fatalf("%s was not looked for", id)
	}
	var out []string
	for _, e := range c.Entries {
		out = append(out, e.Rule.String())
	}
	return out
}

// flannelNat4 fills a chain that exists, and also makes it if the table is new.
const flannelNat4 = `*nat
:FLANNEL-POSTRTG - [0:0]
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
`

const flannel4 = flannelNat4 + `*nat
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
COMMIT
*filter
:FLANNEL-FWD - [0:0]
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
`

func TestAFreshNamespaceHasNoTables(t *testing.T) {
	n := labtest.New(t)
	r := open(t, n)
	rs := read(t, r)
	if len(rs.Tables) != 0 {
		t.Errorf("tables %v", rs.Tables)
	}
	var ids []flannel.ChainID
	for _, c := range rs.Chains {
		ids = append(ids, c.ID)
		if c.Present || c.Base != nil || c.Entries != nil {
			t.Errorf("%s is there", c.ID)
		}
	}
	if want := flannel.Looked(flannel.IptablesLegacy); !slices.Equal(ids, want) {
		t.Errorf("looked for %v, want %v", ids, want)
	}
	if changed, err := r.Changed(); changed || err != nil {
		t.Errorf("changed: %v, %v", changed, err)
	}
	for _, family := range []string{"ip", "ip6"} {
		if got := n.Must("cat /proc/thread-self/net/" + family + "_tables_names"); got != "" {
			t.Errorf("reading made %s tables: %s", family, got)
		}
	}
}

func TestTablesOfBothFamiliesAppearOnTheirOwn(t *testing.T) {
	n := labtest.New(t)
	r := open(t, n)
	read(t, r)
	var want []flannel.TableID
	for _, step := range []struct {
		tool string
		id   flannel.TableID
	}{
		{"iptables-legacy", flannel.TableID{Backend: flannel.IptablesLegacy, Family: flannel.IPv4, Name: "nat"}},
		{"iptables-legacy", flannel.TableID{Backend: flannel.IptablesLegacy, Family: flannel.IPv4, Name: "filter"}},
		{"ip6tables-legacy", flannel.TableID{Backend: flannel.IptablesLegacy, Family: flannel.IPv6, Name: "nat"}},
	} {
		n.Must(step.tool + " -S -t " + step.id.Name)
		if changed, err := r.Changed(); !changed || err != nil {
			t.Errorf("after %s: changed %v, %v", step.id, changed, err)
		}
		want = append(want, step.id)
		rs := read(t, r)
		if !slices.Equal(rs.Tables, want) {
			t.Errorf("tables %v, want %v", rs.Tables, want)
		}
		for _, c := range rs.Chains {
			if present := rs.HasTable(c.ID.TableID()) && c.Base != nil; c.Present != present {
				t.Errorf("%s: present %v, base %v", c.ID, c.Present, c.Base)
			}
		}
		if changed, err := r.Changed(); changed || err != nil {
			t.Errorf("after reading %s: changed %v, %v", step.id, changed, err)
		}
	}
	base := read(t, r).Chain(id(flannel.IPv4, "nat", "POSTROUTING")).Base
	if want := (flannel.BaseChain{Type: "nat", Hook: "postrouting", Priority: 100, Policy: "accept"}); *base != want {
		t.Errorf("base chain %+v, want %+v", *base, want)
	}
}

// TestWhatMakesARevision runs in a small table, which is read as a whole, and in a large one, which is read partly while
// nothing changes.
func TestWhatMakesARevision(t *testing.T) {
	masq := id(flannel.IPv4, "nat", "FLANNEL-POSTRTG")
	steps := []struct {
		name, command string
		revises       bool
	}{
		{"nothing", "true", false},
		{"counters set to zero", "iptables-legacy -t nat -Z FLANNEL-POSTRTG", false},
		{"a rule in another chain, which moves all that follow", "iptables-legacy -t nat -I PREROUTING -s 192.0.2.1 -j ACCEPT", false},
		{"a chain of another name before Flannel's", "iptables-legacy -t nat -N AAA", false},
		{"the policy", "iptables-legacy -P FORWARD DROP", true},
		{"a rule replaced by one of the same size", "iptables-legacy -t nat -R FLANNEL-POSTRTG 1 -m mark --mark 0x8000/0x8000 -m comment --comment x -j RETURN", true},
		{"a target replaced by one of the same size", "iptables-legacy -R FLANNEL-FWD 1 -s 10.244.0.0/16 -m comment --comment x -j DROP", true},
		{"a rule that goes", "iptables-legacy -t nat -D FLANNEL-POSTRTG 1", true},
		{"a chain that is emptied", "iptables-legacy -t nat -F FLANNEL-POSTRTG", true},
		{"a hook that goes", "iptables-legacy -t nat -D POSTROUTING 1", true},
		{"a chain that goes", "iptables-legacy -t nat -X FLANNEL-POSTRTG", true},
		{"a chain that comes", "iptables-legacy -t nat -N FLANNEL-POSTRTG", true},
	}
	for _, others := range []int{0, 1000} {
		t.Run(fmt.Sprint(others, " other rules"), func(t *testing.T) {
			n := labtest.New(t)
			n.Feed(flannel4, "iptables-legacy-restore", "--noflush")
			n.Feed(services(others), "iptables-legacy-restore", "--noflush")
			r := open(t, n)
			read(t, r)
			for _, s := range steps {
				before := read(t, r).Revision
				kept := read(t, r).Clone()
				n.Must(s.command)
				rs := read(t, r)
				if revised := rs.Revision != before; revised != s.revises {
					t.Errorf("%s: revised %v", s.name, revised)
				}
				for _, c := range rs.Chains {
					compare(t, s.name+": "+c.ID.String(), counted(&c), savedIf(n, c))
				}
				if s.name == "a chain that is emptied" && len(kept.Chain(masq).Entries) == 0 {
					t.Error("a clone was overwritten")
				}
			}
		})
	}
}

func savedIf(n *labtest.Namespace, c flannel.Chain) []string {
	if !c.Present {
		return nil
	}
	return saved(n, "iptables-legacy", c.ID.Table, c.ID.Name)
}

func TestARenamedTargetOfAJumpIsSeenInTime(t *testing.T) {
	n := labtest.New(t)
	n.Feed(flannel4, "iptables-legacy-restore", "--noflush")
	n.Feed(services(1000), "iptables-legacy-restore", "--noflush")
	r := open(t, n)
	read(t, r)
	n.Must("iptables-legacy -t nat -E KUBE-POSTROUTING KUBE-POSTROUTINH")
	rs, err := r.Read(now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	got := texts(t, rs, id(flannel.IPv4, "nat", "POSTROUTING"))
	if !strings.HasSuffix(got[1], "-j KUBE-POSTROUTINH") {
		t.Errorf("jumps: %q", got)
	}
}

func TestReadingAllocatesNothing(t *testing.T) {
	for _, others := range []int{0, 1000} {
		n := labtest.New(t)
		n.Feed(flannel4, "iptables-legacy-restore", "--noflush")
		n.Feed(services(others), "iptables-legacy-restore", "--noflush")
		r := open(t, n)
		read(t, r)
		at := now()
		step := time.Duration(0) // a family that is not loaded is looked for once a second, which allocates
		for name, f := range map[string]func(){
			"part": func() { read(t, r) },
			"whole": func() {
				step += 31 * time.Second
				if _, err := r.Read(at.Add(step)); err != nil {
					t.Fatal(err)
				}
			},
			"look": func() {
				if _, err := r.Changed(); err != nil {
					t.Fatal(err)
				}
			},
		} {
			if got := testing.AllocsPerRun(20, f); got != 0 {
				t.Errorf("%s beside %d other rules: %v allocations", name, others, got)
			}
		}
	}
}

func TestWithoutThePrivilegeNothingIsOpened(t *testing.T) {
	n := labtest.New(t)
	err := n.Do(func() error {
		var none [2]unix.CapUserData
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
			return err
		}
		_, err := legacy.Open()
		return err
	})
	if !errors.Is(err, legacy.ErrPrivilege) {
		t.Errorf("error %v", err)
	}
}

func TestReadingInAnotherThreadsNamespaceKeepsToItsOwn(t *testing.T) {
	a, b := labtest.New(t), labtest.New(t)
	a.Feed(flannel4, "iptables-legacy-restore", "--noflush")
	r := open(t, a)
	err := b.Do(func() error {
		rs, err := r.Read(now())
		if err == nil && !rs.Chain(id(flannel.IPv4, "nat", "FLANNEL-POSTRTG")).Present {
			t.Error("the chain of the reader's namespace was not seen")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if got := b.Must("cat /proc/thread-self/net/ip_tables_names"); got != "" {
		t.Errorf("tables were made: %s", got)
	}
}
