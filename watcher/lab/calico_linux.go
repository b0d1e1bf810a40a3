package lab

import "errors"

// Calico gives pods addresses in blocks of its own choice from the same network, so that the node's Flannel subnet means
// nothing any more.
const (
	calicoAV4, calicoAV6 = "10.244.116.70", "fd00:244:7480::70"
	calicoBV4, calicoBV6 = "10.244.116.71", "fd00:244:7480::71"
)

// migrate replaces Flannel's overlay by Calico's and gives the node's pods addresses of a Calico block.
func (w *network) migrate() error {
	v4, v6 := vxlan{4096, 4789, 1450}, vxlan{4096, 4789, 1430}
	return errors.Join(
		w.node.unlink("flannel.1"), w.node.unlink("flannel-v6.1"), w.peer.unlink("flannel.1"), w.peer.unlink("flannel-v6.1"),
		w.node.vxlan("vxlan.calico", v4, nodeV4, nodeMAC, "10.244.116.64/32"),
		w.node.vxlan("vxlan-v6.calico", v6, nodeV6, nodeMAC, "fd00:244:7480::40/128"),
		w.peer.vxlan("vxlan.calico", v4, peerV4, peerMAC, "10.244.2.0/32"),
		w.peer.vxlan("vxlan-v6.calico", v6, peerV6, peerMAC, "fd00:244:0:2::/128"),
		w.node.tunnel("vxlan.calico", "10.244.2.0/24", peerMAC, peerV4),
		w.node.tunnel("vxlan-v6.calico", "fd00:244:0:2::/64", peerMAC, peerV6),
		w.peer.tunnel("vxlan.calico", "10.244.116.64/26", nodeMAC, nodeV4),
		w.peer.tunnel("vxlan-v6.calico", "fd00:244:7480::40/122", nodeMAC, nodeV6),
		w.renumber(w.podA, podAV4, podAV6, calicoAV4, calicoAV6),
		w.renumber(w.podB, podBV4, podBV6, calicoBV4, calicoBV6),
	)
}

// renumber gives a pod other addresses. It keeps the way to its gateway, the bridge's address, for which it needs the old
// prefix as a route.
func (w *network) renumber(pod *host, old4, old6, new4, new6 string) error {
	err := errors.Join(
		pod.address("eth0", new4+"/32", new6+"/128"),
		pod.reach("eth0", "10.244.1.1/32", new4), pod.reach("eth0", "fd00:244:0:1::1/128", new6),
		pod.removeAddress("eth0", old4+"/24", old6+"/64"),
		pod.gateway("eth0", "10.244.1.1", "fd00:244:0:1::1"),
		w.node.reach("cni0", new4+"/32", ""), w.node.reach("cni0", new6+"/128", ""),
	)
	pod.moveTo(new4, new6)
	return err
}
