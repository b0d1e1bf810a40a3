package host

import (
	"encoding/json"
	"net/netip"
	"path"
	"strings"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// cniFolders are where distributions keep the configuration of the container network: kubeadm and most others, k3s, rke2,
// MicroK8s.
var cniFolders = []string{
	"/etc/cni/net.d", "/var/lib/rancher/k3s/agent/etc/cni/net.d", "/var/lib/rancher/rke2/agent/etc/cni/net.d",
	"/var/snap/microk8s/current/args/cni-network",
}

// cniFile tells whether a container runtime takes a file of that name.
func cniFile(name string) bool {
	switch path.Ext(name) {
	case ".conf", ".conflist", ".json":
		return true
	}
	return false
}

// parseCNI reads a configuration: a list of plugins, or one plugin alone.
func parseCNI(file string, data []byte) (diagnose.CNIConfig, bool) {
	var conf struct {
		Name    string
		Type    string
		Plugins []struct{ Type string }
	}
	if json.Unmarshal(data, &conf) != nil {
		return diagnose.CNIConfig{Path: file}, false
	}
	c := diagnose.CNIConfig{Path: file, Name: conf.Name}
	for _, p := range conf.Plugins {
		c.Types = append(c.Types, p.Type)
	}
	if conf.Type != "" {
		c.Types = append(c.Types, conf.Type)
	}
	return c, true
}

// result is what libcni keeps of a container's network, as far as it tells here.
type result struct {
	container string
	pod       string
	addresses []netip.Addr
	ports     []diagnose.HostPort
}

// parseResult reads a file of /var/lib/cni/results or its older place, /var/lib/cni/cache/results.
func parseResult(data []byte) (result, bool) {
	var kept struct {
		ContainerID    string
		CniArgs        [][]string
		CapabilityArgs struct {
			PortMappings []struct {
				HostPort int
				Protocol string
			}
		}
		Result struct {
			IPs []struct{ Address string }
		}
	}
	if json.Unmarshal(data, &kept) != nil {
		return result{}, false
	}
	r := result{container: kept.ContainerID, pod: kubePod(kept.CniArgs)}
	for _, ip := range kept.Result.IPs {
		if p, err := netip.ParsePrefix(ip.Address); err == nil {
			r.addresses = append(r.addresses, p.Addr())
		}
	}
	for _, m := range kept.CapabilityArgs.PortMappings {
		if m.HostPort > 0 && m.HostPort < 1<<16 {
			r.ports = append(r.ports, diagnose.HostPort{Port: m.HostPort, Protocol: strings.ToLower(m.Protocol), Pod: r.pod})
		}
	}
	return r, true
}

func kubePod(args [][]string) string {
	var namespace, name string
	for _, a := range args {
		switch {
		case len(a) != 2:
		case a[0] == "K8S_POD_NAMESPACE":
			namespace = a[1]
		case a[0] == "K8S_POD_NAME":
			name = a[1]
		}
	}
	return flannel.Printable(podName(namespace, name))
}
