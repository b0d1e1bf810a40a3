package flannel

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const goodEnv = `FLANNEL_NETWORK=10.244.0.0/16
FLANNEL_SUBNET=10.244.1.1/24
FLANNEL_IPV6_NETWORK=fd00:244::/48
FLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64
FLANNEL_MTU=1450
FLANNEL_IPMASQ=true
`

func problemTexts(ps []Problem) []string {
	var out []string
	for _, p := range ps {
		out = append(out, fmt.Sprintf("%d: %s", p.Line, p.What))
	}
	return out
}

func TestSubnetEnvOfADualStackNode(t *testing.T) {
	env, ps := ParseSubnetEnv([]byte(goodEnv), "/run/flannel/subnet.env")
	if len(ps) > 0 {
		t.Errorf("problems %v", ps)
	}
	if !slices.Equal(env.Networks, prefixes("10.244.0.0/16", "fd00:244::/48")) ||
		!slices.Equal(env.Subnets, prefixes("10.244.1.0/24", "fd00:244:0:1::/64")) {
		t.Errorf("%+v", env)
	}
	if env.MTU != 1450 || !env.IPMasq || !env.IPMasqKnown {
		t.Errorf("%+v", env)
	}
}

func TestSubnetEnvOfSeveralNetworks(t *testing.T) {
	env, ps := ParseSubnetEnv([]byte("FLANNEL_NETWORK=10.1.0.0/16,10.2.0.0/16,10.3.0.0/16\nFLANNEL_SUBNET=10.2.1.1/24\n"), "f")
	if len(ps) > 0 || !slices.Equal(env.Networks, prefixes("10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16")) {
		t.Errorf("%+v %v", env, ps)
	}
	if env.IPMasqKnown || env.MTU != 0 {
		t.Errorf("values from nowhere: %+v", env)
	}
}

func TestSubnetEnvFaultsAreNamedWithTheirLine(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"empty":      {"", []string{"0: file is empty"}},
		"only space": {" \n\n", []string{"0: file is empty"}},
		"only a comment": {
			"# written by hand\n", []string{"0: file names no network", "0: file names no subnet"},
		},
		"carriage returns": {strings.ReplaceAll(goodEnv, "\n", "\r\n"), []string{"1: lines end with a carriage return"}},
		"host bits in the network": {
			strings.Replace(goodEnv, "10.244.0.0/16", "10.244.7.1/16", 1),
			[]string{"1: FLANNEL_NETWORK: 10.244.7.1/16 has host bits set, taken as 10.244.0.0/16"},
		},
		"a foreign key":   {goodEnv + "PATH=/bin\n", []string{`7: key "PATH" is not Flannel's`}},
		"a line of words": {goodEnv + "hello\n", []string{`7: "hello" is not KEY=VALUE`}},
		"escape bytes":    {goodEnv + "a\x1b[2J\n", []string{`7: "a\x1b[2J" is not KEY=VALUE`}},
		"a bad MTU":       {strings.Replace(goodEnv, "1450", "14k", 1), []string{`5: FLANNEL_MTU="14k" is no MTU`}},
		"a zero MTU":      {strings.Replace(goodEnv, "1450", "0", 1), []string{`5: FLANNEL_MTU="0" is no MTU`}},
		"a huge MTU":      {strings.Replace(goodEnv, "1450", "70000", 1), []string{`5: FLANNEL_MTU="70000" is no MTU`}},
		"a bad flag":      {strings.Replace(goodEnv, "true", "yes", 1), []string{`6: FLANNEL_IPMASQ="yes" is neither true nor false`}},
		"a duplicate": {
			goodEnv + "FLANNEL_MTU=1400\n", []string{`7: "FLANNEL_MTU" is set a second time, after line 5; the last one counts`},
		},
		"torn in a value": {
			"FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/2",
			[]string{`2: file ends within a line: "FLANNEL_SUBNET" may be cut short`, "0: file names no subnet"},
		},
		"torn after the last value": {
			strings.TrimSuffix(goodEnv, "\n"), []string{`6: file ends within a line: "FLANNEL_IPMASQ" may be cut short`},
		},
		"torn in a key": {goodEnv + "FLANN", []string{`7: "FLANN" is not KEY=VALUE`}},
		"the other family": {
			strings.Replace(goodEnv, "NETWORK=10.244.0.0/16", "NETWORK=fd01::/48", 1),
			[]string{"1: FLANNEL_NETWORK: fd01::/48 is of the other address family"},
		},
		"every address": {
			strings.Replace(goodEnv, "fd00:244::/48", "::/0", 1), []string{"3: FLANNEL_IPV6_NETWORK: ::/0 holds every address"},
		},
		"no address": {
			"FLANNEL_NETWORK=\nFLANNEL_SUBNET=10.244.1.1/24\n",
			[]string{`1: FLANNEL_NETWORK: "" is no network in CIDR form`, "0: file names no network"},
		},
		"a subnet elsewhere": {
			strings.Replace(goodEnv, "10.244.1.1/24", "10.245.1.1/24", 1),
			[]string{"2: FLANNEL_SUBNET: 10.245.1.0/24 lies outside of FLANNEL_NETWORK"},
		},
	} {
		_, ps := ParseSubnetEnv([]byte(c.text), "f")
		if got := problemTexts(ps); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %q\nwant %q", name, got, c.want)
		}
	}
}

