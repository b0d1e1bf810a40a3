package path

import (
	"regexp"
	"strings"

	"flanwatch/flannel"
)

// Owners as they are named in JSON and on screen.
const (
	OwnerFlannel    = "flannel"
	OwnerKubeProxy  = "kube-proxy"
	OwnerCalico     = "Calico"
	OwnerCilium     = "Cilium"
	OwnerKubeRouter = "kube-router"
	OwnerDocker     = "Docker"
	OwnerPodman     = "Podman"
	OwnerFirewalld  = "firewalld"
	OwnerUfw        = "ufw"
	OwnerPortmap    = "CNI portmap"
	OwnerBridge     = "CNI bridge"
	OwnerLibvirt    = "libvirt"
	OwnerUnknown    = "unknown"
)

// sign is what gives an owner away. The first that fits counts, so that longer beginnings stand before shorter ones.
type sign struct{ beginning, owner string }

var chainSigns = []sign{
	{"FLANNEL-", OwnerFlannel},
	{"KUBE-ROUTER", OwnerKubeRouter},
	{"KUBE-NWPLCY", OwnerKubeRouter},
	{"KUBE-POD-FW", OwnerKubeRouter},
	{"KUBE-SVC-", OwnerKubeProxy},
	{"KUBE-", OwnerKubeProxy},
	{"cali-", OwnerCalico},
	{"felix-", OwnerCalico},
	{"CILIUM_", OwnerCilium},
	{"OLD_CILIUM_", OwnerCilium},
	{"DOCKER", OwnerDocker},
	{"NETAVARK", OwnerPodman},
	{"CNI-HOSTPORT-", OwnerPortmap},
	{"CNI-DN-", OwnerPortmap},
	{"CNI-SN-", OwnerPortmap},
	{"CNI-", OwnerBridge},
	{"ufw-", OwnerUfw},
	{"ufw6-", OwnerUfw},
	{"LIBVIRT_", OwnerLibvirt},
}

var tableSigns = []sign{
	{"flannel-ipv", OwnerFlannel},
	{"kube-proxy", OwnerKubeProxy},
	{"calico", OwnerCalico},
	{"cilium", OwnerCilium},
	{"docker", OwnerDocker},
	{"netavark", OwnerPodman},
	{"firewalld", OwnerFirewalld},
	{"libvirt", OwnerLibvirt},
	{"cni_hostport", OwnerPortmap},
}

var commentSigns = []sign{
	{"flanneld ", OwnerFlannel},
	{"flannel masq", OwnerFlannel},
	{"cali:", OwnerCalico},
	{"cilium", OwnerCilium},
	{"kubernetes ", OwnerKubeProxy},
	{"kube-router", OwnerKubeRouter},
	{"CNI portfwd", OwnerPortmap},
	{"dnat name:", OwnerPortmap},
	{"snat name:", OwnerPortmap},
	{"name: ", OwnerBridge},
}

var interfaceSigns = []sign{
	{"docker", OwnerDocker},
	{"br-", OwnerDocker},
	{"podman", OwnerPodman},
	{"cni-podman", OwnerPodman},
	{"virbr", OwnerLibvirt},
	{"cali", OwnerCalico},
	{"vxlan.calico", OwnerCalico},
	{"cilium", OwnerCilium},
	{"lxc", OwnerCilium},
	{"kube-bridge", OwnerKubeRouter},
}

// firewalldChain fits the chains that firewalld keeps in the tables of iptables.
var firewalldChain = regexp.MustCompile(`^(PREROUTING|POSTROUTING|INPUT|FORWARD|OUTPUT)_(direct|ZONES|IN_ZONES|OUT_ZONES|POLICIES.*)|^(IN|FWD|FWDI|FWDO|PRE|POST)_\w+`)

// Owner tells whose a chain is, or whose a rule in a chain that nobody owns, by names, comments and interfaces that each
// program gives its own.
func Owner(chain flannel.ChainID, rule flannel.Rule) string {
	if o := chainOwner(chain); o != OwnerUnknown {
		return o
	}
	if t := rule.Target; t.Chain != "" {
		if o := chainOwner(flannel.ChainID{Table: "", Name: t.Chain}); o != OwnerUnknown {
			return o
		}
	}
	for _, m := range rule.Matches {
		signs := map[flannel.MatchKind][]sign{
			flannel.MatchComment: commentSigns, flannel.MatchIn: interfaceSigns, flannel.MatchOut: interfaceSigns,
		}[m.Kind]
		if o := owner(signs, m.Text); o != OwnerUnknown {
			return o
		}
	}
	return OwnerUnknown
}

func chainOwner(c flannel.ChainID) string {
	if o := owner(tableSigns, strings.TrimPrefix(c.Table, "inet ")); o != OwnerUnknown {
		return o
	}
	if firewalldChain.MatchString(c.Name) {
		return OwnerFirewalld
	}
	return owner(chainSigns, c.Name)
}

func owner(signs []sign, name string) string {
	for _, s := range signs {
		if strings.HasPrefix(name, s.beginning) {
			return s.owner
		}
	}
	return OwnerUnknown
}
