package flannel

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestNetConfGivesWhatFlannelReads(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want NetConf
	}{
		"the stock manifest": {
			`{ "Network": "10.244.0.0/16", "EnableNFTables": false, "Backend": { "Type": "vxlan" } }`,
			NetConf{Networks: prefixes("10.244.0.0/16"), EnableIPv4: true, Backend: "vxlan"},
		},
		"dual-stack, native": {
			`{"Network":"10.244.0.0/16","SubnetLen":24,"SubnetMin":"10.244.1.0","EnableIPv6":true,"IPv6Network":"fd00:244::/48",` +
				`"IPv6SubnetLen":64,"EnableNFTables":true,"Backend":{"Type":"host-gw","VNI":1}}`,
			NetConf{
				Networks: prefixes("10.244.0.0/16", "fd00:244::/48"), EnableIPv4: true, EnableIPv6: true, EnableNFTables: true,
				Backend: "host-gw", SubnetLen: 24, IPv6SubnetLen: 64,
			},
		},
		"no backend": {
			`{"Network":"10.0.0.0/8"}`, NetConf{Networks: prefixes("10.0.0.0/8"), EnableIPv4: true, Backend: "udp"},
		},
		"keys in any case": {
			`{"network":"10.0.0.0/8"}`, NetConf{Networks: prefixes("10.0.0.0/8"), EnableIPv4: true, Backend: "udp"},
		},
		"host bits are masked": {
			`{"Network":"10.1.2.3/8"}`, NetConf{Networks: prefixes("10.0.0.0/8"), EnableIPv4: true, Backend: "udp"},
		},
		"IPv6 is off unless enabled": {
			`{"Network":"10.0.0.0/8","IPv6Network":"fd00::/48"}`,
			NetConf{Networks: prefixes("10.0.0.0/8"), EnableIPv4: true, Backend: "udp"},
		},
		"IPv6 alone, IPv4 given as empty": {
			`{"EnableIPv4":false,"EnableIPv6":true,"Network":"0.0.0.0/0","IPv6Network":"fd00::/48"}`,
			NetConf{Networks: prefixes("fd00::/48"), EnableIPv6: true, Backend: "udp"},
		},
		"keys that Flannel does not know": {
			"{\"Network\":\"10.0.0.0/8\",\n\"TrafficManager\":{\"nftables\":[1]},\n\"Networks\":[]}",
			NetConf{
				Networks: prefixes("10.0.0.0/8"), EnableIPv4: true, Backend: "udp",
				Ignored: []IgnoredKey{{"TrafficManager", 2}, {"Networks", 3}},
			},
		},
	} {
		got, ps := ParseNetConf([]byte(c.text), "f")
		if len(ps) > 0 || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v %v\nwant %+v", name, got, ps, c.want)
		}
	}
}

func TestNetConfFaultsAreNamedWithTheirLine(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"empty":     {" \n", []string{"0: file is empty"}},
		"no object": {"[1]", []string{"1: file is no JSON object"}},
		"torn in a value": {
			"{\n\"Network\": \"10.244.0.0/16\",\n\"Backend\": {\n\"Type\"", []string{"4: file ends within the JSON object"},
		},
		"torn after a value": {"{\n\"Network\": \"10.244.0.0/16\"\n", []string{"2: file ends within the JSON object"}},
		"torn after a key":   {"{\"Network\"", []string{"1: file ends within the JSON object"}},
		"torn at the start":  {"{", []string{"1: file ends within the JSON object"}},
		"a missing comma": {
			"{\n\"Network\": \"10.244.0.0/16\"\n\"SubnetLen\": 24\n}",
			[]string{"3: JSON is broken: invalid character '\"' after object key:value pair"},
		},
		"more behind":         {"{\"Network\": \"10.244.0.0/16\"}\n{}\n", []string{"2: more follows after the JSON object"}},
		"no network":          {"{}", []string{"0: file names no network"}},
		"a network of words":  {"{\n\"Network\": \"pods\"}", []string{`2: Network: "pods" is no network in CIDR form`}},
		"a network of number": {"{\n\"Network\": 10}", []string{`2: Network: 10 is no network in CIDR form`}},
		"the other family":    {"{\"Network\": \"fd00::/48\"}", []string{"1: Network: fd00::/48 is of the other address family"}},
		"a flag in quotes": {
			"{\"Network\": \"10.0.0.0/8\",\n\"EnableNFTables\": \"true\"}",
			[]string{`2: EnableNFTables: "true" is neither true nor false`},
		},
		"a length out of range": {
			"{\"Network\": \"10.0.0.0/8\", \"SubnetLen\": 64}", []string{"1: SubnetLen: 64 is no length of a prefix of ip"},
		},
		"a length of words": {"{\"Network\": \"10.0.0.0/8\", \"SubnetLen\": \"24\"}", []string{`1: SubnetLen: "24" is no length`}},
		"a backend of words": {
			"{\"Network\": \"10.0.0.0/8\", \"Backend\": \"vxlan\"}", []string{`1: Backend: "vxlan" is no object with a Type`},
		},
		"a duplicate": {
			"{\"Network\": \"10.0.0.0/8\",\n\"network\": \"11.0.0.0/8\"}",
			[]string{"2: Network is set a second time, after line 1; the last one counts"},
		},
	} {
		_, ps := ParseNetConf([]byte(c.text), "f")
		if got := problemTexts(ps); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %q\nwant %q", name, got, c.want)
		}
	}
}

func TestNetConfKeepsWhatStandsBeforeATear(t *testing.T) {
	text := `{"EnableNFTables": true, "Network": "10.244.0.0/16", "Backend": {"Type": "vxl`
	conf, ps := ParseNetConf([]byte(text), "f")
	if len(ps) != 1 || !conf.EnableNFTables || !slices.Equal(conf.Networks, prefixes("10.244.0.0/16")) {
		t.Errorf("%+v %v", conf, ps)
	}
	conf, _ = ParseNetConf([]byte(`{"Network": "10.244.0.0/16", "Backend": {"Type": 3}}`), "f")
	if conf.Backend != "" {
		t.Errorf("backend %q from nowhere", conf.Backend)
	}
}

func FuzzParseNetConf(f *testing.F) {
	f.Add([]byte(`{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48","Backend":{"Type":"vxlan"},"X\u001b":1}`))
	f.Add([]byte("{\n\"Network\": \"10.244.0.0/16\"\n\"SubnetLen\": 24\n}"))
	f.Add([]byte(`{"Network":"`))
	f.Fuzz(func(t *testing.T, data []byte) {
		conf, ps := ParseNetConf(data, "f")
		checkProblems(t, data, "f", ps)
		lines := strings.Count(string(data), "\n") + 1
		for _, k := range conf.Ignored {
			if k.Line < 1 || k.Line > lines {
				t.Errorf("%q: %+v of %d lines", data, k, lines)
			}
		}
		for _, p := range conf.Networks {
			if p != p.Masked() || p.Bits() == 0 {
				t.Errorf("%q: %s", data, p)
			}
		}
		if len(conf.Networks) == 0 && len(ps) == 0 {
			t.Errorf("%q: nothing found and nothing said", data)
		}
	})
}
