package lab

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"flanwatch/flannel"
)

func testNamespace(t *testing.T) *Namespace {
	t.Helper()
	needRoot(t)
	n, err := NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// dump gives what iptables-nft-save or ip6tables-nft-save prints, without times and counters.
func dump(t *testing.T, n *Namespace, tool string) string {
	t.Helper()
	out, err := n.Run(tool + "-save")
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`(?m)^#.*\n|\[[0-9:]+\]`).ReplaceAllString(out, "")
}

// The lab's iptables and the real one carry out the same commands, agree on which succeed, and end with the same tables.
func TestTheLabsIptablesDoesAsTheRealOne(t *testing.T) {
	needTool(t, "iptables-nft")
	ours, real := testNamespace(t), testNamespace(t)
	for _, line := range []string{
		`-t nat -N FLANNEL-POSTRTG --wait`,
		`-t nat -N FLANNEL-POSTRTG`,
		`-t nat -A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG -w`,
		`-t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully`,
		`-t nat -I FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN`,
		`-t nat -I FLANNEL-POSTRTG 2 -s 10.244.1.0/24 -d 10.244.0.0/16 -j RETURN`,
		`-t nat -I FLANNEL-POSTRTG 9 -s 10.1.0.0/16 -j RETURN`,
		`-t nat -C FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -j RETURN`,
		`-t nat -C FLANNEL-POSTRTG -s 10.244.2.0/24 -d 10.244.0.0/16 -j RETURN`,
		`-t nat -D FLANNEL-POSTRTG -s 10.244.2.0/24 -d 10.244.0.0/16 -j RETURN`,
		`-t nat -D FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -j RETURN`,
		`-t nat -X FLANNEL-POSTRTG`,
		`-A FORWARD -m conntrack --ctstate INVALID -j DROP`,
		`-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`,
		`-A FORWARD -i eth0 -o cni0 -p tcp -j ACCEPT`,
		`-N EMPTY`,
		`-X EMPTY`,
		`-X EMPTY`,
		`-F FORWARD-NOT-THERE`,
		`-N FULL`,
		`-A FULL -s 10.0.0.1/32 -j DROP`,
		`-F FULL`,
	} {
		args, err := shellWords(line)
		if err != nil {
			t.Fatal(err)
		}
		got := ours.Do(func() error { return iptables("iptables", args) })
		_, want := real.Run("iptables-nft", args...)
		if (got == nil) != (want == nil) {
			t.Errorf("%s: ours %v, the real one %v", line, got, want)
		}
	}
	// The real one of this version makes only the built-in chains that it needs; which ones is no matter.
	builtIn := regexp.MustCompile(`(?m)^:(PREROUTING|INPUT|OUTPUT|POSTROUTING|FORWARD) .*\n`)
	got, want := builtIn.ReplaceAllString(dump(t, ours, "iptables-nft"), ""), builtIn.ReplaceAllString(dump(t, real, "iptables-nft"), "")
	if got != want {
		t.Errorf("ours ends with\n%s\nthe real one with\n%s", got, want)
	}
	if err := ours.Do(func() error { return iptables("iptables", []string{"-t", "nat", "-F"}) }); err != nil {
		t.Error(err)
	}
	if got := dump(t, ours, "iptables-nft"); strings.Contains(got, "-A POSTROUTING") || strings.Contains(got, "-A FLANNEL-POSTRTG") {
		t.Errorf("rules are left in the flushed table:\n%s", got)
	}
}

func TestWhatTheLabsIptablesCannotDoIsRefused(t *testing.T) {
	n := testNamespace(t)
	for _, line := range []string{"", "-t", "-t mangle -N X", "-L", `-A FORWARD -m set --match-set x src -j DROP`} {
		args, err := shellWords(line)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Do(func() error { return iptables("iptables", args) }); err == nil {
			t.Errorf("%q is carried out", line)
		}
	}
}

