package remediate

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

var (
	masq4 = flannel.MasqChain(flannel.IptablesNft, flannel.IPv4)
	fwd4  = flannel.ForwardChain(flannel.IptablesNft, flannel.IPv4)
)

// damage does something random to Flannel's rules and puts rules of others anywhere in base chains.
func (b *bench) damage(rnd *rand.Rand, x flannel.Backend) {
	for range 1 + rnd.IntN(6) {
		f := flannel.Families[rnd.IntN(2)]
		id := []flannel.ChainID{flannel.MasqChain(x, f), flannel.ForwardChain(x, f)}[rnd.IntN(2)]
		b.edit(id, func(c *flannel.Chain) {
			n := len(c.Entries)
			switch rnd.IntN(4) {
			case 0:
				c.Entries = nil
			case 1:
				if n > 0 {
					i := rnd.IntN(n)
					c.Entries = slices.Delete(slices.Clone(c.Entries), i, i+1)
				}
			case 2:
				if n > 0 {
					c.Entries = append(slices.Clone(c.Entries), b.entry(c.Entries[rnd.IntN(n)].Rule))
				}
			case 3:
				c.Entries = slices.Clone(c.Entries)
				rnd.Shuffle(n, func(i, j int) { c.Entries[i], c.Entries[j] = c.Entries[j], c.Entries[i] })
			}
		})
		base := baseOf(id)
		b.edit(base, func(c *flannel.Chain) {
			switch rnd.IntN(3) {
			case 0:
				c.Entries = slices.DeleteFunc(slices.Clone(c.Entries), func(e flannel.Entry) bool { return jumps(e.Rule, id.Name) })
			case 1:
				if len(c.Entries) > 0 {
					c.Entries = append(slices.Clone(c.Entries), b.entry(c.Entries[rnd.IntN(len(c.Entries))].Rule))
				}
			}
		})
		b.insert(base, 0, foreign(rnd))
	}
}

func foreigners(lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !strings.Contains(l, "192.0.") })
}

func TestReapplyAlwaysEndsInTheExpectedSetAndTouchesNobodyElse(t *testing.T) {
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		x := []flannel.Backend{flannel.IptablesNft, flannel.IptablesLegacy}[seed%2]
		b := newBench().live().healthy(x, flannel.GenV0210)
		b.damage(rnd, x)
		start := b.text()
		p := mustPlan(t)(Reapply(b.Facts, Choice{}))
		b.carry(p)
		for _, f := range flannel.Families {
			for _, w := range flannel.Expected(networks, subnets, flannel.GenV0210, everything, x, f) {
				rs := b.Facts.Rules[x].Value
				if d := flannel.Compare(&rs, w); d.State != flannel.ChainOK {
					t.Fatalf("seed %d: %s is %s\n%s", seed, w.ID, d.State, strings.Join(b.text(), "\n"))
				}
			}
		}
		if got, want := foreigners(b.text()), foreigners(start); !slices.Equal(got, want) {
			t.Fatalf("seed %d: rules of others are\n%s\nwant\n%s", seed, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if again := mustPlan(t)(Reapply(b.Facts, Choice{})); !again.Empty() || again.ID != "" {
			t.Fatalf("seed %d: again: %s", seed, again.Title)
		}
	}
}

func TestUndoOfAnyPlanGivesTheStateOfBefore(t *testing.T) {
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		b := newBench()
		x := []flannel.Backend{flannel.IptablesNft, flannel.IptablesLegacy}[seed%2]
		b.healthy(x, flannel.GenV0210)
		plan := Purge
		if seed%3 == 0 {
			plan = Reapply
			b.live()
		} else {
			b.healthy(x, flannel.GenV0110).healthy(x, flannel.GenV0162).healthy(flannel.Nftables, flannel.GenV0250)
		}
		b.damage(rnd, x)
		start := b.text()
		p := mustPlan(t)(plan(b.Facts, Choice{}))
		if p.Empty() {
			continue
		}
		b.carry(p)
		if plan := b.text(); p.Kind == KindPurge && strings.Contains(strings.Join(plan, "\n"), "10.244.") {
			t.Fatalf("seed %d: left\n%s", seed, strings.Join(plan, "\n"))
		}
		r := roundTrip(t, NewReceipt(p, time.Unix(0, 0), Place{}))
		r.Result = ResultVerified
		b.carry(mustPlan(t)(Undo(r, b.Facts, Choice{})))
		if got := b.text(); !slices.Equal(got, start) {
			t.Fatalf("seed %d: got\n%s\nwant\n%s", seed, strings.Join(got, "\n"), strings.Join(start, "\n"))
		}
	}
}

