package flannel

import "slices"

// Mark is a chain by which the presence of another owner's rules is told. It is alive while it exists and rules stand in it
// or lead to it.
type Mark struct {
	ID    ChainID `json:"id"`
	Alive bool    `json:"alive"`
}

// markNames are chains of the nat table that their owners keep as long as they do anything: kube-proxy, the portmap plugin
// of CNI for host ports, Docker, Calico, Cilium.
var markNames = []string{"KUBE-SERVICES", "CNI-HOSTPORT-DNAT", "DOCKER", "cali-POSTROUTING", "CILIUM_POST_nat"}

// Marks lists the chains by which the presence of others is told in a backend of iptables, sorted; none for native tables.
func Marks(b Backend) []ChainID {
	if b == Nftables {
		return nil
	}
	var ids []ChainID
	for _, f := range Families {
		for _, name := range markNames {
			ids = append(ids, ChainID{b, f, TableNat, name})
		}
	}
	slices.SortFunc(ids, ChainID.Compare)
	return ids
}
