package nft

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
	"flanwatch/watcher/incident"
)

// balanced is a ledger of a node whose FLANNEL-POSTRTG holds six rules, at one generation.
func balanced(gen uint32) *ledger {
	r := &Reader{gen: gen, nft: newSide(flannel.IptablesNft), native: newSide(flannel.Nftables)}
	r.nft.rules.Tables = []flannel.TableID{postrtg.TableID()}
	for i := range r.nft.rules.Chains {
		if c := &r.nft.rules.Chains[i]; c.ID == postrtg {
			c.Present, c.Entries, r.nft.chains[i].handle = true, make([]flannel.Entry, 6), 3
		}
	}
	l := &ledger{}
	l.balance(r)
	return l
}

// tell feeds messages to a ledger and gives the commits that came of it.
func tell(t *testing.T, l *ledger, datagrams ...[]byte) []string {
	t.Helper()
	var got []string
	for _, b := range datagrams {
		m, rest, err := split(b)
		if err != nil || len(rest) > 0 {
			t.Fatalf("split: %v, %d bytes left", err, len(rest))
		}
		if c := l.add(m); c != nil {
			got = append(got, describe(c))
		}
	}
	return got
}

func TestLedgerCountsFromCommitToCommit(t *testing.T) {
	const add, del = unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE
	const newChain, delChain = unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN
	rule := func(command uint16) []byte { return ruleMessage(command, "nat", "FLANNEL-POSTRTG", 9) }
	chain := func(command uint16, handle uint64) []byte {
		return chainMessage(command, "nat", "FLANNEL-POSTRTG", handle)
	}
	gen := func(n uint32) []byte { return generationMessage(n, 77, "iptables") }
	for _, test := range []struct {
		name  string
		tells [][]byte
		want  []string
	}{
		{"nothing of interest", [][]byte{ruleMessage(add, "nat", "KUBE-SERVICES", 3), gen(11)}, []string{""}},
		{"one rule", [][]byte{rule(add), gen(11)}, []string{"v4 nat FLANNEL-POSTRTG -0+1=7"}},
		{
			"two commits",
			[][]byte{rule(del), gen(11), rule(add), gen(12)},
			[]string{"v4 nat FLANNEL-POSTRTG -1+0=5", "v4 nat FLANNEL-POSTRTG -0+1=6"},
		},
		{"chain written again", [][]byte{chain(newChain, 3), gen(11)}, []string{"v4 nat FLANNEL-POSTRTG -0+0=6"}},
		{
			"chain deleted and made again",
			[][]byte{rule(del), chain(delChain, 3), chain(newChain, 4), rule(add), rule(add), gen(11)},
			[]string{"created v4 nat FLANNEL-POSTRTG -1+2=2"},
		},
		{
			"chain made and deleted again",
			[][]byte{chain(delChain, 3), gen(11), chain(newChain, 4), chain(delChain, 4), gen(12)},
			[]string{"deleted v4 nat FLANNEL-POSTRTG -0+0=0", "deleted v4 nat FLANNEL-POSTRTG -0+0=0"},
		},
		{
			"another chain renamed to it",
			[][]byte{chain(newChain, 8), gen(11), rule(add), gen(12)},
			[]string{"created v4 nat FLANNEL-POSTRTG -0+0=0", "v4 nat FLANNEL-POSTRTG -0+1=1"},
		},
		{"table flags", [][]byte{tableMessage(unix.NFT_MSG_NEWTABLE, "nat"), gen(11)}, []string{"table ip nat"}},
		{"new table", [][]byte{tableMessage(unix.NFT_MSG_NEWTABLE, "filter"), gen(11)}, []string{"created table ip filter"}},
		{
			"announced before the first reading",
			[][]byte{rule(del), gen(9), rule(del), gen(10), rule(add), gen(11)},
			[]string{"v4 nat FLANNEL-POSTRTG -0+1=7"},
		},
		{
			"a generation is skipped",
			[][]byte{rule(del), gen(12), rule(add), gen(13)},
			[]string{"lost, v4 nat FLANNEL-POSTRTG -1+0=-1", "lost, v4 nat FLANNEL-POSTRTG -0+1=-1"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := tell(t, balanced(10), test.tells...)
			if len(got) != len(test.want) {
				t.Fatalf("got %q, want %q", got, test.want)
			}
			for i := range got {
				if got[i] != test.want[i] {
					t.Errorf("commit %d: got %s, want %s", i+1, got[i], test.want[i])
				}
			}
		})
	}
}