// roundTrip sends a receipt through its file form.
func roundTrip(t *testing.T, r Receipt) (out Receipt) {
	t.Helper()
	data, err := json.Marshal(r)
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Edits) != len(out.Edits) || !reflect.DeepEqual(r.Tables, out.Tables) {
		t.Fatalf("lost on the way: %+v", out)
	}
	return out
}

func TestUnrelatedChangesLeaveThePlansIDAsItIs(t *testing.T) {
	b := newBench().healthy(flannel.IptablesNft, flannel.GenV0210)
	rnd := rand.New(rand.NewPCG(1, 1))
	id := mustPlan(t)(Purge(b.Facts, Choice{})).ID
	for range 50 {
		base := baseOf([]flannel.ChainID{masq4, fwd4}[rnd.IntN(2)])
		b.insert(base, rnd.IntN(2)-1, foreign(rnd))
		b.edit(base, func(c *flannel.Chain) {
			c.Base = &flannel.BaseChain{Type: "nat", Policy: []string{"accept", "drop"}[rnd.IntN(2)]}
			c.Entries = slices.Clone(c.Entries)
			c.Entries[0].Counter.Packets++
		})
		if got := mustPlan(t)(Purge(b.Facts, Choice{})).ID; got != id {
			t.Fatalf("it is %s, and was %s", got, id)
		}
	}
}

func TestRelatedChangesGiveThePlanAnotherID(t *testing.T) {
	for name, change := range map[string]func(*bench){
		"a rule gone": func(b *bench) { b.edit(masq4, func(c *flannel.Chain) { c.Entries = c.Entries[1:] }) },
		"a jump more": func(b *bench) {
			c := b.Facts.Rules[masq4.Backend].Value
			b.insert(baseOf(masq4), 0, c.Chain(baseOf(masq4)).Entries[0].Rule)
		},
		"a body rewritten": func(b *bench) {
			b.edit(masq4, func(c *flannel.Chain) { c.Entries = slices.Clone(c.Entries); c.Entries[0].Body++ })
		},
		"another backend": func(b *bench) { b.healthy(flannel.IptablesLegacy, flannel.GenV0210) },
	} {
		b := newBench().healthy(flannel.IptablesNft, flannel.GenV0210)
		id := mustPlan(t)(Purge(b.Facts, Choice{})).ID
		change(b)
		if got := mustPlan(t)(Purge(b.Facts, Choice{})).ID; got == id || got == "" {
			t.Errorf("%s: the ID is %s as before", name, got)
		}
	}
}

