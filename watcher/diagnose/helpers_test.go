package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
)

// now is the moment at which every test looks.
var now = flannel.Time{Wall: time.Date(2026, 11, 30, 12, 4, 31, 0, time.UTC), Boot: 6 * time.Hour, Session: "boot/1"}

const (
	network4 = "10.244.0.0/16"
	subnet4  = "10.244.1.0/24"
	network6 = "fd00:244::/48"
	subnet6  = "fd00:244:0:1::/64"
)

func prefixList(words ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, w := range words {
		out = append(out, netip.MustParsePrefix(w).Masked())
	}
	return out
}

// facts are those of a node on which flanneld has been running for long, with the networks of subnet.env and no rules.
func facts(networks, subnets []netip.Prefix) Facts {
	f := Facts{At: now, Rules: map[flannel.Backend]flannel.Reading[flannel.Ruleset]{}}
	f.Node.Networks = flannel.Know(networks, "/run/flannel/subnet.env", now)
	f.Node.Subnets = flannel.Know(subnets, "/run/flannel/subnet.env", now)
	f.Node.IPMasq = flannel.Know(true, "/run/flannel/subnet.env", now)
	f.Procs = flannel.Know([]Process{flanneldOf(time.Hour)}, "/proc", now)
	f.Links = flannel.Know([]Link{{Name: "flannel.1", Type: "vxlan", Up: true}}, "netlink", now)
	for _, b := range flannel.Backends {
		f.set(b, ruleset(b))
	}
	return f
}

func flanneldOf(age time.Duration) Process {
	return Process{
		PID: 2210, Kind: ProcFlanneld, Comm: "flanneld", Cmdline: []string{"/opt/bin/flanneld", "--ip-masq"},
		Env: map[string]string{}, Started: now.Add(-age),
	}
}

func (f *Facts) set(b flannel.Backend, rs flannel.Ruleset) {
	f.Rules[b] = flannel.Know(rs, "kernel", now)
}

// without removes every process.
func (f Facts) without() Facts {
	f.Procs = flannel.Know[[]Process](nil, "/proc", now)
	return f
}

// ruleset is what a reader hands out where none of the chains it looks for exists.
func ruleset(b flannel.Backend) flannel.Ruleset {
	rs := flannel.Ruleset{Backend: b}
	for _, id := range flannel.Looked(b) {
		rs.Chains = append(rs.Chains, flannel.Chain{ID: id})
	}
	return rs
}

// full is a backend with the rules of a generation, as Flannel writes them.
func full(b flannel.Backend, g flannel.Generation, o flannel.Options, networks, subnets []netip.Prefix) flannel.Ruleset {
	rs := ruleset(b)
	for _, f := range flannel.Families {
		for _, w := range flannel.Expected(networks, subnets, g, o, b, f) {
			put(&rs, w)
		}
	}
	return rs
}

func put(rs *flannel.Ruleset, w flannel.Wanted) {
	c := rs.Chain(w.ID)
	c.Present, c.Base = true, w.Base
	if w.Shared {
		c.Base = &flannel.BaseChain{Policy: "accept"}
	}
	if !rs.HasTable(w.ID.TableID()) {
		rs.Tables = append(rs.Tables, w.ID.TableID())
	}
	for _, r := range w.Rules {
		c.Entries = append(c.Entries, flannel.Entry{Rule: r})
	}
	if w.HookChain != (flannel.ChainID{}) {
		base := rs.Chain(w.HookChain)
		base.Present, base.Base = true, &flannel.BaseChain{Policy: "accept"}
		base.Entries = append(base.Entries, flannel.Entry{Rule: w.Hook})
	}
}

var usual = flannel.Options{RandomFully: true, Forward: true, Masq: true}

// today is a healthy node with IPv4 in iptables-nft.
func today() (Facts, *flannel.Ruleset) {
	f := facts(prefixList(network4), prefixList(subnet4))
	rs := full(flannel.IptablesNft, flannel.GenV0210, usual, prefixList(network4), prefixList(subnet4))
	f.set(flannel.IptablesNft, rs)
	return f, &rs
}

var (
	masq4 = flannel.MasqChain(flannel.IptablesNft, flannel.IPv4)
	fwd4  = flannel.ForwardChain(flannel.IptablesNft, flannel.IPv4)
)

// told writes a verdict as lines, for comparison with what a test wants.
func told(a Assessment) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, %s, in %v\n", a.Flannel.State, a.Flannel.Dialect, a.Flannel.Generation, a.Flannel.Backends)
	for _, c := range a.Chains {
		fmt.Fprintf(&b, "  %s: %s, %d of %d\n", c.ID, c.State, c.Found, c.Wanted)
	}
	for _, f := range a.Findings {
		fmt.Fprintf(&b, "  %s %s [%s]: %s", f.Severity, f.ID, f.Object, f.Summary)
		fmt.Fprintf(&b, " -> %s", f.Remedy)
		if f.Refused != "" {
			fmt.Fprintf(&b, " (%s)", f.Refused)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// ids lists severity and id of every finding.
func ids(a Assessment) []string {
	var out []string
	for _, f := range a.Findings {
		out = append(out, string(f.Severity)+" "+f.ID)
	}
	return out
}

func wantIDs(t *testing.T, a Assessment, want ...string) {
	t.Helper()
	if !slices.Equal(ids(a), want) {
		t.Errorf("findings %q, want %q\n%s", ids(a), want, told(a))
	}
}

func wantState(t *testing.T, a Assessment, id flannel.ChainID, want flannel.ChainState) {
	t.Helper()
	i := slices.IndexFunc(a.Chains, func(c flannel.ChainDiff) bool { return c.ID == id })
	if i < 0 {
		t.Fatalf("no word on %s\n%s", id, told(a))
	}
	if a.Chains[i].State != want {
		t.Errorf("%s is %s, want %s\n%s", id, a.Chains[i].State, want, told(a))
	}
}
