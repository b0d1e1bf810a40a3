package watcher_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/lab/labtest"
)

const mangle = `*mangle
:FORWARD DROP [3:333]
:POSTROUTING ACCEPT [5:500]
:EXTRA - [0:0]
[9:900] -A POSTROUTING -s 10.1.0.0/16 -j EXTRA
[8:800] -A EXTRA -d 10.2.0.0/16 -j DROP
COMMIT
`

var mangleChain = flannel.ChainID{Backend: flannel.IptablesNft, Family: flannel.IPv4, Table: "mangle", Name: "POSTROUTING"}

func isLook(o incident.Observation) bool { return o.Bases != nil || o.Opened != nil }

func openedAs(id flannel.ChainID, s flannel.ReadState) func(incident.Observation) bool {
	return func(o incident.Observation) bool {
		return o.Opened != nil && o.Opened.ID == id && o.Opened.Chain.State == s
	}
}

func basesOf(b flannel.Backend, s flannel.ReadState) func(incident.Observation) bool {
	return func(o incident.Observation) bool {
		return o.Bases != nil && o.Bases.Backend == b && o.Bases.Bases.State == s
	}
}

func TestNothingOfOthersIsReadWhileNobodyLooks(t *testing.T) {
	n := labtest.New(t)
	n.Feed(mangle, "iptables-nft-restore", "-c")
	n.Feed(mangle, "iptables-legacy-restore", "-c")
	o := optionsOf(n)
	o.Interval = 100 * time.Millisecond
	w, r := start(t, o)
	r.find(t, "a first reading", func(o incident.Observation) bool { return o.Rules != nil })
	time.Sleep(300 * time.Millisecond)
	if got := r.count(isLook); got != 0 {
		t.Errorf("%d readings before anybody looked", got)
	}
	w.Look(true, &mangleChain)
	r.find(t, "the chain", openedAs(mangleChain, flannel.Known))
	w.Look(false, nil)
	r.find(t, "its end", openedAs(mangleChain, flannel.Unread))
	for _, b := range flannel.Backends {
		r.find(t, "the end of "+b.String(), basesOf(b, flannel.Unread))
	}
	r.forget()
	n.Must("iptables-nft -t mangle -A POSTROUTING -j ACCEPT")
	time.Sleep(500 * time.Millisecond)
	if got := r.count(isLook); got != 0 {
		t.Errorf("%d readings after the look", got)
	}
}

func TestALookShowsTheBaseChainsOfEveryBackend(t *testing.T) {
	n := labtest.New(t)
	n.Feed(mangle, "iptables-nft-restore", "-c")
	n.Feed(mangle, "iptables-legacy-restore", "-c")
	n.Feed("table inet guard {\nchain late {\ntype filter hook postrouting priority 300; policy drop;\n}\n}\n", "nft", "-f", "-")
	w, r := start(t, optionsOf(n))
	w.Look(true, nil)
	for b, want := range map[flannel.Backend]string{
		flannel.IptablesNft:    "ip mangle FORWARD drop 0 3:333 true, ip mangle POSTROUTING accept 1 5:500 true",
		flannel.IptablesLegacy: "ip mangle FORWARD drop 0 3:333 true, ip mangle POSTROUTING accept 1 5:500 true",
		flannel.Nftables:       "ip inet guard late drop 0 0:0 false, ip6 inet guard late drop 0 0:0 false",
	} {
		read := r.find(t, b.String(), basesOf(b, flannel.Known))
		var got []string
		for _, c := range read.Bases.Bases.Value.Chains {
			if c.ID.Table == "mangle" && c.Hook != "forward" && c.Hook != "postrouting" {
				continue
			}
			got = append(got, fmt.Sprintf("%s %s %s %s %d %d:%d %v", c.ID.Family, c.ID.Table, c.ID.Name, c.Policy, c.Rules,
				c.Counter.Packets, c.Counter.Bytes, c.Counted))
		}
		if s := strings.Join(got, ", "); s != want {
			t.Errorf("%s:\n%s\nwant\n%s", b, s, want)
		}
	}
	if read := r.count(func(o incident.Observation) bool { return o.Opened != nil }); read != 0 {
		t.Errorf("%d readings of a chain that nobody opened", read)
	}
}

func TestALookFollowsTheRules(t *testing.T) {
	n := labtest.New(t)
	n.Feed(mangle, "iptables-nft-restore", "-c")
	w, r := start(t, optionsOf(n))
	rules := func(want ...string) func(incident.Observation) bool {
		return func(o incident.Observation) bool {
			if o.Opened == nil || o.Opened.Chain.State != flannel.Known {
				return false
			}
			var got []string
			for _, e := range o.Opened.Chain.Value.Entries {
				got = append(got, fmt.Sprintf("[%d:%d] %s", e.Counter.Packets, e.Counter.Bytes, e.Rule))
			}
			return slices.Equal(got, want)
		}
	}
	time.Sleep(200 * time.Millisecond) // until it listens
	w.Look(true, &mangleChain)
	r.find(t, "a rule", rules("[9:900] -s 10.1.0.0/16 -j EXTRA"))
	extra := mangleChain
	extra.Name = "EXTRA"
	w.Look(true, &extra)
	r.find(t, "the end of the first", openedAs(mangleChain, flannel.Unread))
	r.find(t, "the rule of the second", rules("[8:800] -d 10.2.0.0/16 -j DROP"))
	n.Must("iptables-nft -t mangle -D POSTROUTING -s 10.1.0.0/16 -j EXTRA")
	n.Must("iptables-nft -t mangle -F EXTRA")
	r.find(t, "no rules", rules())
	n.Must("iptables-nft -t mangle -X EXTRA")
	r.find(t, "no chain", openedAs(extra, flannel.Absent))
	none := basesOf(flannel.IptablesNft, flannel.Known)
	r.find(t, "a base chain without its rule", func(o incident.Observation) bool {
		return none(o) && slices.ContainsFunc(o.Bases.Bases.Value.Chains, func(c incident.Base) bool {
			return c.ID == mangleChain && c.Rules == 0
		})
	})
}