func TestEveryGuardRefusesWithItsSentence(t *testing.T) {
	cases := []struct {
		name    string
		guard   string
		plan    func(Facts, Choice) (Plan, []Refusal)
		prepare func(*bench)
		judge   bool // an override lets it pass
	}{
		{"purge while Flannel is live", GuardLive, Purge, func(b *bench) { b.live() }, false},
		{"purge while Flannel starts", GuardStarting, Purge, func(b *bench) { b.live(time.Second) }, false},
		{"purge where processes cannot be read", GuardUnknown, Purge, func(b *bench) {
			b.Procs = flannel.Miss[[]diagnose.Process](flannel.Unreadable, "permission denied", "/proc", b.At)
		}, false},
		{"purge where a backend cannot be read, and the others hold nothing", GuardReadable, Purge, func(b *bench) {
			b.Facts.Rules[flannel.IptablesNft] = flannel.Miss[flannel.Ruleset](flannel.Unreadable, "operation not permitted", "nf_tables", b.At)
			b.Links.Value = []diagnose.Link{{Name: "flannel.1", Type: "vxlan", Up: true}}
		}, false},
		{"purge a moment after Flannel stopped", GuardStopped, Purge, func(b *bench) { b.History.Stopped = b.At.Add(-time.Minute) }, false},
		{"purge a chain with a rule of others", GuardForeign, Purge, func(b *bench) { b.insert(masq4, 2, foreign(rand.New(rand.NewPCG(1, 1)))) }, false},
		{"purge a chain that a rule of others leads to", GuardForeign, Purge, func(b *bench) {
			r, _ := flannel.ParseRule("-s 192.0.2.0/24 -j FLANNEL-POSTRTG")
			b.insert(baseOf(masq4), 0, r)
		}, false},
		{"purge a table that iptables calls incompatible", GuardIncompatible, Purge, func(b *bench) {
			b.Incompatible = map[flannel.TableID]string{masq4.TableID(): "Table `nat' is incompatible, use 'nft' tool."}
		}, false},
		{"reapply without Flannel", GuardRunning, Reapply, func(*bench) {}, false},
		{"reapply while Flannel starts", GuardStarting, Reapply, func(b *bench) { b.live(time.Second) }, false},
		{"reapply where processes cannot be read", GuardUnknown, Reapply, func(b *bench) {
			b.Procs = flannel.Miss[[]diagnose.Process](flannel.Unreadable, "permission denied", "/proc", b.At)
		}, false},
		{"reapply without masquerading", GuardMasq, Reapply, func(b *bench) { b.live().Node.IPMasq = flannel.Know(false, "flag", b.At) }, false},
		{"reapply without networks", GuardNetworks, Reapply, func(b *bench) {
			b.live().Node.Networks = flannel.Miss[[]netip.Prefix](flannel.Absent, "no file", "subnet.env", b.At)
		}, false},
		{"reapply on a node of Calico", GuardOtherCNI, Reapply, func(b *bench) {
			b.live().Links.Value = []diagnose.Link{{Name: "vxlan.calico", Type: "vxlan", Up: true}}
		}, true},
		{"reapply of a chain that flaps", GuardFlapping, Reapply, func(b *bench) {
			b.live().edit(masq4, func(c *flannel.Chain) { c.Entries = nil })
			b.History.Flapping = map[flannel.ChainID]diagnose.Flap{masq4: {Times: 5, In: 5 * time.Minute, By: "iptables"}}
		}, true},
		{"reapply in two backends", GuardBackend, Reapply, func(b *bench) { b.live().healthy(flannel.IptablesLegacy, flannel.GenV0210) }, true},
		{"reapply with and without random ports, flags unknown", GuardFlags, Reapply, func(b *bench) {
			b.live().Node.RandomFully = flannel.Reading[bool]{}
			r, _ := flannel.ParseRule(`-s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE`)
			b.insert(masq4, 4, r)
		}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBench().healthy(flannel.IptablesNft, flannel.GenV0210)
			c.prepare(b)
			p, refused := c.plan(b.Facts, Choice{})
			wantRefusal(t, c.guard, refused)
			if !p.Empty() || p.ID != "" {
				t.Errorf("a plan beside the refusal: %s", p.Title)
			}
			_, refused = c.plan(b.Facts, Choice{Override: []string{c.guard}})
			if passes := len(refused) == 0; passes != c.judge {
				t.Errorf("overridden, it is refused by %+v", refused)
			}
		})
	}
}

func TestCanalIsNotAnotherPlugin(t *testing.T) {
	b := newBench().live().healthy(flannel.IptablesNft, flannel.GenV0210)
	b.Links.Value = []diagnose.Link{{Name: "cali1234", Type: "veth", Up: true}, {Name: "flannel.1", Type: "vxlan", Up: true}}
	b.edit(masq4, func(c *flannel.Chain) { c.Entries = nil })
	if p := mustPlan(t)(Reapply(b.Facts, Choice{})); p.Empty() {
		t.Error("no plan")
	}
}

