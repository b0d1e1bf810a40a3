package wire_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"flanwatch/flannel"
	"flanwatch/flannel/wire"
	"flanwatch/watcher/lab/labtest"
)

// nativeScript is what Flannel gives to nft, of which it keeps the first network and subnet of each family.
func nativeScript(networks, subnets []netip.Prefix) string {
	var s strings.Builder
	for _, f := range flannel.Families {
		n, sub := flannel.Of(f, networks)[0], flannel.Of(f, subnets)[0]
		multicast := map[flannel.Family]string{flannel.IPv4: "224.0.0.0/4", flannel.IPv6: "ff00::/8"}[f]
		fmt.Fprintf(&s, `table %[1]s %[2]s {
	comment "rules for %[2]s"
	chain postrtg {
		comment "chain to manage traffic masquerading by flannel"
		type nat hook postrouting priority srcnat; policy accept;
		meta mark 0x4000 return
		%[1]s saddr %[4]s %[1]s daddr %[3]s return
		%[1]s saddr %[3]s %[1]s daddr %[4]s return
		%[1]s saddr != %[4]s %[1]s daddr %[3]s return
		%[1]s saddr %[3]s %[1]s daddr != %[5]s masquerade fully-random
		%[1]s saddr != %[3]s %[1]s daddr %[3]s masquerade fully-random
	}
	chain forward {
		comment "chain to accept flannel traffic"
		type filter hook forward priority filter; policy accept;
		%[1]s saddr %[3]s accept
		%[1]s daddr %[3]s accept
	}
}
`, f, flannel.NativeTable(f), n, sub, multicast)
	}
	return s.String()
}

// foreignNative are rules that no Flannel writes: the first ones are understood, the others are not.
const foreignNative = `table ip other {
	set s { type ipv4_addr; }
	chain d { }
	chain c {
		iifname "eth0" oifname "veth*" counter accept
		iifname != "eth0" drop
		meta mark & 0x00f0 == 0x0010 goto d
		meta mark != 7 jump d
		meta l4proto udp masquerade random
		ip daddr 10.0.0.0/8 continue
		ip saddr @s accept
		tcp dport 80 counter accept
		tcp dport 80-90 accept
		meta l4proto { tcp, udp } th sport 53 accept
		ct state established accept
		ct state established,related drop
		ct status dnat accept
		ct mark & 0x0000000f == 0x00000001 accept
		meta mark set 0x00000001
		meta mark set meta mark | 0x00000010
		ip saddr != { 10.0.0.1, 10.0.0.2 } drop
		ip saddr . tcp dport { 10.0.0.1 . 80 } drop
		reject
		notrack
		fib daddr type local accept
		fib saddr . iif type != local drop
		snat to 192.0.2.1
		meta l4proto udp dnat to 192.0.2.1-192.0.2.9:53 random
		log group 7
		ip daddr vmap { 10.0.0.1 : drop }
		ct state vmap { established : accept, invalid : drop }
		iifname . ip daddr . meta l4proto vmap { "eth0" . 10.0.0.1 . tcp : drop }
		fib saddr . iif oif missing drop
		meta iif 1 accept
		counter masquerade random,persistent
		ip saddr 10.0.0.1-10.0.0.9 accept
		tcp dport >= 80 accept
		tcp dport != 80-90 meta mark set 0x1 accept
		meta mark set 0x1 accept
		limit rate 3/minute accept
		log prefix "x" accept
		ip daddr set 10.0.0.3
		ip length < 100 accept
		ip protocol icmp icmp type echo-request accept
		meta iif 2 accept
		quota over 1 mbytes drop
		meta l4proto tcp masquerade to :1024-2048
		numgen random mod 3 0 return
		ip saddr & 255.0.255.0 == 10.0.3.0 return
	}
}
`

func TestNativeRulesReadAsNftListsThem(t *testing.T) {
	labtest.RequireTools(t, "nft")
	for name, node := range nodes {
		t.Run(name, func(t *testing.T) {
			theirs, ours := newKernel(t), newKernel(t)
			theirs.Feed(nativeScript(node.networks, node.subnets), "nft", "-f", "-")
			o := flannel.Options{RandomFully: true, Forward: true, Masq: true}
			var b wire.Batch
			var all []flannel.Wanted
			for _, f := range flannel.Families {
				// nft mode knows one network.
				first := []netip.Prefix{flannel.Of(f, node.networks)[0]}
				all = append(all, flannel.Expected(first, node.subnets, flannel.GenV0250, o, flannel.Nftables, f)...)
			}
			for _, w := range all {
				b.AddTable(w.ID.TableID())
				if err := b.AddBaseChain(w.ID, *w.Base); err != nil {
					t.Fatal(err)
				}
				for _, r := range w.Rules {
					b.AppendRule(w.ID, encode(t, w.ID, r))
				}
			}
			ours.commit(&b)
			for _, w := range all {
				list := fmt.Sprintf("nft list chain %s %s %s", w.ID.Family, w.ID.Table, w.ID.Name)
				listing := nftRules(theirs.Must(list))
				wantTexts(t, list+" of what was encoded", nftRules(ours.Must(list)), listing)
				var decoded []string
				for _, r := range theirs.decoded(w.ID) {
					decoded = append(decoded, r.Nft(w.ID.Family))
				}
				wantTexts(t, list, decoded, listing)
				if a, b := bodies(t, theirs.dump(w.ID)), bodies(t, ours.dump(w.ID)); !slices.Equal(a, b) {
					t.Errorf("%s: the kernel holds other expressions than those of nft: %x, %x", w.ID, b, a)
				}
			}
		})
	}
}

func TestNativeRulesOfOthersAreUnderstoodOrOpaque(t *testing.T) {
	labtest.RequireTools(t, "nft")
	k := newKernel(t)
	k.Feed(foreignNative, "nft", "-f", "-")
	c := flannel.ChainID{Backend: flannel.Nftables, Family: flannel.IPv4, Table: "other", Name: "c"}
	written := nftRules(k.Must("nft list chain ip other c"))
	rules := k.decoded(c)
	if len(rules) != len(written) {
		t.Fatalf("%d rules listed, %d decoded", len(written), len(rules))
	}
	const understood = 30
	for i, r := range rules {
		if r.Opaque() != (i >= understood) {
			t.Errorf("%s: opaque is %v: %s", written[i], r.Opaque(), r)
		}
		want := strings.ReplaceAll(strings.TrimSuffix(written[i], " continue"), "counter packets 0 bytes 0 ", "")
		if got := r.Nft(flannel.IPv4); i < understood && got != want && !strings.Contains(got, "@__") && !strings.Contains(got, "rpfilter") && got != `iifname "lo" accept` {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// nftRules gives the lines of a listing that are rules.
func nftRules(listing string) (rules []string) {
	for line := range strings.Lines(listing) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "table ") || strings.HasPrefix(line, "chain ") || strings.HasPrefix(line, "type ") ||
			strings.HasPrefix(line, "comment ") || line == "}" || line == "" {
			continue
		}
		rules = append(rules, line)
	}
	return rules
}

func bodies(t *testing.T, entries []entry) (out []uint64) {
	t.Helper()
	for _, e := range entries {
		s, err := wire.ScanRule(e.exprs)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, s.Body)
	}
	return out
}
