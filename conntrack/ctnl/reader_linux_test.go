package ctnl

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"flanwatch/conntrack"
	"flanwatch/watcher/lab/labtest"
)

func TestADumpEqualsThatOfConntrackInEveryField(t *testing.T) {
	labtest.RequireTools(t, "conntrack")
	n, r := tracked(t)
	for _, line := range []string{
		"-p tcp -s 10.244.1.5 -d 192.0.2.80 --sport 40000 --dport 80 -t 300 --state SYN_SENT",
		"-p tcp -s 10.244.1.5 -d 192.0.2.80 --sport 40001 --dport 80 -t 300 --state ESTABLISHED -u ASSURED,SEEN_REPLY -m 0x4000",
		"-p udp -s 10.244.1.5 -d 192.0.2.80 --sport 40002 --dport 53 -t 300",
		"-p udp -s 10.244.1.6 -d 192.0.2.80 --sport 40002 --dport 53 -t 300 -n 192.0.2.1",
		"-p udp -s 10.244.1.6 -d 10.96.0.10 --sport 40003 --dport 53 -t 300 -g 10.244.2.9",
		"-p icmp -s 10.244.1.6 -d 192.0.2.80 --icmp-type 8 --icmp-code 0 --icmp-id 77 -t 300",
		"-p udp -s fd00:244:0:1::5 -d 2001:db8::80 --sport 40004 --dport 53 -t 300",
		"-p icmpv6 -s fd00:244:0:1::5 -d 2001:db8::80 --icmpv6-type 128 --icmpv6-code 0 --icmpv6-id 78 -t 300",
		"-p udp -s 10.244.1.5 -d 192.0.2.80 --sport 40005 --dport 53 -t 300 -w 7",
	} {
		n.Must("conntrack -I " + line)
	}
	flows := dump(t, r, All)
	want := strings.Split(strings.TrimSpace(n.Must("conntrack -L -f ipv4 -o id")+n.Must("conntrack -L -f ipv6 -o id")), "\n")
	want = slices.DeleteFunc(want, func(s string) bool { return strings.HasPrefix(s, "conntrack v") })
	var got []string
	for i := range flows {
		got = append(got, described(&flows[i]))
	}
	for i := range want {
		want[i] = normal(want[i])
	}
	slices.Sort(got)
	slices.Sort(want)
	if len(want) != 9 || !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

var field = regexp.MustCompile(`(src|dst|sport|dport|type|code|id|zone|mark)=(\S+)`)

// normal picks from a line of conntrack what described writes.
func normal(line string) string {
	var b strings.Builder
	b.WriteString(strings.Fields(line)[0])
	for _, state := range []string{"SYN_SENT", "ESTABLISHED"} {
		if strings.Contains(line, state) {
			b.WriteString(" " + state)
		}
	}
	for _, m := range field.FindAllStringSubmatch(line, -1) {
		b.WriteString(" " + m[0])
	}
	return b.String()
}

func described(f *conntrack.Flow) string {
	var b strings.Builder
	b.WriteString(f.Protocol())
	if f.Orig.Proto == conntrack.TCP {
		b.WriteString(" " + f.StateName())
	}
	for _, t := range []conntrack.Tuple{f.Orig, f.Reply} {
		fmt.Fprintf(&b, " src=%s dst=%s", t.Src, t.Dst)
		if t.Proto == conntrack.ICMP || t.Proto == conntrack.ICMPv6 {
			fmt.Fprintf(&b, " type=%d code=%d id=%d", t.Type, t.Code, t.ID)
		} else {
			fmt.Fprintf(&b, " sport=%d dport=%d", t.SPort, t.DPort)
		}
	}
	fmt.Fprintf(&b, " mark=%d", f.Mark)
	if f.Zone != 0 {
		fmt.Fprintf(&b, " zone=%d", f.Zone)
	}
	fmt.Fprintf(&b, " id=%d", f.ID)
	return b.String()
}

func TestTheStatusFilterHoldsWhetherOrNotTheKernelKnowsIt(t *testing.T) {
	n, r := tracked(t)
	f := newFiller(t, n)
	f.put(entry{src: "10.244.1.5", dst: "192.0.2.80", sport: 1, dport: 80})
	f.put(entry{src: "10.244.1.5", dst: "192.0.2.80", sport: 2, dport: 80, snat: "192.0.2.1"})
	f.put(entry{src: "10.244.1.5", dst: "10.96.0.1", sport: 3, dport: 80, dnat: "10.244.1.6"})
	f.put(entry{src: "fd00:244::5", dst: "2001:db8::80", sport: 4, dport: 80, snat: "2001:db8::1"})
	f.flush()
	for _, unmasked := range []bool{false, true} {
		r.unmasked = unmasked
		for filter, want := range map[Filter][]uint16{All: {1, 2, 3, 4}, SourceNAT: {2, 4}, NoSourceNAT: {1, 3}} {
			var got []uint16
			for _, f := range dump(t, r, filter) {
				got = append(got, f.Orig.SPort)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("kernel filters: %v, %+v: got %v, want %v", !unmasked, filter, got, want)
			}
		}
	}
}

func TestADeletionTakesTheListedEntryAndNoOther(t *testing.T) {
	n, r := tracked(t)
	f := newFiller(t, n)
	for i := range 10000 {
		f.put(entry{src: "10.244.1.7", dst: "192.0.2.80", sport: i + 1, dport: 80})
	}
	for zone := range uint16(3) {
		f.put(entry{src: "10.244.1.5", dst: "192.0.2.80", sport: 40000, dport: 80, zone: zone})
	}
	f.put(entry{src: "fd00:244::5", dst: "2001:db8::80", sport: 40000, dport: 80, snat: "2001:db8::1"})
	f.flush()
	for _, e := range dump(t, r, All) {
		if e.Orig.SPort == 40000 && (e.Zone == 1 || e.Orig.Src.Is6()) {
			if err := r.Delete(&e); err != nil {
				t.Error(err)
			}
			if err := r.Delete(&e); !errors.Is(err, ErrGone) {
				t.Errorf("a second time: %v", err)
			}
		}
	}
	left := dump(t, r, All)
	var zones []uint16
	for _, e := range left {
		if e.Orig.SPort == 40000 && e.Orig.Src == netip.MustParseAddr("10.244.1.5") {
			zones = append(zones, e.Zone)
		}
	}
	slices.Sort(zones)
	if len(left) != 10002 || !slices.Equal(zones, []uint16{0, 2}) {
		t.Errorf("%d entries are left, of zones %v", len(left), zones)
	}
}

func TestAnEntryThatWasReplacedIsLeftAlone(t *testing.T) {
	n, r := tracked(t)
	f := newFiller(t, n)
	e := entry{src: "10.244.1.5", dst: "192.0.2.80", sport: 40000, dport: 80}
	f.put(e)
	f.flush()
	old := dump(t, r, All)[0]
	n.Must("conntrack -D -p udp --sport 40000")
	f.put(e)
	f.flush()
	// The kernel makes IDs of an entry's address, so that a new entry can get the old one's; then it is another all the same
	// only if it translates otherwise.
	now := dump(t, r, All)[0]
	if now.ID == old.ID {
		t.Skip("the new entry lies where the old one lay")
	}
	if err := r.Delete(&old); !errors.Is(err, ErrOther) {
		t.Errorf("got %v", err)
	}
	other := now
	other.Reply.Dst = netip.MustParseAddr("192.0.2.1")
	if err := r.Delete(&other); !errors.Is(err, ErrOther) {
		t.Errorf("an entry that translates otherwise: got %v", err)
	}
	if len(dump(t, r, All)) != 1 {
		t.Error("it was deleted")
	}
}

func TestADeletionThatNamesNothingIsNeverSent(t *testing.T) {
	n, r := tracked(t)
	f := newFiller(t, n)
	f.put(entry{src: "10.244.1.5", dst: "192.0.2.80", sport: 40000, dport: 80})
	f.flush()
	for name, flow := range map[string]conntrack.Flow{
		"no address":      {},
		"one address":     {Orig: conntrack.Tuple{Src: netip.MustParseAddr("10.244.1.5"), Proto: conntrack.UDP}},
		"of two families": {Orig: conntrack.Tuple{Src: netip.MustParseAddr("10.244.1.5"), Dst: netip.MustParseAddr("::1")}},
	} {
		if err := r.Delete(&flow); !errors.Is(err, errUnnamed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(dump(t, r, All)) != 1 {
		t.Error("entries were deleted")
	}
}
