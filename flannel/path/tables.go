package path

import (
	"cmp"
	"slices"

	"flanwatch/flannel"
)

// Tables is what the kernel holds: every base chain of the families at hand, whoever owns it, and every chain that can be
// reached from one. A table of nftables' family inet stands in it once for each family, with the name "inet NAME".
type Tables struct {
	Chains []flannel.Chain
	Sets   map[SetID]Set // those that could be read
	Unread []string      // what could not be read, such as "iptables-legacy: operation not permitted"; no verdict is sure then
}

// hook is a place in the kernel's path of a packet.
type hook string

const (
	prerouting  hook = "prerouting"
	input       hook = "input"
	forward     hook = "forward"
	output      hook = "output"
	postrouting hook = "postrouting"
)

type hookID struct {
	family flannel.Family
	hook   hook
}

// Priorities at which the kernel itself does something (linux/netfilter_ipv4.h).
const (
	trackingPriority = -200
	natPriority      = 100 // prerouting and output: minus this
)

// priority is where a base chain takes its turn. Chains that translate are called by one function of the kernel, which has
// a fixed place; their own priority only tells their order among themselves.
func priority(b *flannel.BaseChain) int32 {
	if b.Type != "nat" {
		return b.Priority
	}
	switch hook(b.Hook) {
	case prerouting, output:
		return -natPriority
	}
	return natPriority
}

// turn is what the kernel calls at one moment: chains of which nothing tells the order.
type turn struct {
	priority int32
	nat      bool
	chains   []*flannel.Chain
}

// index sorts base chains into turns.
type index struct {
	chains map[flannel.ChainID]*flannel.Chain
	turns  map[hookID][]turn
}

func newIndex(t Tables) index {
	x := index{map[flannel.ChainID]*flannel.Chain{}, map[hookID][]turn{}}
	base := map[hookID][]*flannel.Chain{}
	for i := range t.Chains {
		c := &t.Chains[i]
		if !c.Present {
			continue
		}
		x.chains[c.ID] = c
		if c.Base != nil {
			id := hookID{c.ID.Family, hook(c.Base.Hook)}
			base[id] = append(base[id], c)
		}
	}
	for id, chains := range base {
		slices.SortStableFunc(chains, func(a, b *flannel.Chain) int {
			return cmp.Or(cmp.Compare(priority(a.Base), priority(b.Base)), cmp.Compare(natLast(a), natLast(b)),
				cmp.Compare(a.Base.Priority, b.Base.Priority), a.ID.Compare(b.ID))
		})
		x.turns[id] = turns(chains)
	}
	return x
}

func natLast(c *flannel.Chain) int {
	if c.Base.Type == "nat" {
		return 1
	}
	return 0
}

func turns(chains []*flannel.Chain) []turn {
	var out []turn
	for _, c := range chains {
		nat := c.Base.Type == "nat"
		if n := len(out); n > 0 && out[n-1].nat == nat && out[n-1].chains[0].Base.Priority == c.Base.Priority {
			out[n-1].chains = append(out[n-1].chains, c)
			continue
		}
		out = append(out, turn{priority(c.Base), nat, []*flannel.Chain{c}})
	}
	return out
}
