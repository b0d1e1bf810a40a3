package host

import (
	"encoding/json"
	"net/netip"
	"strings"
)

// pod is what one file tells.
type pod struct {
	name  string
	addrs []netip.Addr
}

// podName joins the two halves of a pod's name, and gives nothing where one is missing or too long to be one.
func podName(namespace, name string) string {
	const longest = 253
	if namespace == "" || name == "" || len(namespace) > longest || len(name) > longest {
		return ""
	}
	return namespace + "/" + name
}

// podOfResult reads what libcni keeps of a plugin's result: the arguments name the pod, the result has its addresses.
func podOfResult(data []byte) pod {
	var cached struct {
		CNIArgs [][2]string `json:"cniArgs"`
		Result  struct {
			IPs []struct {
				Address string `json:"address"`
			} `json:"ips"`
		} `json:"result"`
	}
	if json.Unmarshal(data, &cached) != nil {
		return pod{}
	}
	var namespace, name string
	for _, a := range cached.CNIArgs {
		switch a[0] {
		case "K8S_POD_NAMESPACE":
			namespace = a[1]
		case "K8S_POD_NAME":
			name = a[1]
		}
	}
	found := pod{name: podName(namespace, name)}
	for _, ip := range cached.Result.IPs {
		if prefix, err := netip.ParsePrefix(ip.Address); err == nil {
			found.addrs = append(found.addrs, prefix.Addr())
		}
	}
	return found
}

// podOfSandbox reads the pod off the annotations of an OCI bundle, as containerd and CRI-O write them, or off the checkpoint
// of cri-dockerd.
func podOfSandbox(data []byte) string {
	var s struct {
		Annotations map[string]string `json:"annotations"`
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
	}
	if json.Unmarshal(data, &s) != nil {
		return ""
	}
	a := s.Annotations
	for _, key := range [][2]string{
		{"io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name"},
		{"io.kubernetes.pod.namespace", "io.kubernetes.pod.name"},
	} {
		if name := podName(a[key[0]], a[key[1]]); name != "" {
			return name
		}
	}
	return podName(s.Namespace, s.Name)
}

// podOfLogs reads the name of a folder of logs: NAMESPACE_NAME_UID. Names of Kubernetes hold no underscore.
func podOfLogs(folder string) (uid, name string, ok bool) {
	parts := strings.Split(folder, "_")
	if len(parts) != 3 || parts[2] == "" {
		return "", "", false
	}
	name = podName(parts[0], parts[1])
	return parts[2], name, name != ""
}

// podOfHosts gives the addresses of the pod itself in a hosts file that the kubelet wrote: all but those of this host. A pod
// on the host's network has a copy of the node's file, which says so in its first line.
func podOfHosts(data []byte) []netip.Addr {
	text := string(data)
	if !strings.HasPrefix(text, "# Kubernetes-managed hosts file.\n") {
		return nil
	}
	text, _, _ = strings.Cut(text, "# Entries added by HostAliases.")
	var out []netip.Addr
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		a, err := netip.ParseAddr(fields[0])
		if err == nil && !a.IsLoopback() && !a.IsMulticast() && !a.IsUnspecified() && !ownNetwork(a) {
			out = append(out, a)
		}
	}
	return out
}

// ownNetwork tells the line "fe00::0 ip6-localnet" that the kubelet writes.
func ownNetwork(a netip.Addr) bool {
	return a == netip.MustParseAddr("fe00::0") || a == netip.MustParseAddr("fe00::1") || a == netip.MustParseAddr("fe00::2")
}

// firstWord is the first line without what Windows would put at its end, which host-local does everywhere.
func firstWord(data []byte) string {
	line, _, _ := strings.Cut(string(data), "\n")
	return strings.TrimSpace(line)
}

// isID tells whether text can be the ID of a sandbox, and no way to another folder.
func isID(text string) bool {
	if text == "" || len(text) > 128 {
		return false
	}
	for _, c := range text {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}
