package ui

import (
	"net/netip"
	"time"

	"flanwatch/conntrack"
	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// health is the table of connections of the story.
func health() conntrack.Health {
	n := conntrack.Counted
	return conntrack.Health{
		Source: conntrack.SourceNetlink, Count: n(41_208), Max: n(262_144), Found: n(9), Invalid: n(3_120), InsertFailed: n(0), Drop: n(0),
		EarlyDrop: n(0), ClashResolve: n(1_204), SearchRestart: n(0), ChainTooLong: n(0), ICMPError: n(2),
		Use4: conntrack.UseRules, Use6: conntrack.UseRules,
	}
}

// calmTable is connection tracking on a healthy node at which nobody looked closely.
func calmTable() incident.TableView {
	zero := conntrack.Counted(0)
	t := conntrack.Trend{
		Over: time.Second, Entries: 12, EntriesKnown: true, InsertFailed: zero, Drop: zero, EarlyDrop: zero,
		ClashResolve: conntrack.Counted(2),
	}
	return incident.TableView{
		Health: flannel.Know(health(), conntrack.SourceNetlink, at(now)), Trend: t, Symptoms: []conntrack.Symptom{conntrack.Clash},
		Masquerade: map[flannel.Family]bool{flannel.IPv4: true, flannel.IPv6: true},
	}
}

func sample(kind conntrack.Kind, proto uint8, src, dst, seenAs string, port uint16, status conntrack.Status, pod string) conntrack.Sample {
	f := conntrack.Flow{
		Orig:   conntrack.Tuple{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), SPort: port, DPort: 443, Proto: proto},
		Reply:  conntrack.Tuple{Src: netip.MustParseAddr(dst), Dst: netip.MustParseAddr(seenAs), SPort: 443, DPort: port, Proto: proto},
		Status: status, State: 2, ID: uint32(port),
	}
	if proto == conntrack.TCP && status&conntrack.SeenReply != 0 {
		f.State = 3
	}
	return conntrack.Sample{Flow: f, Kind: kind, Pod: pod, Seen: at(flushed.Add(1500 * time.Millisecond))}
}

// surveyed is what a look at the connections found at a moment after the flush.
func surveyed() flannel.Reading[conntrack.Survey] {
	s := conntrack.Survey{
		Took: 163 * time.Millisecond, Entries: 41_188, Pods: 3_114, Masquerade: map[flannel.Family]bool{flannel.IPv4: true, flannel.IPv6: true},
		Kinds: map[conntrack.Kind]conntrack.Tally{
			conntrack.Bare: {Flows: 1_043, Replied: 12}, conntrack.Translated: {Flows: 2, Replied: 2}, conntrack.Arriving: {Flows: 1, Replied: 1},
			conntrack.Stale: {Flows: 1},
		},
		States: map[string]int{"tcp ESTABLISHED": 30_112, "tcp TIME_WAIT": 6_004, "udp UNREPLIED": 4_100, "udp ASSURED": 971, "icmp REPLIED": 1},
	}
	for n := range uint16(16) {
		f := sample(conntrack.Bare, conntrack.TCP, "10.244.3.5", "192.0.2.80", "10.244.3.5", 40_000+n, 0, "shop/cart-0")
		if n%3 == 0 {
			f = sample(conntrack.Bare, conntrack.UDP, "10.244.3.17", "198.51.100.7", "10.244.3.17", 40_000+n, 0, "kube-system/coredns-5d78c9869d-x2x7p")
		}
		if n != 5 {
			f.Born = at(flushed.Add(time.Duration(n) * 90 * time.Millisecond))
		}
		s.Flows = append(s.Flows, f)
	}
	s.Flows = append(s.Flows,
		sample(conntrack.Bare, conntrack.TCP, "2001:db8:42:3::5", "2001:db8:ffff::80", "2001:db8:42:3::5", 41_000, conntrack.SeenReply, "shop/cart-0"),
		sample(conntrack.Translated, conntrack.TCP, "10.244.3.5", "10.244.7.9", "192.168.60.13", 50_001, conntrack.SeenReply|conntrack.Assured, "shop/cart-0"),
		sample(conntrack.Translated, conntrack.UDP, "10.244.3.6", "10.244.7.9", "192.168.60.13", 50_002, conntrack.SeenReply, ""),
		sample(conntrack.Arriving, conntrack.TCP, "10.244.7.0", "10.244.3.5", "10.244.7.0", 50_003, conntrack.SeenReply|conntrack.Assured, "shop/cart-0"),
		sample(conntrack.Stale, conntrack.UDP, "10.244.3.6", "10.96.0.10", "10.244.3.6", 8_125, conntrack.DstNAT, ""))
	s.Flows[18].From = "192.168.60.17"
	for i, n := range []uint64{1_902, 611, 340, 88, 71, 12} {
		a := netip.AddrFrom4([4]byte{10, 244, 3, byte(5 + i)})
		s.Sources = append(s.Sources, conntrack.Talker{Addr: a, Entries: n})
		s.Destinations = append(s.Destinations, conntrack.Talker{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(80 + i)}), Entries: n / 2})
	}
	s.Sources[0].Pod, s.Sources[1].Pod = "shop/cart-0", "kube-system/coredns-5d78c9869d-x2x7p"
	return flannel.Know(s, conntrack.SourceNetlink, at(now.Add(-2*time.Second)))
}

