package conntrack

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func at(kind uint16, parts ...[]byte) []byte {
	n := attrHead
	for _, p := range parts {
		n += len(p)
	}
	b := appendHead(nil, n, kind)
	for _, p := range parts {
		b = append(b, p...)
	}
	return append(b, make([]byte, align(len(b))-len(b))...)
}

func be(n uint64, bytes int) []byte { return binary.BigEndian.AppendUint64(nil, n)[8-bytes:] }

// whole is an entry with every attribute that Decode knows, and some that it does not.
func whole() []byte {
	ends := func(kind uint16, src, dst string, sport, dport uint64) []byte {
		return at(kind|nested,
			at(tupleIP|nested, at(ipV4Src, netip.MustParseAddr(src).AsSlice()), at(ipV4Dst, netip.MustParseAddr(dst).AsSlice())),
			at(tupleProto|nested, at(protoNum, []byte{TCP}), at(protoSPort, be(sport, 2)), at(protoDPort, be(dport, 2))))
	}
	var b []byte
	for _, a := range [][]byte{
		ends(attrTupleOrig, "10.244.1.5", "192.0.2.80", 40000, 80),
		ends(attrTupleReply, "192.0.2.80", "192.0.2.1", 80, 1234),
		at(attrZone, be(7, 2)),
		at(attrStatus, be(uint64(SeenReply|Assured|SrcNAT), 4)),
		at(attrTimeout, be(300, 4)),
		at(attrCountOrig|nested, at(countPackets, be(3, 8)), at(countBytes, be(180, 8))),
		at(attrCountReply|nested, at(countPackets, be(2, 8)), at(countBytes, be(90, 8))),
		at(attrProtoinfo|nested, at(protoinfoTCP|nested, at(tcpState, []byte{3}), at(2, []byte{7}))),
		at(attrMark, be(0x4000, 4)),
		at(attrID, be(0xdeadbeef, 4)),
		at(22, []byte("unknown")),
	} {
		b = append(b, a...)
	}
	return b
}

func TestEveryAttributeIsRead(t *testing.T) {
	var got Flow
	if err := Decode(whole(), &got); err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr
	want := Flow{
		Orig:   Tuple{Src: addr("10.244.1.5"), Dst: addr("192.0.2.80"), SPort: 40000, DPort: 80, Proto: TCP},
		Reply:  Tuple{Src: addr("192.0.2.80"), Dst: addr("192.0.2.1"), SPort: 80, DPort: 1234, Proto: TCP},
		Status: SeenReply | Assured | SrcNAT, State: 3, ID: 0xdeadbeef, Zone: 7, Timeout: 300, Mark: 0x4000,
		Packets: 5, Bytes: 270, Counted: true,
	}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); d != "" {
		t.Error(d)
	}
	if s, ok := DecodeStatus(whole()); !ok || s != want.Status {
		t.Errorf("the status alone: %v, %v", s, ok)
	}
	if s := got.String(); s != "tcp 10.244.1.5:40000 → 192.0.2.80:80, seen as 192.0.2.1, ESTABLISHED, zone 7" {
		t.Error(s)
	}
}

func TestAnEntryThatIsCutOffAnywhereIsAnErrorOrLacksOnlyLaterAttributes(t *testing.T) {
	b := whole()
	var all Flow
	if err := Decode(b, &all); err != nil {
		t.Fatal(err)
	}
	for n := range b {
		var f Flow
		if err := Decode(b[:n], &f); err == nil && (f.Orig != all.Orig || f.Reply != all.Reply) {
			t.Fatalf("cut at %d: no error and %+v", n, f)
		}
	}
}

