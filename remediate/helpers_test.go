package remediate

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

var (
	networks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")}
	subnets  = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:0:1::/64")}
)

// bench makes facts whose rules can be changed like those of a node.
type bench struct {
	Facts
	handles uint64
}

func newBench() *bench {
	b := &bench{}
	now := flannel.Time{Wall: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Boot: time.Hour, Session: "s"}
	b.At = now
	b.Node.Networks, b.Node.Subnets = flannel.Know(networks, "/run/flannel/subnet.env", now), flannel.Know(subnets, "/run/flannel/subnet.env", now)
	b.Node.IPMasq, b.Node.ForwardRules = flannel.Know(true, "flag", now), flannel.Know(true, "flag", now)
	b.Node.RandomFully, b.Node.NFTables = flannel.Know(true, "flag", now), flannel.Know(false, "net-conf.json", now)
	b.Links = flannel.Know([]diagnose.Link{}, "netlink", now)
	b.Procs = flannel.Know([]diagnose.Process{}, "/proc", now)
	b.Facts.Rules = map[flannel.Backend]flannel.Reading[flannel.Ruleset]{}
	for _, x := range flannel.Backends {
		rs := flannel.Ruleset{Backend: x}
		for _, id := range flannel.Looked(x) {
			rs.Chains = append(rs.Chains, flannel.Chain{ID: id, Present: id.Name == flannel.ChainPostrouting || id.Name == flannel.ChainForward})
			if !rs.HasTable(id.TableID()) && x != flannel.Nftables {
				rs.Tables = append(rs.Tables, id.TableID())
			}
		}
		b.Facts.Rules[x] = flannel.Know(rs, x.String(), now)
	}
	return b
}

// live lets Flannel run, for half an hour if not said otherwise.
func (b *bench) live(for_ ...time.Duration) *bench {
	age := 30 * time.Minute
	if len(for_) > 0 {
		age = for_[0]
	}
	b.Procs.Value = []diagnose.Process{{PID: 2210, Kind: diagnose.ProcFlanneld, Comm: "flanneld", Version: "v0.28.10", Started: b.At.Add(-age)}}
	return b
}

func (b *bench) edit(id flannel.ChainID, change func(*flannel.Chain)) {
	r := b.Facts.Rules[id.Backend]
	r.Value = r.Value.Clone()
	change(r.Value.Chain(id))
	if !r.Value.HasTable(id.TableID()) {
		r.Value.Tables = append(r.Value.Tables, id.TableID())
	}
	b.Facts.Rules[id.Backend] = r
}

func (b *bench) entry(r flannel.Rule) flannel.Entry {
	b.handles++
	h := fnv.New64a()
	h.Write([]byte(r.String()))
	return flannel.Entry{Rule: r, Handle: b.handles, Body: h.Sum64()}
}

// insert puts a rule into a chain; position 0 is the start, -1 the end.
func (b *bench) insert(id flannel.ChainID, at int, r flannel.Rule) {
	b.edit(id, func(c *flannel.Chain) {
		if c.Present = true; at < 0 {
			at = len(c.Entries)
		}
		c.Entries = slices.Insert(c.Entries, at, b.entry(r))
	})
}

// healthy fills a backend with the rules of a generation.
func (b *bench) healthy(x flannel.Backend, g flannel.Generation) *bench {
	for _, f := range flannel.Families {
		for _, w := range flannel.Expected(networks, subnets, g, everything, x, f) {
			for _, r := range w.Rules {
				b.insert(w.ID, -1, r)
			}
			b.edit(w.ID, func(c *flannel.Chain) { c.Base = w.Base })
			if w.HookChain != (flannel.ChainID{}) {
				b.insert(w.HookChain, -1, w.Hook)
			}
		}
	}
	return b
}

// carry does what a plan says.
func (b *bench) carry(p Plan) {
	for _, t := range p.Tables {
		r := b.Facts.Rules[t.Table.Backend]
		r.Value = r.Value.Clone()
		r.Value.Tables = slices.DeleteFunc(r.Value.Tables, func(x flannel.TableID) bool { return x == t.Table })
		if t.Create {
			r.Value.Tables = append(r.Value.Tables, t.Table)
		}
		b.Facts.Rules[t.Table.Backend] = r
	}
	for _, e := range p.Edits {
		b.edit(e.Chain, func(c *flannel.Chain) {
			before := c.Entries
			c.Entries, c.Present = nil, !e.Delete || e.Create
			if e.Create || e.Delete {
				c.Base = e.Base
			}
			for _, l := range e.Lines {
				switch l.Mark {
				case Keep:
					c.Entries = append(c.Entries, before[l.At-1])
				case Add:
					c.Entries = append(c.Entries, b.entry(l.Rule))
				}
			}
		})
		if e.Delete && !e.Create && e.Chain.Backend == flannel.Nftables {
			r := b.Facts.Rules[e.Chain.Backend]
			r.Value.Tables = slices.DeleteFunc(r.Value.Tables, func(x flannel.TableID) bool {
				return slices.ContainsFunc(p.Tables, func(t TableEdit) bool { return t.Delete && t.Table == x })
			})
			b.Facts.Rules[e.Chain.Backend] = r
		}
	}
}

// text is everything that is there, one rule a line, without handles.
func (b *bench) text() (out []string) {
	for _, x := range flannel.Backends {
		for _, c := range b.Facts.Rules[x].Value.Chains {
			if c.Present {
				out = append(out, c.ID.String())
			}
			for _, e := range c.Entries {
				out = append(out, c.ID.String()+": "+e.Rule.String())
			}
		}
	}
	return out
}

// foreign makes a random rule of somebody else.
func foreign(rnd *rand.Rand) flannel.Rule {
	r, err := flannel.ParseRule(fmt.Sprintf("-s 192.0.%d.%d/32 -j %s", rnd.IntN(3), rnd.IntN(250), []string{"ACCEPT", "RETURN", "KUBE-X", "MASQUERADE"}[rnd.IntN(4)]))
	if err != nil {
		panic(err)
	}
	return r
}

// mustPlan takes a plan that must not be refused.
func mustPlan(t testing.TB) func(Plan, []Refusal) Plan {
	return func(p Plan, refused []Refusal) Plan {
		t.Helper()
		if len(refused) > 0 {
			t.Fatalf("refused: %+v", refused)
		}
		return p
	}
}

func wantRefusal(t testing.TB, name string, refused []Refusal) {
	t.Helper()
	for _, r := range refused {
		if r.Name == name && r.Why != "" && r.Change != "" && !r.OK {
			return
		}
	}
	t.Errorf("want a refusal by %s, got %+v", name, refused)
}
