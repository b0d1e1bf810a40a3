package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
)

func k3s(args ...string) Process {
	return Process{
		PID: 900, Kind: ProcK3s, Comm: "k3s-server", Cmdline: append([]string{"/usr/local/bin/k3s"}, args...),
		Started: now.Add(-time.Hour),
	}
}

func TestWhetherFlannelRunsIsDecidedFromEvidence(t *testing.T) {
	procs := func(f Facts, list ...Process) Facts {
		f.Procs = flannel.Know(list, "/proc", now)
		return f
	}
	with, _ := today()
	bare := facts(prefixList(network4), prefixList(subnet4))
	nothing := bare
	nothing.Links = flannel.Know[[]Link](nil, "netlink", now)
	hidden := with
	hidden.Procs = flannel.Miss[[]Process](flannel.Unreadable, "needs CAP_SYS_PTRACE", "/proc", now)
	unreadRules := nothing.without()
	unreadRules.Rules = map[flannel.Backend]flannel.Reading[flannel.Ruleset]{
		flannel.IptablesNft: flannel.Know(ruleset(flannel.IptablesNft), "kernel", now),
	}
	noModule := nothing.without()
	noModule.Rules[flannel.IptablesLegacy] = flannel.Miss[flannel.Ruleset](flannel.Absent, "ip_tables is not loaded", "", now)
	starts := func(ages ...time.Duration) History {
		var h History
		for _, a := range ages {
			h.FlannelStarts = append(h.FlannelStarts, now.Add(-a))
		}
		return h
	}

	for _, c := range []struct {
		name     string
		facts    Facts
		history  History
		want     FlannelState
		evidence string
	}{
		{"a flanneld of an hour is live", with, History{}, FlannelLive, "flanneld[2210] runs since 11:04:31"},
		{"one of three seconds is starting", procs(with, flanneldOf(3*time.Second)), History{}, FlannelStarting, "runs since 12:04:28"},
		{"one beyond its repair period and five seconds is live", procs(with, flanneldOf(11*time.Second)), History{}, FlannelLive, "12:04:20"},
		{"the repair period that was seen counts", procs(with, flanneldOf(11*time.Second)), History{Resync: time.Minute}, FlannelStarting, ""},
		{"three starts in five minutes are a crash loop", with, starts(time.Second, time.Minute, 4*time.Minute), FlannelCrashing, "3 starts"},
		{"also while it is down", with.without(), starts(time.Second, time.Minute, 4*time.Minute), FlannelCrashing, ""},
		{"two starts are none", with, starts(time.Minute, 4*time.Minute), FlannelLive, ""},
		{"nor are old ones", with, starts(time.Minute, 4*time.Minute, 6*time.Minute), FlannelLive, ""},
		{"k3s counts", procs(with, k3s("server")), History{}, FlannelLive, "k3s-server[900]"},
		{"k3s without Flannel does not", procs(nothing, k3s("server", "--flannel-backend=none")), History{}, FlannelAbsent, "no flanneld or k3s"},
		{"nor does it with the option in two words", procs(with, k3s("server", "--flannel-backend", "none")), History{}, FlannelLeftover, ""},
		{"rules without a process are left over", with.without(), History{}, FlannelLeftover, "chains of Flannel: 2"},
		{"an interface alone is left over", bare.without(), History{}, FlannelLeftover, "interface flannel.1 (vxlan) is up"},
		{"nothing at all is absent", nothing.without(), History{}, FlannelAbsent, "nothing of Flannel"},
		{"a backend that the kernel does not have holds nothing", noModule, History{}, FlannelAbsent, "ip_tables is not loaded"},
		{"a hidden process list is unknown", hidden, History{}, FlannelUnknown, "needs CAP_SYS_PTRACE"},
		{"rules that nobody read are not absent", unreadRules, History{}, FlannelUnknown, "iptables-legacy: not looked at"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := Assess(c.facts, c.history)
			if a.Flannel.State != c.want {
				t.Errorf("state %s, want %s", a.Flannel.State, c.want)
			}
			if !strings.Contains(strings.Join(a.Flannel.Evidence, "\n"), c.evidence) {
				t.Errorf("no %q in evidence %q", c.evidence, a.Flannel.Evidence)
			}
		})
	}
}