func TestHostileAttributesAreErrorsAndEnd(t *testing.T) {
	deep := []byte{}
	for range 2000 {
		deep = at(attrTupleOrig|nested, deep)
	}
	endless := make([]byte, 64)
	for name, b := range map[string][]byte{
		"nothing":                     {},
		"half a head":                 {4, 0, 1},
		"length 0":                    endless,
		"length 3":                    {3, 0, 1, 0},
		"longer than the message":     {200, 0, 1, 0, 0, 0, 0, 0},
		"nested 2000 deep":            deep,
		"an address of the wrong len": at(attrTupleOrig|nested, at(tupleIP|nested, at(ipV4Src, []byte{1, 2, 3}))),
		"a status of the wrong len":   append(whole(), at(attrStatus, []byte{1})...),
		"no reply":                    whole()[:52],
		"two families":                append(whole(), at(attrTupleReply|nested, at(tupleIP|nested, at(ipV6Src, make([]byte, 16))))...),
	} {
		var f Flow
		if err := Decode(b, &f); err == nil {
			t.Errorf("%s: no error and %+v", name, f)
		}
	}
}

func TestDecodingDoesNotAllocate(t *testing.T) {
	b := whole()
	var f Flow
	if n := testing.AllocsPerRun(100, func() { _ = Decode(b, &f) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestATupleIsWrittenAsItIsRead(t *testing.T) {
	addr := netip.MustParseAddr
	for name, f := range map[string]Flow{
		"TCP":            {Orig: Tuple{Src: addr("10.0.0.1"), Dst: addr("10.0.0.2"), SPort: 1, DPort: 2, Proto: TCP}},
		"UDP, IPv6":      {Orig: Tuple{Src: addr("fd00::1"), Dst: addr("fd00::2"), SPort: 1, DPort: 2, Proto: UDP}},
		"ICMP":           {Orig: Tuple{Src: addr("10.0.0.1"), Dst: addr("10.0.0.2"), Type: 8, Code: 1, ID: 9, Proto: ICMP}},
		"ICMPv6":         {Orig: Tuple{Src: addr("fd00::1"), Dst: addr("fd00::2"), Type: 128, ID: 9, Proto: ICMPv6}},
		"a zone":         {Orig: Tuple{Src: addr("10.0.0.1"), Dst: addr("10.0.0.2"), SPort: 1, Proto: UDP}, Zone: 5},
		"a zone one way": {Orig: Tuple{Src: addr("10.0.0.1"), Dst: addr("10.0.0.2"), SPort: 1, Proto: UDP}, Zone: 5, ZoneOrig: true},
		"an IPv6 address that maps an IPv4 one": {
			Orig: Tuple{Src: addr("::ffff:10.0.0.1"), Dst: addr("fd00::2"), SPort: 1, DPort: 2, Proto: UDP},
		},
	} {
		f.Reply = Tuple{Src: f.Orig.Dst, Dst: f.Orig.Src, Proto: f.Orig.Proto}
		f.ID = 77
		b := AppendID(AppendTuple(nil, &f), f.ID)
		b = append(b, at(attrTupleReply|nested, f.Reply.appendAddresses(nil), f.Reply.appendProtocol(nil))...)
		var got Flow
		if err := Decode(b, &got); err != nil || got != f {
			t.Errorf("%s: %v\ngot  %+v\nwant %+v", name, err, got, f)
		}
	}
	if b := AppendTuple(nil, &Flow{}); b != nil {
		t.Errorf("a tuple without addresses is written as %x", b)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(whole())
	f.Add([]byte{})
	six := Flow{Orig: Tuple{Type: 128, ID: 9, Proto: ICMPv6}}
	six.Orig.Src, six.Orig.Dst = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	f.Add(append(AppendTuple(nil, &six), at(attrTupleReply|nested, six.Orig.appendAddresses(nil))...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var flow Flow
		err := Decode(b, &flow)
		if err != nil {
			return
		}
		if !flow.Orig.valid() || !flow.Reply.valid() {
			t.Errorf("no error and %+v", flow)
		}
		_ = flow.String()
		_ = flow.Key()
		var again Flow
		named := append(AppendTuple(nil, &flow), at(attrTupleReply|nested, flow.Reply.appendAddresses(nil))...)
		if err := Decode(named, &again); err != nil || again.Orig.Src != flow.Orig.Src || again.Orig.Dst != flow.Orig.Dst {
			t.Errorf("written and read again: %v, %+v, want %+v", err, again.Orig, flow.Orig)
		}
		var h Health
		_, _ = h.AddStats(b), h.SetGlobal(b)
	})
}