func TestAFaultInRestoresInputIsNamedWithItsLine(t *testing.T) {
	n := testNamespace(t)
	for _, tt := range []struct{ name, text, want string }{
		{"a rule outside a table", "-A FORWARD -j DROP\n", "line 1: -A FORWARD -j DROP: no table is open"},
		{"no COMMIT", "*nat\n:X - [0:0]\n", "COMMIT expected"},
		{"a rule that is not there", "*nat\n-D POSTROUTING -j RETURN\nCOMMIT\n", "line 2: -D POSTROUTING -j RETURN: bad rule"},
		{"a chain that is not there", "# x\n\n*nat\n-A NOWHERE -j RETURN\nCOMMIT\n", "line 5: COMMIT"},
		{"an open quote", "*nat\n-A POSTROUTING -m comment --comment \"x\nCOMMIT\n", "line 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := n.Do(func() error {
				s, err := openRuleset()
				if err != nil {
					return err
				}
				defer s.close()
				return s.restore(strings.NewReader(tt.text), flannel.IPv4)
			})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want %q", err, tt.want)
			}
		})
	}
}

func TestCommandsOfAShellAreSplitAtBlanksOutsideQuotes(t *testing.T) {
	got, err := shellWords(`  iptables -t nat --comment "flanneld masq"  ""`)
	want := "iptables|-t|nat|--comment|flanneld masq|"
	if err != nil || strings.Join(got, "|") != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if _, err := shellWords(`x "y`); err == nil {
		t.Error("an open quote is taken")
	}
}

func TestAShellRunsItsCommandsAndStopsAtTheFirstThatFails(t *testing.T) {
	n := testNamespace(t)
	err := n.Do(func() error { return shell("bash", []string{"-c", "iptables -N A; ; iptables -N A; iptables -N B"}) })
	if err == nil || !strings.Contains(err.Error(), "chain already exists") {
		t.Errorf("error is %v", err)
	}
	if got := dump(t, n, "iptables-nft"); !strings.Contains(got, ":A ") || strings.Contains(got, ":B ") {
		t.Errorf("it left\n%s", got)
	}
	if err := n.Do(func() error { return shell("bash", []string{"-x"}) }); err == nil {
		t.Error("other arguments are taken")
	}
}

func TestTheLabsNftDeletesAndFlushes(t *testing.T) {
	n := testNamespace(t)
	do := func(line string) error { return n.Do(func() error { return nft("nft", strings.Fields(line)) }) }
	d := daemon{native: true, options: flannel.Options{Masq: true, Forward: true, RandomFully: true}}
	if err := n.Do(d.setUp); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		line string
		want map[string]bool // what nft lists afterwards
	}{
		{"flush chain ip flannel-ipv4 postrtg", map[string]bool{"chain postrtg": true, "masquerade": true, "ip saddr 10.244.1.0/24": false}},
		{"delete table ip flannel-ipv4", map[string]bool{"flannel-ipv4": false, "flannel-ipv6": true}},
		{"flush ruleset", map[string]bool{"table": false}},
	} {
		if err := do(tt.line); err != nil {
			t.Errorf("%s: %v", tt.line, err)
		}
		listing, err := n.Run("nft", "list", "ruleset")
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range tt.want {
			if got := strings.Contains(listing, text); got != want {
				t.Errorf("after %s, %q is listed: %t, want %t\n%s", tt.line, text, got, want, listing)
			}
		}
	}
	if do("list ruleset") == nil || do("delete table ip flannel-ipv4") == nil {
		t.Error("what it cannot do is taken")
	}
}

func TestAShellLingersForTheWatcher(t *testing.T) {
	n := testNamespace(t)
	start := time.Now()
	if err := n.Do(func() error { return shell("bash", []string{"-c", "iptables -N A"}) }); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 400*time.Millisecond {
		t.Errorf("it was gone after %v, before anybody could look at it", took)
	}
}
