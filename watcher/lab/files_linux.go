package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// NodeName is the host name of the lab's node.
const NodeName = "worker-1"

const (
	subnetEnv  = "/run/flannel/subnet.env"
	hostRoot   = "/run/host" // what the node would see as /, in the namespace's private /run
	configMaps = "/var/lib/kubelet/pods/5f0c6e0a-5c0e-4d58-9d7e-6a1c3f2b9d01/volumes/kubernetes.io~configmap/"
)

// furnish writes the files of the node that a Kubernetes with Flannel leaves there. Its /run is the namespace's.
func furnish() error {
	if err := os.MkdirAll(hostRoot+"/run", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/run", hostRoot+"/run", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("show /run in %s: %w", hostRoot, err)
	}
	return errors.Join(
		writeFile(hostRoot+"/etc/hostname", NodeName+"\n"),
		writeFile(hostRoot+"/etc/os-release", "ID=lab\nNAME=\"flanwatch lab\"\nPRETTY_NAME=\"flanwatch lab\"\n"),
		writeFile(hostRoot+"/etc/cni/net.d/10-flannel.conflist", cniConf),
		writeFile(hostRoot+configMaps+"flannel-cfg/net-conf.json", netConf(false)),
		writeFile(hostRoot+configMaps+"flannel-cfg/cni-conf.json", cniConf),
	)
}

const cniConf = `{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel","delegate":{"hairpinMode":true,` +
	`"isDefaultGateway":true}},{"type":"portmap","capabilities":{"portMappings":true}}]}` + "\n"

func netConf(native bool) string {
	return fmt.Sprintf(`{"Network":"%s","IPv6Network":"%s","EnableIPv6":true,"EnableNFTables":%t,"Backend":{"Type":"vxlan"}}`+"\n",
		Networks[0], Networks[1], native)
}

// writeSubnetEnv writes the file as flanneld does: beside its place, then renamed.
func writeSubnetEnv() error {
	first := func(p netip.Prefix) netip.Prefix { return netip.PrefixFrom(p.Addr().Next(), p.Bits()) }
	text := fmt.Sprintf("FLANNEL_NETWORK=%s\nFLANNEL_SUBNET=%s\nFLANNEL_IPV6_NETWORK=%s\nFLANNEL_IPV6_SUBNET=%s\n"+
		"FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n", Networks[0], first(Subnets[0]), Networks[1], first(Subnets[1]))
	beside := filepath.Join(filepath.Dir(subnetEnv), ".subnet.env")
	if err := writeFile(beside, text); err != nil {
		return err
	}
	return os.Rename(beside, subnetEnv)
}

func writeFile(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