// withFlows is the emptied node whose connections were looked at, with its incident.
func withFlows() *incident.View {
	v := openIncident()
	v.Table.Flows = surveyed()
	v.Incidents[0].Flows = &incident.FlowsEffect{
		Since: at(flushed.Add(3 * time.Millisecond)), Born: 1_043, First: at(flushed.Add(1192 * time.Millisecond)), Alive: 1_043, Replied: 12,
		Looked: v.Table.Flows.At, Peak: 1_043, Curve: []incident.FlowPoint{{At: at(flushed)}, {At: v.Table.Flows.At, Bare: 1_043}},
	}
	return v
}

// noneWrong is the healthy node whose connections were looked at.
func noneWrong() *incident.View {
	v := healthy()
	r := surveyed()
	r.Value.Flows, r.Value.Kinds = nil, map[conntrack.Kind]conntrack.Tally{}
	v.Table.Flows = r
	return v
}

// outlived is the closed incident some minutes later: its connections live on.
func outlived() *incident.View {
	v := incidents()
	i := &v.Incidents[6]
	e := incident.FlowsEffect{
		Since: i.Start.Add(2 * time.Millisecond), Born: 1_043, First: i.Start.Add(1192 * time.Millisecond), Alive: 640, Replied: 31, Others: 4,
		Looked: v.Now.Add(-time.Second), Peak: 1_043, Curve: []incident.FlowPoint{{At: i.Start}},
	}
	for n := range 16 {
		e.Curve = append(e.Curve, incident.FlowPoint{At: i.Start.Add(1192*time.Millisecond + time.Duration(n)*230*time.Millisecond), Bare: uint64(65 * (n + 1))})
	}
	e.Curve = append(e.Curve, incident.FlowPoint{At: i.End.Add(400 * time.Millisecond), Bare: 1_043}, incident.FlowPoint{At: e.Looked, Bare: 640})
	i.Flows = &e
	return v
}

// refused is a node whose kernel does not tell of connections.
func refused() *incident.View {
	v := healthy()
	why := "open conntrack: needs CAP_NET_ADMIN: operation not permitted, open /proc/thread-self/net/stat/nf_conntrack: permission denied"
	v.Table = incident.TableView{
		Health: flannel.Miss[conntrack.Health](flannel.Unreadable, why, "nf_conntrack", at(now)),
		Flows:  flannel.Miss[conntrack.Survey](flannel.Unreadable, "open conntrack: needs CAP_NET_ADMIN: operation not permitted", "nf_conntrack", at(now)),
	}
	return v
}

// crowded is a node whose table is full and on which no rule tracks connections any more.
func crowded(symptom conntrack.Symptom) func() *incident.View {
	return func() *incident.View {
		v := noneWrong()
		h := health()
		h.Count = conntrack.Counted(262_101)
		v.Table.Symptoms = []conntrack.Symptom{symptom}
		v.Table.Trend.Drop, v.Table.Trend.InsertFailed = conntrack.Counted(212), conntrack.Counted(3)
		if symptom == "" {
			h.Use4, h.Use6 = conntrack.UseNone, conntrack.UseNone
			v.Table.Symptoms = nil
		}
		v.Table.Health = flannel.Know(h, conntrack.SourceProcfs, at(now))
		return v
	}
}

var flowScenes = []scene{
	{"flows", withFlows, func(m *model) { m.page = pageFlows; m.flow.move(flowKeys(m.flowRows()), 2) }},
	{"flows-found", withFlows, func(m *model) {
		m.page, m.flowFilter, m.flowOrder, m.flowReverse = pageFlows, "udp cart coredns", flowsByAge, true
		m.flowFilter = "udp"
	}},
	{"flows-none", noneWrong, func(m *model) { m.page = pageFlows }},
	{"flows-unread", healthy, func(m *model) { m.page = pageFlows }},
	{"flows-refused", refused, func(m *model) { m.page = pageFlows }},
	{"flows-inert", crowded(""), func(m *model) { m.page = pageFlows }},
	{"table", withFlows, func(m *model) { m.focus = panelTable }},
	{"table-refused", refused, nil},
	{"table-full", crowded(conntrack.Full), nil},
	{"table-alone", withFlows, func(m *model) { m.hidden[panelRules], m.hidden[panelChains] = true, true }},
	{"incident-flows", outlived, func(m *model) { m.page, m.cursor = pageIncident, 1 }},
}
