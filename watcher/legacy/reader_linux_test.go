package legacy_test

import (
	"slices"
	"strings"
	"testing"
	"time"

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
	rs := read(t, open(t, n))
	if len(rs.Tables) != 0 {
		t.Errorf("tables %v", rs.Tables)
	}
	if len(rs.Chains) != 8 {
		t.Fatalf("looked for %d chains", len(rs.Chains))
	}
	if !slices.IsSortedFunc(rs.Chains, func(a, b flannel.Chain) int { return a.ID.Compare(b.ID) }) {
		t.Error("chains are not sorted")
	}
	for _, c := range rs.Chains {
		if c.Present {
			t.Errorf("%s is present", c.ID)
		}
	}
	if got := n.Must("cat /proc/thread-self/net/ip_tables_names"); strings.TrimSpace(got) != "" {
		t.Errorf("reading made tables: %s", got)
	}
}

func TestFlannelsChains(t *testing.T) {
	n := labtest.New(t)
	n.Feed(flannel4, "iptables-legacy-restore", "--noflush")
	rs := read(t, open(t, n))
	for _, c := range rs.Chains {
		t.Log(c.ID, c.Present, c.Base)
		for _, e := range c.Entries {
			t.Log("   ", e.Rule.String(), e.Counter)
		}
	}
}
