package host

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"flanwatch/watcher/diagnose"
)

func TestFlanneldFlagsAreReadAsGoReadsThem(t *testing.T) {
	for line, want := range map[string]map[string]string{
		"":                                     {},
		"--ip-masq --kube-subnet-mgr":          {"ip-masq": "true", "kube-subnet-mgr": "true"},
		"-ip-masq=false -v 4 -ip-masq":         {"ip-masq": "true", "v": "4"},
		"--iptables-resync 10 --ip-masq":       {"iptables-resync": "10", "ip-masq": "true"},
		"--iface=eth0 --iface eth1":            {"iface": "eth1"},
		"--ip-masq false --iptables-resync=10": {"ip-masq": "true"},
		"--ip-masq -- --iptables-resync=10":    {"ip-masq": "true"},
		"--healthz-ip":                         {"healthz-ip": ""},
		"--public-ip --ip-masq":                {"public-ip": "--ip-masq"},
	} {
		if got := flanneldFlags(strings.Fields(line)); !maps.Equal(got, want) {
			t.Errorf("%q: %v, want %v", line, got, want)
		}
	}
}

func show(b *bool) string {
	switch {
	case b == nil:
		return "unsaid"
	case *b:
		return "on"
	}
	return "off"
}

func TestFlanneldSettings(t *testing.T) {
	none := map[string]string{}
	for name, c := range map[string]struct {
		line                  string
		env                   map[string]string
		masq, forward, random string
		resync                time.Duration
	}{
		"the defaults":                  {"", none, "off", "on", "unsaid", 5 * time.Second},
		"the DaemonSet of kube-flannel": {"--ip-masq --kube-subnet-mgr", none, "on", "on", "unsaid", 5 * time.Second},
		"RKE2 canal": {
			"--ip-masq --kube-subnet-mgr --iptables-forward-rules=false --ip-blackhole-route", none, "on", "off", "unsaid", 5 * time.Second,
		},
		"without fully random ports": {"--ip-masq --ip-masq-fully-random-disable", none, "on", "on", "off", 5 * time.Second},
		"another resync period":      {"--iptables-resync=60", none, "off", "on", "unsaid", time.Minute},
		"from the environment": {
			"", map[string]string{"FLANNELD_IP_MASQ": "true", "FLANNELD_IPTABLES_RESYNC": "9"}, "on", "on", "unsaid", 9 * time.Second,
		},
		"a flag wins over the environment": {
			"--ip-masq=false", map[string]string{"FLANNELD_IP_MASQ": "true"}, "off", "on", "unsaid", 5 * time.Second,
		},
		"an empty variable is none":            {"", map[string]string{"FLANNELD_IP_MASQ": ""}, "off", "on", "unsaid", 5 * time.Second},
		"an unreadable environment hides what": {"--ip-masq", nil, "on", "unsaid", "unsaid", 0},
		"values that are none":                 {"--ip-masq=x --iptables-resync=-1", none, "unsaid", "on", "unsaid", 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := diagnose.Process{Cmdline: append([]string{"/opt/bin/flanneld"}, strings.Fields(c.line)...), Env: c.env}
			s := flanneldOf(p).settings()
			if show(s.IPMasq) != c.masq || show(s.ForwardRules) != c.forward || show(s.RandomFully) != c.random || s.Resync != c.resync {
				t.Errorf("ip-masq %s, forward rules %s, random %s, resync %v; want %s, %s, %s, %v",
					show(s.IPMasq), show(s.ForwardRules), show(s.RandomFully), s.Resync, c.masq, c.forward, c.random, c.resync)
			}
		})
	}
}

func TestPathsOfFlanneld(t *testing.T) {
	of := func(line string, env map[string]string) string {
		return flanneldOf(diagnose.Process{Cmdline: strings.Fields("flanneld " + line), Env: env}).path("subnet-file", SubnetEnv)
	}
	for _, c := range []struct {
		line, want string
		env        map[string]string
	}{
		{"", SubnetEnv, nil},
		{"--subnet-file=/run/other.env", "/run/other.env", nil},
		{"--subnet-file=relative", SubnetEnv, nil},
		{"", "/run/env.env", map[string]string{"FLANNELD_SUBNET_FILE": "/run/env.env"}},
	} {
		if got := of(c.line, c.env); got != c.want {
			t.Errorf("%q %v: %s, want %s", c.line, c.env, got, c.want)
		}
	}
}

