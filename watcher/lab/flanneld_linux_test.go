package lab

import (
	"os"
	"strings"
	"testing"

	"flanwatch/flannel"

	"golang.org/x/sys/unix"
)

// count gives how many rules Flannel's chains have, in the order masq v4, v6, forward v4, v6; -1 where one is absent.
func count(t *testing.T, n *Namespace, b flannel.Backend) (counts [4]int) {
	t.Helper()
	err := n.Do(func() error {
		s, err := openRuleset()
		if err != nil {
			return err
		}
		defer s.close()
		for i, f := range flannel.Families {
			for j, id := range []flannel.ChainID{flannel.MasqChain(b, f), flannel.ForwardChain(b, f)} {
				present, err := s.has(id)
				if err != nil {
					return err
				}
				rules, err := s.rules(id)
				if err != nil {
					return err
				}
				counts[i+2*j] = len(rules)
				if !present {
					counts[i+2*j] = -1
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return counts
}

// options are what the usual flags decide.
var usual = flannel.Options{Masq: true, Forward: true, RandomFully: true}

func expectRules(t *testing.T, n *Namespace, b flannel.Backend, when string, want [4]int) {
	t.Helper()
	if got := count(t, n, b); got != want {
		t.Errorf("%s %s: %v rules, want %v", b, when, got, want)
	}
}

func TestADaemonRepairsWhatIsMissing(t *testing.T) {
	n := testNamespace(t)
	d := daemon{options: usual}
	do := func(line string) {
		t.Helper()
		args, err := shellWords(line)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Do(func() error { return iptables("iptables", args) }); err != nil {
			t.Fatal(err)
		}
	}
	full := [4]int{6, 6, 2, 2}
	if err := n.Do(d.setUp); err != nil {
		t.Fatal(err)
	}
	expectRules(t, n, flannel.IptablesNft, "after the start", full)
	healthy := dump(t, n, "iptables-nft")
	for _, damage := range [][]string{
		{"-t nat -F FLANNEL-POSTRTG"},
		{`-t nat -D POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG`},
		{`-D FLANNEL-FWD -d 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT`},
		{"-F FORWARD", "-F FLANNEL-FWD", "-X FLANNEL-FWD"},
		nil,
	} {
		for _, line := range damage {
			do(line)
		}
		if err := n.Do(func() error { return d.eachTable(d.repair) }); err != nil {
			t.Error(err)
		}
		if got := dump(t, n, "iptables-nft"); got != healthy {
			t.Errorf("after %v and a repair there is\n%s\nwant\n%s", damage, got, healthy)
		}
	}
}

func TestAnOldDaemonLeavesItsChainsEmptyAndANewOneLeavesItsRules(t *testing.T) {
	for _, tt := range []struct {
		name     string
		teardown bool
		want     [4]int
		jumps    bool
	}{
		{"v0.26.5", true, [4]int{}, false},
		{"v0.28.10", false, [4]int{6, 6, 2, 2}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := testNamespace(t)
			d := daemon{options: usual, teardown: tt.teardown}
			stop := make(chan os.Signal, 1)
			stop <- unix.SIGTERM
			for range 2 {
				if err := n.Do(d.setUp); err != nil {
					t.Fatal(err)
				}
			}
			if err := n.Do(func() error { return d.keep(stop) }); err != nil {
				t.Fatal(err)
			}
			expectRules(t, n, flannel.IptablesNft, "at the end", tt.want)
			if got := strings.Contains(dump(t, n, "ip6tables-nft"), "-j FLANNEL-FWD"); got != tt.jumps {
				t.Errorf("jumps are there: %t, want %t", got, tt.jumps)
			}
		})
	}
}

func TestASwitchOfModeLeavesWhatFlannelLeaves(t *testing.T) {
	n := testNamespace(t)
	iptablesMode, nativeMode := daemon{options: usual}, daemon{options: usual, native: true}
	for _, step := range []struct {
		when         string
		d            daemon
		rules, other [4]int
	}{
		{"in iptables mode", iptablesMode, [4]int{6, 6, 2, 2}, [4]int{-1, -1, -1, -1}},
		{"in nftables mode", nativeMode, [4]int{0, 0, 2, 2}, [4]int{6, 6, 2, 2}},
		{"back in iptables mode", iptablesMode, [4]int{6, 6, 2, 2}, [4]int{-1, -1, -1, -1}},
	} {
		if err := n.Do(step.d.setUp); err != nil {
			t.Fatal(err)
		}
		expectRules(t, n, flannel.IptablesNft, step.when, step.rules)
		expectRules(t, n, flannel.Nftables, step.when, step.other)
	}
	old := daemon{options: usual, native: true, teardown: true}
	if err := n.Do(func() error { return old.setUp() }); err != nil {
		t.Fatal(err)
	}
	if err := n.Do(old.tearDown); err != nil {
		t.Fatal(err)
	}
	expectRules(t, n, flannel.Nftables, "after the end of v0.26.5", [4]int{-1, -1, -1, -1})
}

func TestTheContainerOfADaemonHoldsNothingOfTheMachine(t *testing.T) {
	n := testNamespace(t)
	d := daemon{apart: true}
	if err := n.Do(d.moveIn); err != nil {
		t.Fatal(err)
	}
	if err := n.Do(writeSubnetEnv); err != nil {
		t.Fatal(err)
	}
	out, err := n.Run("find", "/etc", "/run/flannel", "-type", "f")
	if want := "/etc/kube-flannel/net-conf.json\n/run/flannel/subnet.env\n"; err != nil || out != want {
		t.Errorf("its files are %q, %v, want %q", out, err, want)
	}
	if _, err := os.Stat("/run/flannel/subnet.env"); err == nil {
		t.Error("the machine has got a subnet.env")
	}
	text, err := n.Run("cat", "/run/flannel/subnet.env")
	for _, want := range []string{"FLANNEL_SUBNET=10.244.1.1/24\n", "FLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64\n", "FLANNEL_IPMASQ=true\n"} {
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("subnet.env is %q, %v, lacks %q", text, err, want)
		}
	}
}
