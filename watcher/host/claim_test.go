package host

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
)

func nets(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func yes() *bool { b := true; return &b }
func no() *bool  { b := false; return &b }

func prefixesRead(r flannel.Reading[[]netip.Prefix]) string {
	if r.State != flannel.Known {
		return r.State.String() + ": " + r.Why
	}
	return fmt.Sprintf("%v from %s", r.Value, r.Source)
}

func TestTheBestSourceDecidesAndOthersAreKept(t *testing.T) {
	written := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	env := Claim{Source: "subnet.env", Written: written, Networks: nets("10.244.0.0/16"), Subnets: nets("10.244.1.1/24")}
	for name, c := range map[string]struct {
		claims            []Claim
		networks, subnets string
		others            []string
		written           time.Time
	}{
		"nothing": {
			nil, "absent: no source tells it", "absent: no source tells it", nil, time.Time{},
		},
		"one source, host bits masked": {
			[]Claim{env}, "[10.244.0.0/16] from subnet.env", "[10.244.1.0/24] from subnet.env", nil, written,
		},
		"a second source that agrees is not kept": {
			[]Claim{env, {Source: "net-conf.json", Networks: nets("10.244.0.0/16")}},
			"[10.244.0.0/16] from subnet.env", "[10.244.1.0/24] from subnet.env", nil, written,
		},
		"one that disagrees is kept": {
			[]Claim{env, {Source: "net-conf.json", Networks: nets("10.42.0.0/16")}},
			"[10.244.0.0/16] from subnet.env", "[10.244.1.0/24] from subnet.env",
			[]string{"net-conf.json"},
			written,
		},
		"one that speaks of another family does not disagree": {
			[]Claim{env, {Source: "kube-proxy", Networks: nets("fd00::/48")}},
			"[10.244.0.0/16] from subnet.env", "[10.244.1.0/24] from subnet.env", nil, written,
		},
		"networks in another order agree": {
			[]Claim{{Source: "a", Networks: nets("10.1.0.0/16", "10.2.0.0/16")}, {Source: "b", Networks: nets("10.2.0.0/16", "10.1.0.0/16")}},
			"[10.1.0.0/16 10.2.0.0/16] from a", "absent: no source tells it", nil,
			time.Time{},
		},
		"networks and subnets of different sources": {
			[]Claim{{Source: "net-conf.json", Written: written, Networks: nets("10.244.0.0/16")}, {Source: "cni0", Subnets: nets("10.244.3.1/24")}},
			"[10.244.0.0/16] from net-conf.json", "[10.244.3.0/24] from cni0", nil, written,
		},
		"a subnet of another cluster is passed over for one that fits": {
			[]Claim{
				{Source: "net-conf.json", Networks: nets("10.244.0.0/16")},
				{Source: "old", Subnets: nets("10.42.1.0/24")},
				{Source: "cni0", Subnets: nets("10.244.3.1/24")},
			},
			"[10.244.0.0/16] from net-conf.json", "[10.244.3.0/24] from cni0",
			[]string{"old"},
			time.Time{},
		},
		"a subnet outside is still told where none fits": {
			[]Claim{{Source: "net-conf.json", Networks: nets("10.244.0.0/16")}, {Source: "old", Subnets: nets("10.42.1.0/24")}},
			"[10.244.0.0/16] from net-conf.json", "[10.42.1.0/24] from old", nil,
			time.Time{},
		},
		"both families": {
			[]Claim{{Source: "e", Networks: nets("10.244.0.0/16", "fd00:244::/48"), Subnets: nets("10.244.1.1/24", "fd00:244:0:1::1/64")}},
			"[10.244.0.0/16 fd00:244::/48] from e", "[10.244.1.0/24 fd00:244:0:1::/64] from e", nil,
			time.Time{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := Combine(Evidence{Claims: c.claims}, flannel.Time{})
			if got := prefixesRead(n.Networks); got != c.networks {
				t.Errorf("networks %s, want %s", got, c.networks)
			}
			if got := prefixesRead(n.Subnets); got != c.subnets {
				t.Errorf("subnets %s, want %s", got, c.subnets)
			}
			var others []string
			for _, o := range n.Others {
				others = append(others, o.Name)
			}
			if !slices.Equal(others, c.others) || !n.Written.Equal(c.written) {
				t.Errorf("others %v, written %v; want %v, %v", others, n.Written, c.others, c.written)
			}
		})
	}
}

func TestWhatAProcessWasToldComesBeforeFiles(t *testing.T) {
	n := Combine(Evidence{
		Live:   []Claim{{Source: "flanneld", Settings: Settings{IPMasq: yes(), ForwardRules: no(), Resync: time.Minute}}},
		Claims: []Claim{{Source: "subnet.env", Settings: Settings{IPMasq: no(), MTU: 1450}}},
	}, flannel.Time{})
	if !n.IPMasq.Value || n.IPMasq.Source != "flanneld" || n.ForwardRules.Value || n.ForwardRules.State != flannel.Known {
		t.Errorf("ip-masq %+v, forward rules %+v", n.IPMasq, n.ForwardRules)
	}
	if n.Resync.Value != time.Minute || n.MTU.Value != 1450 || n.MTU.Source != "subnet.env" {
		t.Errorf("resync %+v, MTU %+v", n.Resync, n.MTU)
	}
	if !n.IPMasq6.Value || n.IPMasq6.Source != "flanneld" {
		t.Errorf("IPv6 follows IPv4 where nothing else is said: %+v", n.IPMasq6)
	}
	if n.RandomFully.State != flannel.Absent || n.NFTables.State != flannel.Absent {
		t.Errorf("what nobody says is %v, %v", n.RandomFully.State, n.NFTables.State)
	}
}

func TestIPv6MasqueradingMayBeDecidedApart(t *testing.T) {
	n := Combine(Evidence{Live: []Claim{{Source: "k3s", Settings: Settings{IPMasq: yes(), IPMasq6: no()}}}}, flannel.Time{})
	if !n.IPMasq.Value || n.IPMasq6.Value || n.IPMasq6.State != flannel.Known {
		t.Errorf("%+v, %+v", n.IPMasq, n.IPMasq6)
	}
}

func TestWhatCouldNotBeReadIsNotAbsent(t *testing.T) {
	failures := []Failure{{"a", "permission denied"}, {"b", "larger than expected"}, {"c", "x"}, {"d", "x"}}
	n := Combine(Evidence{Failures: failures}, flannel.Time{})
	if n.Networks.State != flannel.Unreadable || !strings.Contains(n.Networks.Why, "a: permission denied; b: larger than expected") {
		t.Errorf("networks %+v", n.Networks)
	}
	if strings.Contains(n.Networks.Why, "d:") || !strings.HasSuffix(n.Networks.Why, "…") {
		t.Errorf("the reason has no end: %s", n.Networks.Why)
	}
	n = Combine(Evidence{Failures: failures, Claims: []Claim{{Source: "e", Networks: nets("10.244.0.0/16")}}}, flannel.Time{})
	if n.Networks.State != flannel.Known || n.Subnets.State != flannel.Unreadable {
		t.Errorf("networks %v, subnets %v", n.Networks.State, n.Subnets.State)
	}
}

func TestTheTimeOfLookingIsNoDifference(t *testing.T) {
	e := Evidence{
		Claims:       []Claim{{Source: "e", Networks: nets("10.244.0.0/16"), Settings: Settings{IPMasq: yes(), MTU: 1450}}},
		Distribution: flannel.Know("k3s", "x", flannel.Time{Boot: 1}),
	}
	a, b := Combine(e, flannel.Time{Boot: 1}), Combine(e, flannel.Time{Boot: 2})
	b.Distribution.At.Boot = 2
	if !Same(a, b) {
		t.Errorf("the same facts differ:\n%+v\n%+v", a, b)
	}
	e.Claims[0].MTU = 1400
	if Same(a, Combine(e, flannel.Time{Boot: 1})) {
		t.Error("another MTU makes no difference")
	}
}