func TestK3s(t *testing.T) {
	for name, c := range map[string]struct {
		comm, line  string
		config      string
		configKnown bool
		masq6       string
		networks    int
	}{
		"a server with defaults": {"k3s-server", "k3s server", "", true, "off", 0},
		"a server told by flag": {
			"k3s-server", "k3s server --flannel-ipv6-masq --cluster-cidr 10.42.0.0/16,fd00:42::/56", "", true, "on", 2,
		},
		"a server told by file": {
			"k3s-server", "k3s server", "flannel-ipv6-masq: true\ncluster-cidr: \"10.42.0.0/16\"\n", true, "on", 1,
		},
		"a flag wins over the file": {
			"k3s-server", "k3s server --flannel-ipv6-masq=false", "flannel-ipv6-masq: true\n", true, "off", 0,
		},
		"a server whose file cannot be read":     {"k3s-server", "k3s server", "", false, "unsaid", 0},
		"the same, where the flag tells already": {"k3s-server", "k3s server --flannel-ipv6-masq", "", false, "on", 0},
		"an agent, whom its server tells":        {"k3s-agent", "k3s agent", "", true, "unsaid", 0},
		"one name for both":                      {"k3s", "k3s server", "", true, "off", 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := diagnose.Process{PID: 7, Comm: c.comm, Cmdline: strings.Fields(c.line)}
			got := k3sClaim(p, yamlFlags([]byte(c.config)), c.configKnown)
			if show(got.IPMasq) != "on" || show(got.ForwardRules) != "on" || got.Resync != time.Minute {
				t.Errorf("constants: %+v", got)
			}
			if show(got.IPMasq6) != c.masq6 || len(got.Networks) != c.networks {
				t.Errorf("IPv6 %s, networks %v; want %s, %d", show(got.IPMasq6), got.Networks, c.masq6, c.networks)
			}
		})
	}
}

func TestYAMLFlags(t *testing.T) {
	text := "# comment\nflannel-backend: none # off\r\n\"cluster-cidr\": '10.42.0.0/16'\nnode-label:\n  - a: b\n- x: y\n" +
		"write-kubeconfig-mode: \"0644\"\nempty:\nno colon\n"
	want := []string{"--flannel-backend=none", "--cluster-cidr=10.42.0.0/16", "--write-kubeconfig-mode=0644"}
	if got := yamlFlags([]byte(text)); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPrefixLists(t *testing.T) {
	for list, want := range map[string]int{
		"10.244.0.0/16": 1, "10.244.0.0/16,fd00::/48": 2, `"10.244.0.0/16"`: 1, " 10.1.0.1/16 , 10.2.0.0/16": 2,
		"": 0, "10.244.0.0": 0, "10.244.0.0/16,x": 0,
	} {
		if got := prefixes(list); len(got) != want {
			t.Errorf("%q: %v, want %d", list, got, want)
		}
	}
}

func FuzzFlags(f *testing.F) {
	f.Add("/opt/bin/flanneld\x00--ip-masq\x00-v\x004", "FLANNELD_IPTABLES_RESYNC=99999999999999999999", "flannel-backend: none\n")
	f.Add("k3s\x00server\x00--cluster-cidr", "x", "cluster-cidr: \"\n: :\n")
	f.Fuzz(func(t *testing.T, cmdline, env, config string) {
		name, value, _ := strings.Cut(env, "=")
		p := diagnose.Process{Comm: "k3s-server", Cmdline: strings.Split(cmdline, "\x00"), Env: map[string]string{name: value}}
		if s := flanneldOf(p).settings(); s.Resync < 0 {
			t.Errorf("resync %v", s.Resync)
		}
		if got := flanneldOf(p).path("subnet-file", SubnetEnv); !strings.HasPrefix(got, "/") {
			t.Errorf("path %q", got)
		}
		for _, p := range k3sClaim(p, yamlFlags([]byte(config)), true).Networks {
			if p != p.Masked() {
				t.Errorf("network %v", p)
			}
		}
	})
}
