package host

import (
	"encoding/json"
	"net/netip"
	"strings"
	"time"

	"flanwatch/flannel"
)

// Sources that are too weak to be remembered, by how they are named.
const (
	sourceGiven = "--network and --subnet"
	sourceRules = "rules in "
	sourceLinks = "links and routes: "
	sourceSaved = "remembered in "
)

// saved is the file in the state directory that remembers what the node's own files told when they were last there.
type saved struct {
	Schema       string         `json:"schema"`
	Source       string         `json:"source"`
	Written      time.Time      `json:"written"`
	Saved        time.Time      `json:"saved"`
	Networks     []netip.Prefix `json:"networks"`
	Subnets      []netip.Prefix `json:"subnets"`
	IPMasq       *bool          `json:"ipMasq,omitempty"`
	IPMasq6      *bool          `json:"ipMasq6,omitempty"`
	ForwardRules *bool          `json:"forwardRules,omitempty"`
	RandomFully  *bool          `json:"randomFully,omitempty"`
	NFTables     *bool          `json:"nftables,omitempty"`
	Resync       time.Duration  `json:"resync,omitempty"`
	MTU          int            `json:"mtu,omitempty"`
}

const savedSchema = "flanwatch.node/v1"

// worthSaving tells whether the networks come from a file or process of Flannel, and not from a weaker source.
func worthSaving(n flannel.Node) bool {
	if n.Networks.State != flannel.Known || n.Subnets.State != flannel.Known {
		return false
	}
	for _, source := range []string{n.Networks.Source, n.Subnets.Source} {
		for _, weak := range []string{sourceGiven, sourceRules, sourceLinks, sourceSaved, "flags of kube-proxy"} {
			if strings.HasPrefix(source, weak) {
				return false
			}
		}
	}
	return true
}

func toSaved(n flannel.Node, now time.Time) saved {
	return saved{
		Schema: savedSchema, Source: n.Networks.Source, Written: n.Written, Saved: now,
		Networks: n.Networks.Value, Subnets: n.Subnets.Value,
		IPMasq: known(n.IPMasq), IPMasq6: known(n.IPMasq6), ForwardRules: known(n.ForwardRules),
		RandomFully: known(n.RandomFully), NFTables: known(n.NFTables),
		Resync: n.Resync.Value, MTU: n.MTU.Value,
	}
}

func known[T any](r flannel.Reading[T]) *T {
	if v, ok := r.Get(); ok {
		return &v
	}
	return nil
}

// parseSaved reads the file. What it says is as old as the file that it was taken from.
func parseSaved(data []byte, name string) (Claim, bool) {
	var s saved
	if json.Unmarshal(data, &s) != nil || s.Schema != savedSchema {
		return Claim{}, false
	}
	return Claim{
		Source: sourceSaved + name + ", from " + flannel.Printable(s.Source), Written: s.Written,
		Networks: masked(s.Networks), Subnets: masked(s.Subnets),
		Settings: Settings{
			IPMasq: s.IPMasq, IPMasq6: s.IPMasq6, ForwardRules: s.ForwardRules, RandomFully: s.RandomFully,
			NFTables: s.NFTables, Resync: max(s.Resync, 0), MTU: max(s.MTU, 0),
		},
	}, true
}