func TestNothingOfFlannelGivesNoFinding(t *testing.T) {
	f := facts(nil, nil).without()
	f.Node.Networks = flannel.Miss[[]netip.Prefix](flannel.Absent, "no source tells it", "", now)
	f.Links = flannel.Know([]Link{{Name: "eth0", Type: "veth", Up: true}}, "netlink", now)
	a := Assess(f, History{})
	wantIDs(t, a)
	if len(a.Chains) > 0 || a.Flannel.Dialect != DialectNone {
		t.Error(told(a))
	}
	for _, want := range []string{"no flanneld or k3s runs", "iptables-legacy: nothing", "nftables: nothing", "no source tells it", "no interface"} {
		if !strings.Contains(strings.Join(a.Flannel.Evidence, "\n"), want) {
			t.Errorf("no %q in evidence %q", want, a.Flannel.Evidence)
		}
	}
}

func TestTheSameFactsGiveTheSameVerdict(t *testing.T) {
	for _, c := range captures(t) {
		f := c.facts(t)
		if a, b := told(Assess(f, History{})), told(Assess(f, History{})); a != b {
			t.Errorf("%s: once\n%s\nthen\n%s", c.names[0], a, b)
		}
	}
}

func TestRunningCapturesAreHealthyAndNothingElseIs(t *testing.T) {
	for _, c := range captures(t) {
		f := c.facts(t)
		f.Node.NFTables = flannel.Know(c.sections["net-conf"] != "", "net-conf.json", now)
		a := Assess(f, History{})
		for _, name := range c.names {
			_, moment, _ := strings.Cut(name, "/")
			switch {
			case slices.Contains(running, moment):
				if len(a.Findings) > 0 {
					t.Errorf("%s:\n%s", name, told(a))
				}
			case moment == "05-resync-after-table-delete":
				wantIDs(t, a, "critical table-missing")
			}
		}
	}
}

// running are the moments at which a flanneld of any version had everything in order.
var running = []string{
	"01-running", "03-after-sigterm-restart", "04-after-sigkill-restarts", "05-resync-end", "1-running", "running",
	"1-iptables", "1-old-network", "2-new-network", "2-after",
}

func TestHistoryTellsTheDialectWhenNothingIsLeft(t *testing.T) {
	f := facts(prefixList(network4), prefixList(subnet4))
	for _, c := range []struct {
		name   string
		before Flannel
		want   string
	}{
		{"no memory", Flannel{}, "critical chain-missing"},
		{"native before", Flannel{Dialect: DialectNftables, Backends: []flannel.Backend{flannel.Nftables}}, "critical table-missing"},
		{"legacy before", Flannel{Dialect: DialectIptables, Backends: []flannel.Backend{flannel.IptablesLegacy}}, "critical chain-missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := Assess(f, History{Flannel: c.before})
			wantIDs(t, a, c.want)
			if len(c.before.Backends) > 0 && a.Chains[0].ID.Backend != c.before.Backends[0] {
				t.Errorf("expected in %s, want %s", a.Chains[0].ID.Backend, c.before.Backends[0])
			}
			if c.before.Dialect == "" && a.Findings[0].Refused == "" {
				t.Error("a repair is offered although nothing tells the mode")
			}
		})
	}
}

func TestAFlanneldThatStoppedWhileWeWatchedIsMissed(t *testing.T) {
	f, rs := today()
	rs.Chain(masq4).Entries = nil
	rs.Chain(baseOf(masq4)).Entries = nil
	f.set(flannel.IptablesNft, *rs)
	f = f.without()

	a := Assess(f, History{Stopped: now.Add(-20 * time.Second)})
	wantIDs(t, a, "critical chain-empty")
	if !strings.Contains(strings.Join(a.Flannel.Evidence, "\n"), "stopped at 12:04:11") {
		t.Error(a.Flannel.Evidence)
	}
	wantIDs(t, Assess(f, History{Stopped: now.Add(-time.Hour)}), "warning leftover-chain", "info leftover-chain")
}
