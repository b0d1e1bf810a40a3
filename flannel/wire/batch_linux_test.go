package wire_test

import (
	"encoding/binary"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

var post = flannel.ChainID{Backend: flannel.IptablesNft, Family: flannel.IPv4, Table: "nat", Name: "POSTROUTING"}

// withChain makes the nat table with POSTROUTING and FLANNEL-POSTRTG in it.
func withChain(t *testing.T) *kernel {
	k := newKernel(t)
	var b wire.Batch
	table(t, &b, flannel.IPv4)
	b.AddChain(nat)
	k.commit(&b)
	return k
}

func (k *kernel) texts(c flannel.ChainID) string { return strings.Join(texts(k.decoded(c)), " | ") }

func TestRulesGoWhereTheyAreSent(t *testing.T) {
	k := withChain(t)
	rule := func(mark string) []byte { return encode(t, nat, parse(t, "-m mark --mark "+mark+" -j RETURN")) }
	var b wire.Batch
	b.AppendRule(nat, rule("0x1"))
	b.AppendRule(nat, rule("0x3"))
	k.commit(&b)
	first := k.dump(nat)[0].handle

	b = wire.Batch{}
	b.AddRuleAfter(nat, first, rule("0x2"))
	b.PrependRule(nat, rule("0x0"))
	k.commit(&b)
	const mark = "-m mark --mark "
	want := mark + "0x0 -j RETURN | " + mark + "0x1 -j RETURN | " + mark + "0x2 -j RETURN | " + mark + "0x3 -j RETURN"
	if got := k.texts(nat); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}

	b = wire.Batch{}
	b.DeleteRule(nat, first)
	k.commit(&b)
	if got := k.texts(nat); strings.Contains(got, "0x1 ") || strings.Count(got, "RETURN") != 3 {
		t.Errorf("after the deletion: %s", got)
	}
	b = wire.Batch{}
	b.FlushChain(nat)
	b.DeleteChain(nat)
	k.commit(&b)
	if out := k.Must("nft list table ip nat"); strings.Contains(out, nat.Name) {
		t.Errorf("after the deletion of the chain:\n%s", out)
	}
	b = wire.Batch{}
	b.DeleteTable(nat.TableID())
	k.commit(&b)
	if out := k.Must("nft list tables"); strings.Contains(out, "nat") {
		t.Errorf("after the deletion of the table:\n%s", out)
	}
}

func TestRulesStartFromTheirCount(t *testing.T) {
	k := withChain(t)
	exprs, err := wire.EncodeCounted(nat, parse(t, "-j RETURN"), flannel.Counter{Packets: 12, Bytes: 3456})
	if err != nil {
		t.Fatal(err)
	}
	var b wire.Batch
	b.AppendRule(nat, exprs)
	k.commit(&b)
	if out := k.Must("iptables-nft-save -c -t nat"); !strings.Contains(out, "[12:3456] -A FLANNEL-POSTRTG -j RETURN") {
		t.Error(out)
	}
}

func TestWhatWasReadCanBeWrittenBack(t *testing.T) {
	k := withChain(t)
	written := 0
	for _, c := range readCaptured(t) {
		if c.family != flannel.IPv4 {
			continue
		}
		if target := wire.Decode(c.family, c.exprs).Target; target.Chain != "" {
			var b wire.Batch
			b.AddChain(flannel.ChainID{Backend: flannel.IptablesNft, Family: flannel.IPv4, Table: "nat", Name: target.Chain})
			k.commit(&b)
		}
		var b wire.Batch
		b.FlushChain(nat)
		b.AppendRule(nat, c.exprs)
		if wire.Commit(k.conn, &b) != nil {
			continue // it names a set, or needs its protocol beside the expressions, or another hook
		}
		written++
		if got := k.dump(nat)[0].exprs; scan(t, got).Body != scan(t, c.exprs).Body {
			t.Errorf("%s: read\n%x, after writing\n%x", c.text, c.exprs, got)
		}
	}
	if written < 80 {
		t.Errorf("only %d rules could be written", written)
	}
}

func TestWithoutThePrivilegeTheReasonIsTold(t *testing.T) {
	k := withChain(t)
	var b wire.Batch
	b.DeleteTable(nat.TableID())
	err := k.Do(func() error {
		// The thread goes away with the namespace.
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			return err
		}
		return wire.Commit(k.conn, &b)
	})
	if !errors.Is(err, unix.EPERM) || !strings.HasPrefix(err.Error(), "change the ruleset: ") {
		t.Errorf("got %v", err)
	}
}

