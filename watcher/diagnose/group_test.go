package diagnose

import (
	"slices"
	"testing"

	"flanwatch/flannel"
)

func TestEveryFindingBelongsToAGroup(t *testing.T) {
	nat := flannel.ChainID{Backend: flannel.IptablesNft, Family: flannel.IPv4, Table: "nat", Name: "FLANNEL-POSTRTG"}
	fwd := flannel.ChainID{Backend: flannel.IptablesLegacy, Family: flannel.IPv6, Table: "filter", Name: "FLANNEL-FWD"}
	native := flannel.ChainID{Backend: flannel.Nftables, Family: flannel.IPv4, Table: "flannel-ipv4", Name: flannel.NativeMasq}
	for name, c := range map[string]struct {
		finding Finding
		want    []Group
	}{
		"an empty masquerade chain":                {Finding{ID: "chain-empty", Chain: nat}, []Group{GroupMasquerade}},
		"an empty native masquerade chain":         {Finding{ID: "chain-empty", Chain: native}, []Group{GroupMasquerade}},
		"a forward chain nobody calls":             {Finding{ID: "hook-missing", Chain: fwd}, []Group{GroupForward}},
		"a native table concerns both":             {Finding{ID: "table-missing", Chain: native}, []Group{GroupMasquerade, GroupForward}},
		"a chain that was left, whichever":         {Finding{ID: "leftover-chain", Chain: nat}, []Group{GroupLeftovers}},
		"rules of an old generation are leftovers": {Finding{ID: "old-generation-rules", Chain: nat}, []Group{GroupLeftovers}},
		"a full table of connections":              {Finding{ID: "conntrack-full"}, []Group{GroupConntrack}},
		"bare connections":                         {Finding{ID: "flows-bare"}, []Group{GroupConntrack}},
		"a setting":                                {Finding{ID: "ip-forward-off"}, []Group{GroupPrerequisites}},
		"a finding nobody thought of":              {Finding{ID: "new"}, []Group{GroupPrerequisites}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.finding.Groups(); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
			if !c.finding.In("") || !c.finding.In(c.want[0]) || c.finding.In(GroupReaders) {
				t.Error("In and Groups do not agree")
			}
		})
	}
}
