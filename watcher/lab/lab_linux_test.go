package lab

import (
	"context"
	"encoding/binary"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	Child()
	if os.Getenv(outerMark) != "" {
		os.Exit(playInside())
	}
	os.Exit(m.Run())
}

func startScenario(t *testing.T, name string) *Lab {
	t.Helper()
	needRoot(t)
	s, err := LoadScenario(name)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Start(context.Background(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// inspect opens the ruleset of the lab's node.
func inspect(t *testing.T, l *Lab) *ruleset {
	t.Helper()
	var s *ruleset
	err := l.Node.Do(func() (err error) {
		s, err = openRuleset()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

func TestHealthyNodeTranslatesWhatLeavesTheCluster(t *testing.T) {
	l := startScenario(t, "healthy")
	w := l.network
	expectSources(t, []arrival{
		{"pod to outside, IPv4", w.podA, w.outside, outsideV4, nodeV4},
		{"pod to outside, IPv6", w.podA, w.outside, outsideV6, nodeV6},
		{"pod to remote pod, IPv4", w.podA, w.remote, remoteV4, podAV4},
		{"pod to remote pod, IPv6", w.podB, w.remote, remoteV6, podBV6},
		{"remote pod to pod, IPv4", w.remote, w.podB, podBV4, remoteV4},
		{"remote pod to pod, IPv6", w.remote, w.podA, podAV6, remoteV6},
	})
	if err := l.runProgram("", []string{"bash", "-c", "iptables -t nat -F FLANNEL-POSTRTG"}); err != nil {
		t.Fatal(err)
	}
	expectSources(t, []arrival{{"pod to outside while the chain is empty", w.podA, w.outside, outsideV4, podAV4}})
}

func TestPodsOfACalicoBlockAreTranslatedByTheLeftoverChain(t *testing.T) {
	w := startScenario(t, "calico-leftover").network
	expectSources(t, []arrival{
		{"pod to remote pod, IPv4", w.podA, w.remote, remoteV4, "10.244.116.64"},
		{"pod to remote pod, IPv6", w.podB, w.remote, remoteV6, "fd00:244:7480::40"},
		{"remote pod to pod, IPv4", w.remote, w.podA, calicoAV4, "10.244.1.1"},
		{"remote pod to pod, IPv6", w.remote, w.podB, calicoBV6, "fd00:244:0:1::1"},
		{"pod to outside, IPv4", w.podB, w.outside, outsideV4, nodeV4},
	})
}

func TestTrafficMovesTheCountersOfMostRules(t *testing.T) {
	needTool(t, "iptables-nft")
	l := startScenario(t, "healthy")
	time.Sleep(1500 * time.Millisecond)
	out, err := l.Node.Output(exec.Command("sh", "-c", "iptables-nft-save -c; ip6tables-nft-save -c"))
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range []struct{ network, subnet, multicast string }{
		{"10.244.0.0/16", "10.244.1.0/24", "224.0.0.0/4"}, {"fd00:244::/48", "fd00:244:0:1::/64", "ff00::/8"},
	} {
		for _, rule := range []string{
			"-A FLANNEL-POSTRTG -s " + family.subnet + " -d " + family.network,
			"-A FLANNEL-POSTRTG -s " + family.network + " -d " + family.subnet,
			"-A FLANNEL-POSTRTG -s " + family.network + " ! -d " + family.multicast,
			"-A FLANNEL-FWD -s " + family.network,
		} {
			if !strings.Contains(out, rule) || strings.Contains(out, "[0:0] "+rule) {
				t.Errorf("the rule does not count: %s\n%s", rule, out)
			}
		}
	}
}

func TestIptablesFindsEveryRuleOfTheLab(t *testing.T) {
	l := startScenario(t, "healthy")
	needTool(t, "iptables-nft")
	d := daemon{options: flannel.Options{Masq: true, Forward: true, RandomFully: true}}
	for _, f := range flannel.Families {
		tool := strings.Replace(toolOf(f), "tables", "tables-nft", 1)
		for _, table := range []string{flannel.TableNat, flannel.TableFilter} {
			for _, w := range d.wanted(f, table) {
				for _, c := range specs(w) {
					args := append([]string{"-t", table, "-C", c.chain}, ruleWords(c.rule)...)
					if _, err := l.Node.Run(tool, args...); err != nil {
						t.Error(err)
					}
				}
			}
		}
		for _, args := range [][]string{{"-t", "nat", "-S"}, {"-S"}} {
			out, err := l.Node.Run(tool, args...)
			if err != nil || strings.Contains(out, "incompatible") {
				t.Errorf("%s does not read the lab's tables: %v\n%s", tool, err, out)
			}
		}
	}
}

func TestTheKernelTellsWhoWrote(t *testing.T) {
	l := startScenario(t, "healthy")
	commits := watchCommits(t, l.Node)
	cmd, err := l.Node.Program("iptables", "-t", "nat", "-F", "FLANNEL-POSTRTG")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Node.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := explain(cmd, cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	if got := commits(1); got[0] != (commit{uint32(cmd.Process.Pid), "iptables"}) {
		t.Errorf("the flush is of %v, want iptables, %d", got[0], cmd.Process.Pid)
	}
	// Within the next period flanneld repairs the one chain.
	if got := commits(1); got[0].program != "iptables-restor" {
		t.Errorf("the repair is of %v, want iptables-restor", got[0])
	}
	if err := l.endFlanneld(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := l.startFlanneld("v0.28.10", "iptables", []string{"/opt/bin/flanneld", "--ip-masq", "--kube-subnet-mgr"}); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range commits(8) {
		names = append(names, c.program)
	}
	want := []string{
		"iptables", "iptables-restor", "ip6tables", "ip6tables-resto", "iptables", "iptables-restor", "ip6tables", "ip6tables-resto",
	}
	if !slices.Equal(names, want) {
		t.Errorf("a start is written by %v, want %v", names, want)
	}
}

// commit is who announced a generation.
type commit struct {
	pid     uint32
	program string
}

// watchCommits listens to nf_tables from now on. What it gives waits for the next n commits.
func watchCommits(t *testing.T, n *Namespace) func(n int) []commit {
	t.Helper()
	var conn *netlink.Conn
	err := n.Do(func() (err error) {
		if conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
			return err
		}
		return conn.JoinGroup(unix.NFNLGRP_NFTABLES)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return func(n int) []commit {
		t.Helper()
		var found []commit
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		for len(found) < n {
			messages, err := conn.Receive()
			if err != nil {
				t.Fatalf("after %v: %v", found, err)
			}
			for _, m := range messages {
				if m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN {
					found = append(found, decodeCommit(t, m.Data[4:]))
				}
			}
		}
		return found
	}
}

func decodeCommit(t *testing.T, data []byte) (c commit) {
	t.Helper()
	attrs, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		t.Fatal(err)
	}
	attrs.ByteOrder = binary.BigEndian
	for attrs.Next() {
		switch attrs.Type() {
		case unix.NFTA_GEN_PROC_PID:
			c.pid = attrs.Uint32()
		case unix.NFTA_GEN_PROC_NAME:
			c.program = attrs.String()
		}
	}
	return c
}

func TestEveryScenarioLeavesWhatItSays(t *testing.T) {
	if testing.Short() {
		t.Skip("plays every story in full")
	}
	labs := map[string]*Lab{}
	for _, name := range Scenarios() {
		if name != Tour { // which plays the others' stories
			labs[name] = startScenario(t, name) // and plays on while the next ones are started
		}
	}
	for name, l := range labs {
		t.Run(name, func(t *testing.T) {
			if err := l.Wait(); err != nil {
				t.Fatal(err)
			}
			expectEnd(t, l, name)
		})
	}
}

func expectEnd(t *testing.T, l *Lab, name string) {
	t.Helper()
	s, err := LoadScenario(name)
	if err != nil {
		t.Fatal(err)
	}
	rules := inspect(t, l)
	if len(s.leaves) == 0 {
		t.Error("the scenario does not say what it leaves")
	}
	for id, want := range s.leaves {
		present, err := rules.has(id)
		if err != nil {
			t.Fatal(err)
		}
		found, err := rules.rules(id)
		if err != nil {
			t.Fatal(err)
		}
		got := len(found)
		if !present {
			got = -1
		}
		if got != want {
			t.Errorf("%s has %d rules at the end, want %d", id, got, want)
		}
	}
}
