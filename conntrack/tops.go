package conntrack

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// Size of tops: so many sets of so many addresses.
const (
	topsSets = 1024 // a power of two
	topsWays = 4
)

// tops counts addresses in bounded memory and constant time. An address belongs to one set; where its set is full of others,
// it lowers each of their counts by one instead of being counted (Misra and Gries), and what is at 0 makes room. Counts are
// exact while no set has more addresses than places, as on a node with some hundred pods; beyond that each is too low by one
// for every topsWays+1 entries of its set at most.
type tops struct {
	sets [topsSets][topsWays]talk
}

type talk struct {
	addr netip.Addr
	n    uint32
}

func (t *tops) add(a netip.Addr) {
	set := &t.sets[place(a)]
	for i := range set {
		if set[i].n == 0 {
			set[i] = talk{a, 1}
			return
		}
		if set[i].addr == a {
			set[i].n++
			return
		}
	}
	kept := 0
	for _, c := range set {
		if c.n > 1 {
			set[kept] = talk{c.addr, c.n - 1}
			kept++
		}
	}
	clear(set[kept:])
}

// place hashes an address. Pods have addresses in a row, which multiplication spreads.
func place(a netip.Addr) uint64 {
	b := a.As16()
	h := binary.LittleEndian.Uint64(b[:8])*0x9e3779b97f4a7c15 ^ binary.BigEndian.Uint64(b[8:])
	return h * 0x9e3779b97f4a7c15 >> 32 % topsSets
}

// list gives the addresses with the most entries, most first.
func (t *tops) list(names map[netip.Addr]string) []Talker {
	var out []Talker
	for i := range t.sets {
		for _, c := range t.sets[i] {
			if c.n > 0 {
				out = append(out, Talker{c.addr, names[c.addr], uint64(c.n)})
			}
		}
	}
	slices.SortFunc(out, func(a, b Talker) int {
		return cmp.Or(cmp.Compare(b.Entries, a.Entries), a.Addr.Compare(b.Addr))
	})
	return slices.Clip(out[:min(len(out), maxTop)])
}