func TestGenerationsWrapAround(t *testing.T) {
	l := balanced(math.MaxUint32 - 1)
	got := tell(t, l, generationMessage(math.MaxUint32, 1, "a"), generationMessage(1, 1, "a"), generationMessage(2, 1, "a"))
	for i, c := range got {
		if c != "" {
			t.Errorf("commit %d: %s", i+1, c)
		}
	}
	if len(got) != 3 {
		t.Errorf("%d commits of 3", len(got))
	}
}

// The account of a chain equals what a reader finds, whatever is committed.
func TestLedgerAgreesWithReader(t *testing.T) {
	n := newNode(t)
	n.Feed(nativeTable, "nft", "-f", "-")
	r, e, w := openIn(t, n), subscribeIn(t, n), writerIn(t, n)
	exprs := map[flannel.ChainID][]byte{}
	for _, id := range []flannel.ChainID{postrtg, postrtg6, fwd, native} {
		exprs[id] = encoded(t, id, "-j RETURN")
	}
	c := &incident.Commit{Generation: e.ledger.gen}
	for i := range 300 {
		w.commit(func(b *wire.Batch) {
			for id := range exprs {
				randomChanges(b, id, exprs[id])
			}
		})
		nft, ours := mustRead(t, r)
		for c.Generation != nft.Generation {
			var err error
			if c, err = e.Next(time.Now().Add(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		for _, ch := range c.Changes {
			rs := nft
			if ch.Chain.Backend == flannel.Nftables {
				rs = ours
			}
			found := rs.Chain(ch.Chain)
			if c.Lost || ch.Rules != len(found.Entries) || ch.Deleted == found.Present {
				t.Fatalf("commit %d: %s; found present %v with %d rules", i, describe(c), found.Present, len(found.Entries))
			}
		}
	}
}

func randomChanges(b *wire.Batch, id flannel.ChainID, exprs []byte) {
	for range rand.IntN(4) {
		switch rand.IntN(5) {
		case 0:
			b.FlushChain(id)
		case 1:
			b.AddChain(id)
		default:
			b.AppendRule(id, exprs)
		}
	}
}

func FuzzAnnouncements(f *testing.F) {
	f.Add(generationMessage(11, 77, "iptables"))
	f.Add(append(ruleMessage(unix.NFT_MSG_NEWRULE, "nat", "FLANNEL-POSTRTG", 9), generationMessage(11, 77, "iptables")...))
	f.Add(append(chainMessage(unix.NFT_MSG_DELCHAIN, "nat", "FLANNEL-POSTRTG", 3), generationMessage(12, 77, "x")...))
	f.Add(append(tableMessage(unix.NFT_MSG_DELTABLE, "flannel-ipv4"), generationMessage(10, 77, "x")...))
	f.Add(binary.NativeEndian.AppendUint32(nil, 15))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		l := balanced(10)
		e := &Events{rest: datagram, ledger: *l}
		for len(e.rest) > 0 {
			before := len(e.rest)
			c := e.drain()
			if len(e.rest) >= before {
				t.Fatal("no progress")
			}
			if c == nil {
				continue
			}
			for _, ch := range c.Changes {
				if ch.Created && ch.Deleted || c.Lost && ch.Rules > 0 || ch.Rules < -1 {
					t.Errorf("contradiction in %s", describe(c))
				}
			}
		}
	})
}

func FuzzRulesAndChains(f *testing.F) {
	f.Add(ruleMessage(unix.NFT_MSG_NEWRULE, "nat", "FLANNEL-POSTRTG", 9)[headerLen+genLen:])
	f.Add(chainMessage(unix.NFT_MSG_NEWCHAIN, "nat", "FLANNEL-POSTRTG", 9)[headerLen+genLen:])
	f.Fuzz(func(t *testing.T, body []byte) {
		c := newChain(postrtg, 0)
		c.parse(body)
		if err := c.add(body, nil); err != nil && len(c.entries) > 0 {
			t.Error("a malformed rule was taken in")
		}
	})
}