func TestAFailedBatchNamesTheChangesAndDoesNothing(t *testing.T) {
	k := withChain(t)
	missing := nat
	missing.Name = "NOT-THERE"
	var b wire.Batch
	b.AppendRule(nat, encode(t, nat, parse(t, "-j RETURN")))
	b.DeleteChain(missing)
	b.DeleteRule(nat, 4711)
	b.AppendRule(nat, encode(t, nat, parse(t, "-j NOT-THERE")))
	err := wire.Commit(k.conn, &b)
	if !errors.Is(err, unix.ENOENT) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{
		"delete chain iptables-nft ip nat NOT-THERE: no such file or directory",
		"delete rule 4711 of iptables-nft ip nat FLANNEL-POSTRTG: no such file or directory",
		"append rule to iptables-nft ip nat FLANNEL-POSTRTG: no such file or directory",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %q, want in it %q", err, want)
		}
	}
	if got := k.texts(nat); got != "" {
		t.Errorf("a failed batch left %s", got)
	}
	// The socket is good for the next one.
	b = wire.Batch{}
	b.AppendRule(nat, encode(t, nat, parse(t, "-j RETURN")))
	k.commit(&b)
}

// generation asks the kernel for the generation of the ruleset.
func (k *kernel) generation() uint32 {
	k.t.Helper()
	messages, err := k.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{0, 0, 0, 0},
	})
	if err != nil {
		k.t.Fatal(err)
	}
	return binary.BigEndian.Uint32(messages[0].Data[8:])
}

func TestABatchOfAnOlderGenerationIsStale(t *testing.T) {
	k := withChain(t)
	before := k.generation()
	var b wire.Batch
	b.RequireGeneration(before)
	b.AppendRule(nat, encode(t, nat, parse(t, "-j RETURN")))
	b.AppendRule(post, encode(t, post, parse(t, "-j FLANNEL-POSTRTG")))
	k.commit(&b)
	if got := k.generation(); got != before+1 {
		t.Errorf("one batch took the generation from %d to %d", before, got)
	}
	if err := wire.Commit(k.conn, &b); !errors.Is(err, wire.ErrStale) {
		t.Errorf("got %v", err)
	}
	if got := k.texts(nat); got != "-j RETURN" {
		t.Errorf("a stale batch changed the chain: %s", got)
	}
}

func TestALongBatchIsOneGeneration(t *testing.T) {
	k := withChain(t)
	rule := encode(t, nat, parse(t, `-s 10.42.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE`))
	before := k.generation()
	var b wire.Batch
	const n = 5000 // some 3 MB, which the default send buffer does not hold
	for range n {
		b.AppendRule(nat, rule)
	}
	k.commit(&b)
	if got := len(k.dump(nat)); got != n {
		t.Errorf("%d rules of %d", got, n)
	}
	if got := k.generation(); got != before+1 {
		t.Errorf("generation went from %d to %d", before, got)
	}
}

func TestAnEmptyBatchIsNotSent(t *testing.T) {
	if err := wire.Commit(deaf{}, &wire.Batch{}); err != nil {
		t.Error(err)
	}
}

// deaf is a socket that cannot be used.
type deaf struct{}

func (deaf) SyscallConn() (syscall.RawConn, error) { return nil, unix.EBADF }

func TestErrorsOfTheSocketArePassedOn(t *testing.T) {
	var b wire.Batch
	b.AddTable(nat.TableID())
	if err := wire.Commit(deaf{}, &b); !errors.Is(err, unix.EBADF) {
		t.Errorf("got %v", err)
	}
}

func TestUnknownHooksAndPoliciesAreErrors(t *testing.T) {
	var b wire.Batch
	if err := b.AddBaseChain(post, flannel.BaseChain{Type: "nat", Hook: "ingress", Policy: "accept"}); err == nil {
		t.Error("no error for an unknown hook")
	}
	if err := b.AddBaseChain(post, flannel.BaseChain{Type: "nat", Hook: "postrouting", Policy: "reject"}); err == nil {
		t.Error("no error for an unknown policy")
	}
	if b.Len() != 0 {
		t.Errorf("%d changes", b.Len())
	}
}

func TestMessagesAndBytesSayTheSame(t *testing.T) {
	var b wire.Batch
	b.RequireGeneration(7)
	b.AddTable(nat.TableID())
	b.AddChain(nat)
	data := b.Bytes()
	for i, m := range b.Messages() {
		raw, err := m.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(data), string(raw)) {
			t.Fatalf("message %d: %x is not at the start of %x", i, raw, data)
		}
		data = data[len(raw):]
	}
	if len(data) > 0 {
		t.Errorf("%d bytes are left", len(data))
	}
}

func TestMessagesPassThroughTheLibrary(t *testing.T) {
	k := newKernel(t)
	var b wire.Batch
	b.AddTable(nat.TableID())
	if _, err := k.conn.SendMessages(b.Messages()); err != nil {
		t.Fatal(err)
	}
	if out, err := k.Output(exec.Command("nft", "list", "tables")); err != nil || !strings.Contains(out, "table ip nat") {
		t.Errorf("%v: %s", err, out)
	}
}
