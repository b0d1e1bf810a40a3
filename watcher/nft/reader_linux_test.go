package nft

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
)

func TestCountersAndRulesAreThoseOfIptablesSave(t *testing.T) {
	n := newNode(t)
	nft, _ := mustRead(t, openIn(t, n))
	for _, f := range flannel.Families {
		program := map[flannel.Family]string{flannel.IPv4: "iptables-nft-save", flannel.IPv6: "ip6tables-nft-save"}[f]
		var want []string
		for line := range strings.Lines(n.Must(program + " -c")) {
			if strings.HasPrefix(line, "[") {
				want = append(want, strings.TrimSpace(line))
			}
		}
		var got []string
		for _, c := range nft.Chains {
			for _, e := range c.Entries {
				if c.ID.Family == f {
					got = append(got, fmt.Sprintf("[%d:%d] -A %s %s", e.Counter.Packets, e.Counter.Bytes, c.ID.Name, e.Rule))
				}
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s:\ngot  %s\nwant %s", f, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}
}

func TestNativeRulesHaveNoCounters(t *testing.T) {
	n := newNamespace(t)
	n.Feed(nativeTable, "nft", "-f", "-")
	_, got := mustRead(t, openIn(t, n))
	c := got.Chain(native)
	want := flannel.BaseChain{Type: "nat", Hook: "postrouting", Priority: 100, Policy: "accept"}
	if !c.Present || c.Base == nil || *c.Base != want || len(c.Entries) != 6 {
		t.Fatalf("postrtg is %+v", c)
	}
	for _, e := range c.Entries {
		if e.Counted || e.Rule.Opaque() || e.Handle == 0 {
			t.Errorf("unexpected entry %+v", e)
		}
	}
	last := c.Entries[5].Rule.Nft(flannel.IPv4)
	if last != "ip saddr != 10.42.0.0/16 ip daddr 10.42.0.0/16 masquerade fully-random" {
		t.Errorf("last rule reads %q", last)
	}
}

func TestAbsentEmptyAndTableGoneAreToldApart(t *testing.T) {
	n := newNode(t)
	r := openIn(t, n)
	state := func(id flannel.ChainID) string {
		nft, native := mustRead(t, r)
		rs := nft
		if id.Backend == flannel.Nftables {
			rs = native
		}
		c := rs.Chain(id)
		return fmt.Sprintf("table %v, chain %v, %d rules", rs.HasTable(id.TableID()), c.Present, len(c.Entries))
	}
	for _, step := range []struct {
		name, command string
		id            flannel.ChainID
		want          string
	}{
		{"full", "true", postrtg, "table true, chain true, 6 rules"},
		{"emptied", "iptables-nft -t nat -F FLANNEL-POSTRTG", postrtg, "table true, chain true, 0 rules"},
		{"the other family is untouched", "true", postrtg6, "table true, chain true, 6 rules"},
		{"without its hook", "nft flush chain ip nat POSTROUTING", postrouting, "table true, chain true, 0 rules"},
		{"deleted", "iptables-nft -t nat -X FLANNEL-POSTRTG", postrtg, "table true, chain false, 0 rules"},
		{"its table deleted", "nft delete table ip nat", postrtg, "table false, chain false, 0 rules"},
		{"a table without chains", "nft add table ip flannel-ipv4", native, "table true, chain false, 0 rules"},
		{"a chain without rules", "nft add chain ip flannel-ipv4 postrtg", native, "table true, chain true, 0 rules"},
		{"everything flushed", "nft flush ruleset", native, "table false, chain false, 0 rules"},
	} {
		n.Must(step.command)
		if got := state(step.id); got != step.want {
			t.Errorf("%s: %s is: %s, want: %s", step.name, step.id, got, step.want)
		}
	}
}

func TestBaseChainsTellHookPriorityAndPolicy(t *testing.T) {
	n := newNode(t)
	r := openIn(t, n)
	nft, _ := mustRead(t, r)
	got := nft.Chain(forward).Base
	if want := (flannel.BaseChain{Type: "filter", Hook: "forward", Priority: 0, Policy: "drop"}); got == nil || *got != want {
		t.Errorf("FORWARD is %+v, want %+v", got, want)
	}
	if nft.Chain(fwd).Base != nil {
		t.Error("FLANNEL-FWD counts as a base chain")
	}
	kept := nft.Clone()
	n.Must("iptables-nft -P FORWARD ACCEPT")
	if nft, _ = mustRead(t, r); nft.Chain(forward).Base.Policy != "accept" {
		t.Error("a new policy is not seen")
	}
	if kept.Chain(forward).Base.Policy != "drop" {
		t.Error("the new policy shows in a clone of the former ruleset")
	}
}

func TestRevisionGrowsWithEveryChangeButThoseOfCounters(t *testing.T) {
	n := newNode(t)
	r := openIn(t, n)
	mustRead(t, r)
	for _, step := range []struct {
		name, command string
		grows         bool
	}{
		{"nothing", "true", false},
		{"a counter zeroed, which writes the rule again under its handle", "iptables-nft -t nat -Z FLANNEL-POSTRTG 1", false},
		{"a foreign chain", "iptables-nft -t nat -N KUBE-SERVICES", false},
		{"a foreign table", "nft add table inet other", false},
		{"a rule replaced, under its handle", "iptables-nft -t nat -R FLANNEL-POSTRTG 1 -j RETURN", true},
		{"a rule added", "iptables-nft -t nat -A POSTROUTING -j ACCEPT", true},
		{"a rule deleted", "iptables-nft -t nat -D POSTROUTING -j ACCEPT", true},
		{"a policy", "iptables-nft -P FORWARD ACCEPT", true},
		{"a table of the native backend", "nft add table ip flannel-ipv4", false},
	} {
		before := r.nft.rules.Revision
		n.Must(step.command)
		nft, _ := mustRead(t, r)
		if grew := nft.Revision > before; grew != step.grows {
			t.Errorf("%s: revision went from %d to %d", step.name, before, nft.Revision)
		}
	}
	if r.native.rules.Revision != 2 {
		t.Errorf("the native ruleset is at revision %d after its first reading and one change", r.native.rules.Revision)
	}
}

// countingTable is a chain that counts each packet sent, under a name that is watched.
const countingTable = `table ip filter {
	chain FORWARD { type filter hook output priority 0; policy accept; counter; counter accept; }
}
table ip flannel-ipv4 {
	chain postrtg { type filter hook output priority 0; policy accept; counter; }
}
`

func TestNothingIsAllocatedWhileOnlyCountersChange(t *testing.T) {
	n := newNamespace(t)
	n.Must("ip link set lo up")
	n.Feed(countingTable, "nft", "-f", "-")
	r := openIn(t, n)
	var in net.PacketConn
	var out net.Conn
	err := n.Do(func() (err error) {
		if in, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			return err
		}
		out, err = net.Dial("udp", in.LocalAddr().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	nft, _ := mustRead(t, r)
	first, revision := nft.Chain(forward).Entries[0].Counter, nft.Revision
	packet := make([]byte, 10)
	for name, between := range map[string]func(){
		"in one generation":          func() {},
		"with a foreign commit each": func() { r.gen-- }, // which makes the reader look at chains and tables too
	} {
		allocs := testing.AllocsPerRun(100, func() {
			_, _ = out.Write(packet)
			between()
			_, _ = mustRead(t, r)
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations a read", name, allocs)
		}
	}
	again, _ := mustRead(t, r)
	if again != nft || nft.Revision != revision || nft.Chain(forward).Entries[0].Counter.Packets < first.Packets+200 {
		t.Errorf("after 200 packets: same ruleset %v, revision %d to %d, counter %v to %v",
			again == nft, revision, nft.Revision, first, nft.Chain(forward).Entries[0].Counter)
	}
}

func TestRulesKeepTheirDecodedForm(t *testing.T) {
	n := newNode(t)
	r := openIn(t, n)
	matches := func() []*flannel.Match {
		nft, _ := mustRead(t, r)
		var at []*flannel.Match
		for _, e := range nft.Chain(postrtg).Entries {
			at = append(at, unsafe.SliceData(e.Rule.Matches))
		}
		return at
	}
	before := matches()
	n.Must("iptables-nft -t nat -D FLANNEL-POSTRTG 1")
	if after := matches(); !slices.Equal(after, before[1:]) {
		t.Error("rules were decoded again because another one was deleted")
	}
}

func TestReadsAreNeverTorn(t *testing.T) {
	n := newNode(t)
	r, w := openIn(t, n), writerIn(t, n)
	rule := map[flannel.ChainID][]byte{postrtg: encoded(t, postrtg, "-j RETURN"), postrtg6: encoded(t, postrtg6, "-j RETURN")}
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		commits := 0
		for ; ; commits++ {
			select {
			case <-stop:
				done <- commits
				return
			default:
			}
			w.commit(func(b *wire.Batch) {
				for id, exprs := range rule {
					b.FlushChain(id)
					for range []int{40, 7}[commits%2] {
						b.AppendRule(id, exprs)
					}
				}
			})
		}
	}()
	mustRead(t, r)
	reads, unsettled := 0, 0
	for range 1000 {
		nft, _, err := r.Read()
		if errors.Is(err, ErrUnsettled) {
			unsettled++
			continue
		}
		if err != nil {
			t.Error(err)
			break
		}
		reads++
		v4, v6 := len(nft.Chain(postrtg).Entries), len(nft.Chain(postrtg6).Entries)
		if v4 != v6 || v4 != 40 && v4 != 7 && v4 != 6 {
			t.Errorf("read %d rules of one family and %d of the other", v4, v6)
			break
		}
	}
	close(stop)
	t.Logf("%d reads whole, %d given up, beside %d commits", reads, unsettled, <-done)
	if reads < 900 {
		t.Error("too few reads came to an end")
	}
}

func TestReadingLeavesNoTrace(t *testing.T) {
	n := newNamespace(t)
	r := openIn(t, n)
	nft, native := mustRead(t, r)
	for _, rs := range []*flannel.Ruleset{nft, native} {
		for _, c := range rs.Chains {
			if c.Present || len(c.Entries) > 0 {
				t.Errorf("%s is there in an empty namespace", c.ID)
			}
		}
		if len(rs.Tables) > 0 || rs.Revision != 1 {
			t.Errorf("an empty namespace reads as %+v", rs)
		}
	}
	before, fds := nft.Generation, openFiles(t)
	for range 100 {
		nft, _ = mustRead(t, r)
	}
	if after := openFiles(t); !slices.Equal(after, fds) {
		t.Errorf("open files went from %q to %q", fds, after)
	}
	if nft.Generation != before {
		t.Errorf("the generation went from %d to %d", before, nft.Generation)
	}
	if rules := n.Must("nft list ruleset"); rules != "" {
		t.Errorf("reading made\n%s", rules)
	}
}

// openFiles lists what this process has open, sockets with their number.
func openFiles(t *testing.T) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, "socket:") {
			targets = append(targets, to)
		}
	}
	slices.Sort(targets)
	return targets
}

func TestAnAnswerThatWasGivenUpDoesNotSpoilTheNextRead(t *testing.T) {
	n := newNode(t)
	r := openIn(t, n)
	if err := r.socket.send(r.nft.chains[0].getRules); err != nil {
		t.Fatal(err)
	}
	nft, _ := mustRead(t, r)
	if got := len(nft.Chain(postrtg).Entries); got != 6 {
		t.Errorf("%d rules", got)
	}
}

func TestWithoutPrivilegeTheErrorNamesTheCapability(t *testing.T) {
	n := newNamespace(t)
	for name, open := range map[string]func() error{
		"reader": func() error { _, err := Open(); return err },
		"events": func() error { _, err := Subscribe(); return err },
	} {
		err := n.Do(func() error { return without(unix.CAP_NET_ADMIN, open) })
		if !errors.Is(err, ErrPrivilege) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// without runs f on a locked thread without one capability.
func without(capability int, f func() error) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had [2]unix.CapUserData
	if err := unix.Capget(&header, &had[0]); err != nil {
		return err
	}
	has := had
	has[capability/32].Effective &^= 1 << (capability % 32)
	if err := unix.Capset(&header, &has[0]); err != nil {
		return err
	}
	defer func() { _ = unix.Capset(&header, &had[0]) }()
	return f()
}

func TestErrorsNameOperationAndObject(t *testing.T) {
	n := newNode(t)
	r := openIn(t, n)
	mustRead(t, r)
	dead, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	alive := r.socket.fd
	r.socket.fd = dead
	_, _, err = r.Read()
	if want := "read nf_tables generation: netlink send: bad file descriptor"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	_, err = r.nft.chains[0].readRules(r.socket, 0, nil)
	if want := "read ip nat FLANNEL-POSTRTG: netlink send: bad file descriptor"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if got := len(r.nft.rules.Chain(postrtg).Entries); got != 6 {
		t.Errorf("after a failed read the former reading has %d rules", got)
	}
	_ = unix.Close(dead)
	r.socket.fd = alive
}
