package nft

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
	"flanwatch/watcher/lab/labtest"
)

var (
	postrtg     = flannel.ChainID{Backend: flannel.IptablesNft, Family: flannel.IPv4, Table: "nat", Name: "FLANNEL-POSTRTG"}
	postrtg6    = flannel.ChainID{Backend: flannel.IptablesNft, Family: flannel.IPv6, Table: "nat", Name: "FLANNEL-POSTRTG"}
	postrouting = flannel.ChainID{Backend: flannel.IptablesNft, Family: flannel.IPv4, Table: "nat", Name: "POSTROUTING"}
	fwd         = flannel.ChainID{Backend: flannel.IptablesNft, Family: flannel.IPv4, Table: "filter", Name: "FLANNEL-FWD"}
	forward     = flannel.ChainID{Backend: flannel.IptablesNft, Family: flannel.IPv4, Table: "filter", Name: "FORWARD"}
	native      = flannel.ChainID{Backend: flannel.Nftables, Family: flannel.IPv4, Table: "flannel-ipv4", Name: "postrtg"}
)

// masq holds the rules of FLANNEL-POSTRTG as Flannel v0.28 writes them.
const masq = `[1:60] -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
[2:120] -A FLANNEL-POSTRTG -s 10.42.3.0/24 -d 10.42.0.0/16 -m comment --comment "flanneld masq" -j RETURN
[3:180] -A FLANNEL-POSTRTG -s 10.42.0.0/16 -d 10.42.3.0/24 -m comment --comment "flanneld masq" -j RETURN
[4:240] -A FLANNEL-POSTRTG ! -s 10.42.0.0/16 -d 10.42.3.0/24 -m comment --comment "flanneld masq" -j RETURN
[5:300] -A FLANNEL-POSTRTG -s 10.42.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
[6:360] -A FLANNEL-POSTRTG ! -s 10.42.0.0/16 -d 10.42.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
`

const node = `*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:FLANNEL-POSTRTG - [0:0]
[21:1260] -A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
` + masq + `COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:FLANNEL-FWD - [0:0]
[15:900] -A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
[7:420] -A FLANNEL-FWD -s 10.42.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
[8:480] -A FLANNEL-FWD -d 10.42.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
`

// node6 is the same for IPv6.
var node6 = strings.NewReplacer("10.42.3.0/24", "fd00:42:0:3::/64", "10.42.0.0/16", "fd00:42::/48", "224.0.0.0/4", "ff00::/8").
	Replace(node)

// nativeTable is what Flannel v0.28 writes with EnableNFTables.
const nativeTable = `table ip flannel-ipv4 {
	comment "rules for flannel-ipv4"
	chain postrtg {
		comment "chain to manage traffic masquerading by flannel"
		type nat hook postrouting priority 100; policy accept;
		meta mark 0x00004000 return
		ip saddr 10.42.3.0/24 ip daddr 10.42.0.0/16 return
		ip saddr 10.42.0.0/16 ip daddr 10.42.3.0/24 return
		ip saddr != 10.42.3.0/24 ip daddr 10.42.0.0/16 return
		ip saddr 10.42.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
		ip saddr != 10.42.0.0/16 ip daddr 10.42.0.0/16 masquerade fully-random
	}
	chain forward {
		type filter hook forward priority 0; policy accept;
		ip saddr 10.42.0.0/16 accept
		ip daddr 10.42.0.0/16 accept
	}
}
`

const tools = "iptables-nft iptables-nft-restore iptables-nft-save ip6tables-nft-restore ip6tables-nft-save nft"

// newNode makes a namespace with Flannel's rules of both families as iptables-nft writes them.
func newNode(t testing.TB) *labtest.Namespace {
	t.Helper()
	n := newNamespace(t)
	n.Feed(node, "iptables-nft-restore", "-c")
	n.Feed(node6, "ip6tables-nft-restore", "-c")
	return n
}

