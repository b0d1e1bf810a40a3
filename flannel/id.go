package flannel

import (
	"cmp"
	"fmt"
)

// Backend is the part of the kernel (and the tool that speaks to it) that holds a rule. One node can hold Flannel's rules
// in all three at once, so it is part of every identity.
type Backend uint8

// The backends, in the order in which they are shown.
const (
	IptablesNft    Backend = iota + 1 // nf_tables, written by iptables-nft
	IptablesLegacy                    // x_tables, written by iptables-legacy
	Nftables                          // nf_tables, Flannel's native tables flannel-ipv4 and flannel-ipv6
)

// Backends lists every backend in display order.
var Backends = []Backend{IptablesNft, IptablesLegacy, Nftables}

var backendNames = map[Backend]string{IptablesNft: "iptables-nft", IptablesLegacy: "iptables-legacy", Nftables: "nftables"}

// String gives the name used in JSON, commands and on screen.
func (b Backend) String() string {
	if s, ok := backendNames[b]; ok {
		return s
	}
	return fmt.Sprintf("backend(%d)", uint8(b))
}

// MarshalText writes the name of the backend.
func (b Backend) MarshalText() ([]byte, error) { return marshalName(b, backendNames) }

// UnmarshalText reads the name of a backend.
func (b *Backend) UnmarshalText(text []byte) error { return unmarshalName(b, text, backendNames) }

// Family is the address family of a table.
type Family uint8

// The two families that Flannel knows.
const (
	IPv4 Family = iota + 1
	IPv6
)

// Families lists both families.
var Families = []Family{IPv4, IPv6}

var familyNames = map[Family]string{IPv4: "ip", IPv6: "ip6"}

// String gives nft's word for the family, "ip" or "ip6".
func (f Family) String() string {
	if s, ok := familyNames[f]; ok {
		return s
	}
	return fmt.Sprintf("family(%d)", uint8(f))
}

// Short gives "v4" or "v6", as on the screen.
func (f Family) Short() string {
	if f == IPv6 {
		return "v6"
	}
	return "v4"
}

// Bits is the length of an address of the family.
func (f Family) Bits() int {
	if f == IPv6 {
		return 128
	}
	return 32
}

// MarshalText writes "ip" or "ip6".
func (f Family) MarshalText() ([]byte, error) { return marshalName(f, familyNames) }

// UnmarshalText reads "ip" or "ip6".
func (f *Family) UnmarshalText(text []byte) error { return unmarshalName(f, text, familyNames) }

// TableID names a table: legacy and nft can both hold an "ip nat".
type TableID struct {
	Backend Backend `json:"backend"`
	Family  Family  `json:"family"`
	Name    string  `json:"table"`
}

// String gives "iptables-nft ip nat".
func (t TableID) String() string { return t.Backend.String() + " " + t.Family.String() + " " + t.Name }

// ChainID names a chain. It is comparable and serves as the key of every map and selection.
type ChainID struct {
	Backend Backend `json:"backend"`
	Family  Family  `json:"family"`
	Table   string  `json:"table"`
	Name    string  `json:"name"`
}

// TableID is the table that the chain lies in.
func (c ChainID) TableID() TableID { return TableID{c.Backend, c.Family, c.Table} }

// String gives the form used as a finding's object, "iptables-nft ip nat FLANNEL-POSTRTG".
func (c ChainID) String() string { return c.TableID().String() + " " + c.Name }

// Short gives the form of the screen when one backend is in use, "v4 nat FLANNEL-POSTRTG".
func (c ChainID) Short() string { return c.Family.Short() + " " + c.Table + " " + c.Name }

// Compare orders by backend, family, table (nat before filter, which is the order of importance here) and name.
func (c ChainID) Compare(d ChainID) int {
	return cmp.Or(cmp.Compare(c.Backend, d.Backend), cmp.Compare(c.Family, d.Family),
		-cmp.Compare(c.Table, d.Table), cmp.Compare(c.Name, d.Name))
}

func marshalName[T comparable](v T, names map[T]string) ([]byte, error) {
	s, ok := names[v]
	if !ok {
		return nil, fmt.Errorf("marshal %T: no name for %v", v, v)
	}
	return []byte(s), nil
}

func unmarshalName[T comparable](v *T, text []byte, names map[T]string) error {
	for k, s := range names {
		if s == string(text) {
			*v = k
			return nil
		}
	}
	return fmt.Errorf("unmarshal %T: unknown name %q", *v, text)
}
