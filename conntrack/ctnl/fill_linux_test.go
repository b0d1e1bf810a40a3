package ctnl

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack"
	"flanwatch/watcher/lab/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// entry is one connection as a test puts it into the kernel's table.
type entry struct {
	src, dst     string
	sport, dport int
	snat, dnat   string
	unreplied    bool
	assured      bool
	zone         uint16
}

// filler writes entries into the table of a namespace, many at a time.
type filler struct {
	t     testing.TB
	s     *socket
	batch []byte
	sent  int
	want  int // errno that a refused entry may have
}

func newFiller(t testing.TB, n *labtest.Namespace) *filler {
	t.Helper()
	f := &filler{t: t}
	err := n.Do(func() (err error) {
		f.s, err = dial()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.SetsockoptInt(f.s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 8<<20)
	_ = unix.SetsockoptInt(f.s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	t.Cleanup(func() { _ = f.s.close() })
	return f
}

func attr(kind uint16, parts ...[]byte) []byte {
	n := 4
	for _, p := range parts {
		n += len(p)
	}
	b := binary.NativeEndian.AppendUint16(nil, uint16(n))
	b = binary.NativeEndian.AppendUint16(b, kind)
	for _, p := range parts {
		b = append(b, p...)
	}
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func nest(kind uint16, parts ...[]byte) []byte { return attr(kind|unix.NLA_F_NESTED, parts...) }

func be16(v int) []byte    { return binary.BigEndian.AppendUint16(nil, uint16(v)) }
func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

func ends(kind uint16, src, dst netip.Addr, sport, dport int) []byte {
	first := uint16(1)
	if src.Is6() {
		first = 3
	}
	return nest(kind,
		nest(1, attr(first, src.AsSlice()), attr(first+1, dst.AsSlice())),
		nest(2, attr(1, []byte{conntrack.UDP}), attr(2, be16(sport)), attr(3, be16(dport))))
}

// put adds an entry: a UDP connection.
func (f *filler) put(e entry) {
	src, dst := netip.MustParseAddr(e.src), netip.MustParseAddr(e.dst)
	f.add(src, dst, e)
}

func (f *filler) add(src, dst netip.Addr, e entry) {
	a := append(ends(1, src, dst, e.sport, e.dport), ends(2, dst, src, e.dport, e.sport)...)
	nat := func(kind uint16, to string) {
		if to != "" {
			x := netip.MustParseAddr(to)
			first := uint16(1)
			if x.Is6() {
				first = 4
			}
			a = append(a, nest(kind, attr(first, x.AsSlice()), attr(first+1, x.AsSlice()))...)
		}
	}
	nat(6, e.snat)
	nat(13, e.dnat)
	status := uint32(8) // confirmed
	if !e.unreplied {
		status |= 2
	}
	if e.assured {
		status |= 4
	}
	a = append(a, attr(3, be32(status))...)
	a = append(a, attr(7, be32(86400))...)
	if e.zone != 0 {
		a = append(a, attr(18, be16(int(e.zone)))...)
	}
	family := byte(unix.AF_INET)
	if src.Is6() {
		family = unix.AF_INET6
	}
	b := binary.NativeEndian.AppendUint32(f.batch, uint32(20+len(a)))
	b = binary.NativeEndian.AppendUint16(b, unix.NFNL_SUBSYS_CTNETLINK<<8|msgNew)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, family, 0, 0, 0)
	f.batch = append(b, a...)
	if f.sent++; f.sent == 256 {
		f.flush()
	}
}

// flush sends what was added, and fails the test if the kernel refuses any of it.
func (f *filler) flush() {
	f.t.Helper()
	if f.sent == 0 {
		return
	}
	if _, err := unix.Write(f.s.fd, f.batch); err != nil {
		f.t.Fatal(err)
	}
	for f.sent > 0 {
		n, err := unix.Read(f.s.fd, f.s.buf)
		if err != nil {
			f.t.Fatal(err)
		}
		for b := f.s.buf[:n]; len(b) >= 20; f.sent-- {
			if e := -int32(binary.NativeEndian.Uint32(b[16:])); e != 0 && int(e) != f.want {
				f.t.Fatalf("put entry: %v", unix.Errno(e))
			}
			b = b[min((int(binary.NativeEndian.Uint32(b))+3)&^3, len(b)):]
		}
	}
	f.batch = f.batch[:0]
}

func openIn[T any](t testing.TB, n *labtest.Namespace, open func() (T, error)) (v T) {
	t.Helper()
	err := n.Do(func() (err error) {
		v, err = open()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// tracked makes a namespace in which connection tracking is at work.
func tracked(t testing.TB) (*labtest.Namespace, *Reader) {
	t.Helper()
	n := labtest.New(t)
	n.Must("ip link set lo up")
	n.Must("iptables-nft -A FORWARD -m conntrack --ctstate INVALID -j DROP")
	n.Must("ip6tables-nft -A FORWARD -m conntrack --ctstate INVALID -j DROP")
	r := openIn(t, n, Open)
	t.Cleanup(func() { _ = r.Close() })
	return n, r
}

func dump(t testing.TB, r *Reader, filter Filter) []conntrack.Flow {
	t.Helper()
	var out []conntrack.Flow
	err := r.Dump(filter, func(f *conntrack.Flow) { out = append(out, *f) }, func() { t.Error("an entry could not be decoded") })
	if err != nil {
		t.Fatal(err)
	}
	return out
}
