package flannel

import "slices"

// Generation names a shape of Flannel's rule set by the first tag that wrote it.
type Generation string

// The generations. The first three write into POSTROUTING and FORWARD themselves, the next three into chains of their own,
// the last into tables of its own.
const (
	GenV080  Generation = "v0.8.0"  // bare rules; in FORWARD from v0.10.0
	GenV0110 Generation = "v0.11.0" // MASQUERADE --random-fully; IPv6 from v0.15.0
	GenV0162 Generation = "v0.16.2" // comments, one of them misspelt up to v0.16.3
	GenV0200 Generation = "v0.20.0" // chains, the jumps in first place
	GenV0202 Generation = "v0.20.2" // what kube-proxy marked is left alone
	GenV0210 Generation = "v0.21.0" // traffic of the local subnet is exempted; jumps in last place from v0.21.3
	GenV0250 Generation = "v0.25.0" // native nftables, beside v0.21.0 for iptables
)

// Generations lists every generation, oldest first.
var Generations = []Generation{GenV080, GenV0110, GenV0162, GenV0200, GenV0202, GenV0210, GenV0250}

// OwnChains tells whether rules of the generation stand in chains of Flannel's own.
func (g Generation) OwnChains() bool { return g != GenV080 && g != GenV0110 && g != GenV0162 }

// Commented tells whether rules of the generation carry Flannel's comments, by which they are known for Flannel's.
func (g Generation) Commented() bool { return g != GenV080 && g != GenV0110 && g != GenV0250 }

// Options are what flanneld's flags, and the iptables it finds, decide about its rules.
type Options struct {
	RandomFully bool // MASQUERADE --random-fully: iptables 1.6.2 and later, unless --ip-masq-fully-random-disable
	Forward     bool // --iptables-forward-rules, on by default
	Masq        bool // --ip-masq, off by default
}

// The names that Flannel gives, and those of the base chains that it hooks into.
const (
	TableNat    = "nat"
	TableFilter = "filter"

	ChainPostrouting = "POSTROUTING"
	ChainForward     = "FORWARD"
	ChainMasq        = "FLANNEL-POSTRTG" // in nat, from v0.20.0
	ChainFwd         = "FLANNEL-FWD"     // in filter, from v0.20.0

	NativeMasq    = "postrtg" // in flannel-ipv4 and flannel-ipv6
	NativeForward = "forward"

	CommentMasq     = "flanneld masq"
	CommentMasqTypo = "flannel masq" // v0.16.2 and v0.16.3, IPv4, the first MASQUERADE with --random-fully
	CommentForward  = "flanneld forward"
)

// KubeProxyMark is the bit with which kube-proxy marks what it will masquerade itself.
const KubeProxyMark = 0x4000

// NativeTable is the name of Flannel's own table of a family.
func NativeTable(f Family) string {
	if f == IPv6 {
		return "flannel-ipv6"
	}
	return "flannel-ipv4"
}

// MasqChain is the identity of the chain of Flannel's own that masquerades.
func MasqChain(b Backend, f Family) ChainID {
	if b == Nftables {
		return ChainID{b, f, NativeTable(f), NativeMasq}
	}
	return ChainID{b, f, TableNat, ChainMasq}
}

// ForwardChain is the identity of the chain of Flannel's own that accepts forwarded traffic.
func ForwardChain(b Backend, f Family) ChainID {
	if b == Nftables {
		return ChainID{b, f, NativeTable(f), NativeForward}
	}
	return ChainID{b, f, TableFilter, ChainFwd}
}

// Looked lists the chains that a reader of the backend looks for, sorted: Flannel's own and, for the iptables backends, the
// base chains that lead to them.
func Looked(b Backend) []ChainID {
	var ids []ChainID
	for _, f := range Families {
		ids = append(ids, MasqChain(b, f), ForwardChain(b, f))
		if b != Nftables {
			ids = append(ids, ChainID{b, f, TableNat, ChainPostrouting}, ChainID{b, f, TableFilter, ChainForward})
		}
	}
	slices.SortFunc(ids, ChainID.Compare)
	return ids
}