func newNamespace(t testing.TB) *labtest.Namespace {
	t.Helper()
	labtest.RequireTools(t, strings.Fields(tools)...)
	return labtest.New(t)
}

func openIn(t testing.TB, n *labtest.Namespace) *Reader {
	t.Helper()
	var r *Reader
	err := n.Do(func() (err error) {
		r, err = Open()
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

func subscribeIn(t testing.TB, n *labtest.Namespace) *Events {
	t.Helper()
	var e *Events
	err := n.Do(func() (err error) {
		e, err = Subscribe()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func mustRead(t testing.TB, r *Reader) (nft, native *flannel.Ruleset) {
	t.Helper()
	nft, native, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	return nft, native
}

// writer changes the rules of a namespace, by programs or by batches of its own.
type writer struct {
	*labtest.Namespace
	t    testing.TB
	conn *netlink.Conn
}

func writerIn(t testing.TB, n *labtest.Namespace) writer {
	t.Helper()
	w := writer{Namespace: n, t: t}
	err := n.Do(func() (err error) {
		w.conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.conn.Close() })
	return w
}

func (w writer) commit(change func(*wire.Batch)) {
	w.t.Helper()
	var b wire.Batch
	change(&b)
	if err := wire.Commit(w.conn, &b); err != nil {
		w.t.Error(err)
	}
}

// encoded gives the expressions of a rule with a counter.
func encoded(t testing.TB, id flannel.ChainID, text string) []byte {
	t.Helper()
	r, err := flannel.ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	exprs, err := wire.Encode(id, r)
	if err != nil {
		t.Fatal(err)
	}
	return exprs
}

// kubeRules is a restore file with n rules in the shape of kube-proxy's, five for each service, in the nat table.
func kubeRules(n int, tag string) string {
	var b strings.Builder
	b.WriteString("*nat\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-SERVICES - [0:0]\n")
	for i := range n / 5 {
		fmt.Fprintf(&b, ":KUBE-SVC-%s%012d - [0:0]\n:KUBE-SEP-%s%012d - [0:0]\n", tag, i, tag, i)
	}
	for i := range n / 5 {
		svc, sep := fmt.Sprintf("KUBE-SVC-%s%012d", tag, i), fmt.Sprintf("KUBE-SEP-%s%012d", tag, i)
		vip, pod := fmt.Sprintf("10.96.%d.%d", i/250, i%250+1), fmt.Sprintf("10.42.%d.%d", i/250, i%250+1)
		comment := fmt.Sprintf("-m comment --comment \"ns%d/svc%d:http\"", i%97, i)
		fmt.Fprintf(&b, "-A KUBE-SERVICES -d %s/32 -p tcp %s -m tcp --dport 80 -j %s\n", vip, comment, svc)
		fmt.Fprintf(&b, "-A %s ! -s 10.42.0.0/16 -d %s/32 -p tcp %s -m tcp --dport 80 -j KUBE-MARK-MASQ\n", svc, vip, comment)
		fmt.Fprintf(&b, "-A %s %s -j %s\n", svc, comment, sep)
		fmt.Fprintf(&b, "-A %s -s %s/32 %s -j KUBE-MARK-MASQ\n", sep, pod, comment)
		fmt.Fprintf(&b, "-A %s -p tcp %s -m tcp -j DNAT --to-destination %s:8080\n", sep, comment, pod)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// threadCPU locks the goroutine to its thread and gives a function that tells the CPU time the thread has taken since.
func threadCPU(t testing.TB) (stop func() time.Duration) {
	runtime.LockOSThread()
	start := cpuOf(t, unix.RUSAGE_THREAD)
	return func() time.Duration {
		defer runtime.UnlockOSThread()
		return cpuOf(t, unix.RUSAGE_THREAD) - start
	}
}

// cpuOf is the user and system time of a thread, of this process or of its children.
func cpuOf(t testing.TB, who int) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		t.Error(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
