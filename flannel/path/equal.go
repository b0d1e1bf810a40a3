package path

import "slices"

// Equal tells whether both are about the same packets.
func (f Facts) Equal(g Facts) bool {
	return slices.Equal(f.Subnets, g.Subnets) && slices.Equal(f.Pods, g.Pods) && slices.Equal(f.Foreign, g.Foreign) &&
		slices.Equal(f.Remote, g.Remote) && slices.Equal(f.Addresses, g.Addresses) && slices.Equal(f.Outside, g.Outside) &&
		f.Bridge == g.Bridge && f.ForeignBridge == g.ForeignBridge && f.Tunnel == g.Tunnel && f.Uplink == g.Uplink &&
		slices.Equal(f.Bridges, g.Bridges)
}

// Equal tells whether two verdicts differ in nothing but counters.
func (v Verdict) Equal(w Verdict) bool {
	return v.Packet == w.Packet && v.Kind == w.Kind && sameBy(v.By, w.By) && slices.Equal(v.Others, w.Others) &&
		slices.Equal(v.Unknown, w.Unknown) && v.Source == w.Source && v.Destination == w.Destination && v.Local == w.Local &&
		slices.EqualFunc(v.Trail, w.Trail, func(a, b Step) bool {
			return a.By == b.By && a.Hook == b.Hook && a.Sure == b.Sure && slices.Equal(a.Unknown, b.Unknown) && a.Counted == b.Counted
		})
}

func sameBy(a, b *By) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