func TestSubnetEnvKeepsWhatIsSound(t *testing.T) {
	env, _ := ParseSubnetEnv([]byte("FLANNEL_NETWORK=10.1.0.0/16,junk,10.3.9.9/16\nFLANNEL_MTU=x\nFLANNEL_IPMASQ=false"), "f")
	if !slices.Equal(env.Networks, prefixes("10.1.0.0/16", "10.3.0.0/16")) || env.IPMasq || !env.IPMasqKnown {
		t.Errorf("%+v", env)
	}
	env, _ = ParseSubnetEnv([]byte("FLANNEL_MTU=1400\nFLANNEL_MTU=14"), "f")
	if env.MTU != 1400 {
		t.Errorf("a torn value replaced a whole one: %d", env.MTU)
	}
}

func TestAFileOfSomethingElseGivesBoundedProblems(t *testing.T) {
	_, ps := ParseSubnetEnv([]byte(strings.Repeat("\x00"+strings.Repeat("x", 200)+"\n", 5000)), "f")
	if len(ps) != maxProblems+1 || !strings.Contains(ps[maxProblems].What, "4982 more") || len(ps[0].What) > 120 {
		t.Errorf("%d problems, first %q, last %q", len(ps), ps[0].What, ps[len(ps)-1].What)
	}
}

func checkProblems(t *testing.T, data []byte, file string, ps []Problem) {
	t.Helper()
	lines := strings.Count(string(data), "\n") + 1
	for _, p := range ps {
		if p.Line < 0 || p.Line > lines || p.File != file || p.What == "" || Printable(p.What) != p.What {
			t.Errorf("%q: problem %+v of %d lines", data, p, lines)
		}
	}
}

func FuzzParseSubnetEnv(f *testing.F) {
	f.Add([]byte(goodEnv))
	f.Add([]byte("FLANNEL_NETWORK=10.1.0.0/16,10.2.0.0/16\r\nFLANNEL_SUBNET=10.2.1.1/24"))
	f.Add([]byte("FLANNEL_MTU=\x1b\n=\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		env, ps := ParseSubnetEnv(data, "f")
		checkProblems(t, data, "f", ps)
		for _, p := range append(env.Networks, env.Subnets...) {
			if p != p.Masked() || p.Bits() == 0 {
				t.Errorf("%q: %s", data, p)
			}
		}
		if (len(env.Networks) == 0 || len(env.Subnets) == 0) && len(ps) == 0 {
			t.Errorf("%q: nothing found and nothing said", data)
		}
	})
}
