# The node of the cases: this namespace, with a pod behind cni0, another node with a pod, and an outside host. $H is the root of
# the node's files.
H=/run/host
NET=10.42.0.0/16 SUB=10.42.0.0/24
IPT=iptables-nft RF=--random-fully
M="flanneld masq" F="flanneld forward"
within() { ip netns exec "$@"; }
sysctl() { # NAME VALUE [NAMESPACE]
	${3:+ip netns exec $3} sh -c "[ ! -e /proc/sys/$1 ] || echo $2 >/proc/sys/$1"
}
pod() { # NAMESPACE ADDRESS
	ip netns add "$1"
	ip link add "ve$1" type veth peer name eth0 netns "$1"
	ip link set "ve$1" master cni0 up
	ip -n "$1" addr add "$2/24" dev eth0
	ip -n "$1" link set eth0 up
	ip -n "$1" route add default via 10.42.0.1
}
node() {
	mkdir -p /run/netns $H/run/flannel $H/etc/cni/net.d $H/var/lib/cni/networks
	touch /run/xtables.lock
	ln /run/xtables.lock $H/run/xtables.lock
	ip link set lo up
	for n in sw n2 x; do ip netns add $n; done
	ip -n sw link add br0 type bridge
	ip -n sw link set br0 up
	ip link add eth0 type veth peer name p1 netns sw
	ip -n n2 link add eth0 type veth peer name p2 netns sw
	ip -n x link add eth0 type veth peer name p3 netns sw
	for p in p1 p2 p3; do ip -n sw link set $p master br0 up; done
	ip addr add 192.0.2.10/24 dev eth0
	ip link set eth0 up
	ip -n n2 addr add 192.0.2.11/24 dev eth0
	ip -n n2 link set eth0 up
	ip -n x addr add 192.0.2.99/24 dev eth0
	ip -n x link set eth0 up
	ip link add cni0 type bridge
	ip link set cni0 up
	ip addr add 10.42.0.1/24 dev cni0
	pod pa 10.42.0.5
	for s in net/ipv4/ip_forward net/bridge/bridge-nf-call-iptables net/bridge/bridge-nf-call-ip6tables; do sysctl $s 1; done
	ip route add default via 192.0.2.99
	ip route add 10.42.1.0/24 via 192.0.2.11
	ip -n n2 route add 10.42.0.0/24 via 192.0.2.10
	printf 'FLANNEL_NETWORK=%s\nFLANNEL_SUBNET=10.42.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n' $NET >$H/run/flannel/subnet.env
	# Something else in the packet filter follows connections too, as kube-proxy does on every node.
	iptables-nft -A FORWARD -m conntrack --ctstate INVALID -j DROP
}
masq_rules() {
	r="$IPT -w -t nat -A FLANNEL-POSTRTG"
	$r -m mark --mark 0x4000/0x4000 -m comment --comment "$M" -j RETURN
	$r -s $SUB -d $NET -m comment --comment "$M" -j RETURN
	$r -s $NET -d $SUB -m comment --comment "$M" -j RETURN
	$r ! -s $NET -d $SUB -m comment --comment "$M" -j RETURN
	$r -s $NET ! -d 224.0.0.0/4 -m comment --comment "$M" -j MASQUERADE $RF
	$r ! -s $NET -d $NET -m comment --comment "$M" -j MASQUERADE $RF
}
masq() {
	$IPT -w -t nat -N FLANNEL-POSTRTG 2>/dev/null || true
	$IPT -w -t nat -A POSTROUTING -m comment --comment "$M" -j FLANNEL-POSTRTG
	masq_rules
}
fwd() {
	$IPT -w -N FLANNEL-FWD 2>/dev/null || true
	$IPT -w -A FORWARD -m comment --comment "$F" -j FLANNEL-FWD
	$IPT -w -A FLANNEL-FWD -s $NET -m comment --comment "$F" -j ACCEPT
	$IPT -w -A FLANNEL-FWD -d $NET -m comment --comment "$F" -j ACCEPT
}
flannel_ipt() { masq; fwd; }
flannel_nft() {
	nft -f - <<N
table ip flannel-ipv4 {
	chain forward {
		type filter hook forward priority filter; policy accept;
		ip saddr $NET accept
		ip daddr $NET accept
	}
	chain postrtg {
		type nat hook postrouting priority srcnat; policy accept;
		meta mark 0x00004000 return
		ip saddr $SUB ip daddr $NET return
		ip saddr $NET ip daddr $SUB return
		ip saddr != $SUB ip daddr $NET return
		ip saddr $NET ip daddr != 224.0.0.0/4 masquerade fully-random
		ip saddr != $NET ip daddr $NET masquerade fully-random
	}
}
table ip6 flannel-ipv6 {
}
N
}
vxlan() { # the tunnel to the other node, as Flannel makes it
	ip link add flannel.1 type vxlan id 1 local 192.0.2.10 dstport 8472 nolearning dev eth0
	ip addr add 10.42.0.0/32 dev flannel.1
	ip link set flannel.1 up
	ip route replace 10.42.1.0/24 via 10.42.1.0 dev flannel.1 onlink
	bridge fdb append 02:00:00:00:00:01 dev flannel.1 dst 192.0.2.11
	ip neigh replace 10.42.1.0 lladdr 02:00:00:00:00:01 dev flannel.1 nud permanent
}
netconf() { # whether in nftables mode
	mkdir -p $H/etc/kube-flannel
	printf '{"Network":"%s","EnableNFTables":%s,"Backend":{"Type":"vxlan"}}\n' $NET "$1" >$H/etc/kube-flannel/net-conf.json
}
datagram() { # NAMESPACE ADDRESS PORT
	within "$1" bash -c "echo x >/dev/udp/$2/$3" || true
}