func TestFlagsOfFlanneldExcludeRules(t *testing.T) {
	b := newBench().live().healthy(flannel.IptablesNft, flannel.GenV0210)
	b.Node.ForwardRules = flannel.Know(false, "flag", b.At)
	for _, id := range []flannel.ChainID{masq4, fwd4} {
		b.edit(id, func(c *flannel.Chain) { c.Entries = nil })
	}
	p := mustPlan(t)(Reapply(b.Facts, Choice{}))
	if slices.ContainsFunc(p.Edits, func(e Edit) bool { return e.Chain.Table == flannel.TableFilter }) || p.Empty() {
		t.Errorf("edits %+v", p.Edits)
	}
}

func TestResidueOfTheOtherDialectMayGoWhileFlannelRuns(t *testing.T) {
	b := newBench().live().healthy(flannel.IptablesNft, flannel.GenV0210).healthy(flannel.Nftables, flannel.GenV0250)
	b.Node.NFTables = flannel.Know(true, "net-conf.json", b.At)
	p := mustPlan(t)(Purge(b.Facts, Choice{}))
	for _, e := range p.Edits {
		if e.Chain.Backend != flannel.IptablesNft {
			t.Errorf("it touches %s", e.Chain)
		}
	}
	if p.Empty() || !strings.Contains(p.Title, "does not use") {
		t.Errorf("title %q", p.Title)
	}
}

func TestADialogShowsWhatRuns(t *testing.T) {
	b := newBench().live().healthy(flannel.IptablesNft, flannel.GenV0210)
	b.edit(masq4, func(c *flannel.Chain) { c.Entries = nil })
	d := mustPlan(t)(Reapply(b.Facts, Choice{})).Show("/var/lib/flanwatch", b.At.Wall)
	plus := 0
	for _, l := range d.Diff {
		if l.Mark == Add {
			plus++
		}
	}
	if plus != 6 || d.Word != "reapply" || d.Sends[0] != "one nf_tables batch, 6 messages, one generation" {
		t.Errorf("%+v", d)
	}
	if !strings.HasPrefix(d.Backup, "/var/lib/flanwatch/backup/20261130T120000.000Z-") || !strings.HasPrefix(d.Undo, "flanwatch undo 20261130T120000.000Z-") {
		t.Errorf("backup %s, undo %s", d.Backup, d.Undo)
	}
	if !strings.Contains(d.Script, "iptables-nft-restore --noflush") || !strings.Contains(d.Script, ":FLANNEL-POSTRTG - [0:0]") {
		t.Errorf("script\n%s", d.Script)
	}
}

func FuzzALineIsReadAsItWasWritten(f *testing.F) {
	for _, text := range []string{
		"-s 10.244.0.0/16 -j ACCEPT", `-m comment --comment "flanneld masq" -j FLANNEL-POSTRTG`, "-m statistic --mode random -j X", "", "\x00", "-m comment --comment \xff -j X",
	} {
		f.Add(text, byte(Remove), uint64(7))
	}
	f.Fuzz(func(t *testing.T, text string, mark byte, handle uint64) {
		r, err := flannel.ParseRule(text)
		if err != nil {
			return
		}
		l := Line{Mark: Mark(mark), Rule: r, Handle: handle, Raw: &Raw{Exprs: []byte(text)}}
		data, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		var back Line
		if err := json.Unmarshal(data, &back); err != nil {
			if l.Mark == Keep || l.Mark == Remove || l.Mark == Add {
				t.Fatalf("%v: %s", err, data)
			}
			return
		}
		if back.Rule.String() != l.Rule.String() || back.Handle != handle || back.Mark != l.Mark {
			t.Errorf("%+v came back as %+v", l, back)
		}
	})
}
