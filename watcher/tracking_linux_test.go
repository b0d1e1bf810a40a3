package watcher_test

import (
	"testing"

	"flanwatch/conntrack"
	"flanwatch/watcher"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/lab/labtest"
)

// usesIn reads a namespace once.
func usesIn(t *testing.T, n *labtest.Namespace) [2]conntrack.Use {
	t.Helper()
	w, err := watcher.Open(optionsOf(n))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var h conntrack.Health
	w.Once(func(o *incident.Observation) {
		if o.Table != nil {
			h = o.Table.Value
		}
	})
	return [2]conntrack.Use{h.Use4, h.Use6}
}

func TestWhetherAnyRuleTracksConnectionsIsReadOffTheRulesOfEveryBackend(t *testing.T) {
	const none, some = conntrack.UseNone, conntrack.UseRules
	for name, c := range map[string]struct {
		script string
		want   [2]conntrack.Use
	}{
		"no rule":                         {"iptables-nft -L -n", [2]conntrack.Use{none, none}},
		"rules that do without":           {"iptables-nft -A FORWARD -p tcp -m comment --comment conntrack -j ACCEPT", [2]conntrack.Use{none, none}},
		"no tracking is asked for":        {"iptables-nft -t raw -A PREROUTING -j CT --notrack", [2]conntrack.Use{some, none}},
		"a state, of iptables-nft":        {"iptables-nft -A INPUT -m state --state INVALID -j DROP", [2]conntrack.Use{some, none}},
		"masquerade, of ip6tables-nft":    {"ip6tables-nft -t nat -A POSTROUTING -j MASQUERADE", [2]conntrack.Use{none, some}},
		"both families":                   {"iptables-nft -A INPUT -m conntrack --ctstate NEW; ip6tables-nft -t nat -A PREROUTING -p tcp --dport 9 -j REDIRECT", [2]conntrack.Use{some, some}},
		"a native table of family inet":   {"nft 'add table inet x; add chain inet x c; add rule inet x c ct state invalid drop'", [2]conntrack.Use{some, some}},
		"native masquerade":               {"nft 'add table ip x; add chain ip x c { type nat hook postrouting priority 100; }; add rule ip x c masquerade'", [2]conntrack.Use{some, none}},
		"a rule of iptables-legacy":       {"iptables-legacy -A FORWARD -m conntrack --ctstate INVALID -j DROP", [2]conntrack.Use{some, none}},
		"rules of legacy that do without": {"iptables-legacy -A FORWARD -s 10.0.0.0/8 -j ACCEPT", [2]conntrack.Use{none, none}},
		"translation of legacy, IPv6":     {"ip6tables-legacy -t nat -A POSTROUTING -j MASQUERADE", [2]conntrack.Use{none, some}},
	} {
		t.Run(name, func(t *testing.T) {
			n := labtest.New(t)
			n.Shell(c.script)
			if got := usesIn(t, n); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}
