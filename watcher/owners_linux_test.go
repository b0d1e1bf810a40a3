package watcher_test

import (
	"slices"
	"testing"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

// proxyRules are what kube-proxy puts back, portmapRules what nobody does.
const (
	proxyRules = "*nat\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n-A KUBE-SERVICES -d 10.96.0.1/32 -j ACCEPT\nCOMMIT\n"

	portmapRules = "*nat\n:CNI-HOSTPORT-DNAT - [0:0]\n:CNI-DN-aaaa - [0:0]\n" +
		"-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n" +
		"-A CNI-HOSTPORT-DNAT -p tcp -m tcp --dport 443 -j CNI-DN-aaaa\n" +
		"-A CNI-DN-aaaa -p tcp -m tcp --dport 443 -j DNAT --to-destination 10.244.1.5:8443\nCOMMIT\n"
)

// TestEachOwnerRecoversForItself empties everything at once, as people do, and lets Flannel and kube-proxy come back, but
// nobody who knows of host ports.
func TestEachOwnerRecoversForItself(t *testing.T) {
	for _, c := range []struct {
		name, restore string
		backend       flannel.Backend
		flush         string
	}{
		{"nft flush ruleset", "iptables-nft-restore", flannel.IptablesNft, "nft flush ruleset"},
		{"iptables-nft -F and -X", "iptables-nft-restore", flannel.IptablesNft, "iptables-nft -t nat -F; iptables-nft -t nat -X"},
		{"iptables-nft -F", "iptables-nft-restore", flannel.IptablesNft, "iptables-nft -t nat -F"},
		{"iptables-legacy -F", "iptables-legacy-restore", flannel.IptablesLegacy, "iptables-legacy -t nat -F"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := node(t, c.backend)
			n.Feed(proxyRules, c.restore, "--noflush")
			n.Feed(portmapRules, c.restore, "--noflush")
			f := watchFolded(t, optionsOf(n))
			n.Shell(c.flush)
			time.Sleep(1200 * time.Millisecond)
			n.Feed(nodeRules, c.restore, "--noflush")
			time.Sleep(1200 * time.Millisecond)
			if finds(f.view(), "hostport-missing") {
				t.Error("found while kube-proxy is away")
			}
			n.Feed(proxyRules, c.restore, "--noflush")
			f.wait("kube-proxy", func() bool { return finds(f.view(), "hostport-missing") })
			list := f.incidents()
			if len(list) == 0 || len(list[0].Owners) != 2 {
				t.Fatalf("%+v", list)
			}
			for _, o := range list[0].Owners {
				t.Logf("%s %s, back: %t", o.Owner, o.Chain, !o.Open)
				if o.Open != (o.Owner == "CNI portmap") || !o.Open && o.To.Sub(o.From) < 2*time.Second {
					t.Errorf("%+v", o)
				}
			}
			n.Feed(portmapRules, c.restore, "--noflush")
			f.wait("portmap", func() bool { return !finds(f.view(), "hostport-missing") })
		})
	}
}

func finds(v *incident.View, id string) bool {
	return slices.ContainsFunc(v.Findings, func(f diagnose.Finding) bool { return f.ID == id })
}
