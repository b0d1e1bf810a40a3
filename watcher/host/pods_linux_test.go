package host

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// names opens a root and looks once.
func podNames(t *testing.T, root string) map[netip.Addr]string {
	t.Helper()
	files, err := OpenRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	return NewPods(files).Names()
}

func TestNamesOfPodsComeFromWhatPluginRuntimeAndKubeletWrote(t *testing.T) {
	const id = "0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9"
	local := func(root, ip string) { write(t, root, "var/lib/cni/networks/cbr0/"+ip, id+"\r\neth0") }
	for name, c := range map[string]struct {
		files func(root string)
		want  map[string]string
	}{
		"libcni's results, both families": {func(root string) {
			write(t, root, "var/lib/cni/results/cbr0-"+id+"-eth0", `{"kind":"cniCacheV1","containerId":"`+id+`","ifName":"eth0",
				"cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","cart-0"]],
				"result":{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.244.1.5/24"},{"address":"fd00:244:0:1::5/64"}]}}`)
			write(t, root, "var/lib/cni/results/lo-other", `{"result":{"ips":[{"address":"10.244.1.9/24"}]}}`)
			write(t, root, "var/lib/cni/results/broken", `{"cniArgs":[["K8S_POD`)
		}, map[string]string{"10.244.1.5": "shop/cart-0", "fd00:244:0:1::5": "shop/cart-0"}},
		"host-local and containerd": {func(root string) {
			local(root, "10.244.1.6")
			write(t, root, "var/lib/cni/networks/cbr0/last_reserved_ip.0", "10.244.1.6")
			write(t, root, "var/lib/cni/networks/cbr0/lock", "")
			write(t, root, "run/containerd/io.containerd.runtime.v2.task/k8s.io/"+id+"/config.json",
				`{"ociVersion":"1.0.2","annotations":{"io.kubernetes.cri.container-type":"sandbox",
				"io.kubernetes.cri.sandbox-name":"dns-7","io.kubernetes.cri.sandbox-namespace":"kube-system"}}`)
		}, map[string]string{"10.244.1.6": "kube-system/dns-7"}},
		"host-local and the containerd of k3s": {func(root string) {
			local(root, "10.42.0.6")
			write(t, root, "run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/"+id+"/config.json",
				`{"annotations":{"io.kubernetes.cri.sandbox-name":"a","io.kubernetes.cri.sandbox-namespace":"b"}}`)
		}, map[string]string{"10.42.0.6": "b/a"}},
		"host-local and CRI-O, through the link /var/run": {func(root string) {
			local(root, "fd00:244:0:1::6")
			write(t, root, "run/containers/storage/overlay-containers/"+id+"/userdata/config.json",
				`{"annotations":{"io.kubernetes.pod.name":"web","io.kubernetes.pod.namespace":"shop"}}`)
		}, map[string]string{"fd00:244:0:1::6": "shop/web"}},
		"host-local and cri-dockerd": {func(root string) {
			local(root, "10.244.1.7")
			write(t, root, "var/lib/cri-dockerd/sandbox/"+id, `{"version":"v1","name":"db-0","namespace":"shop","checksum":1}`)
		}, map[string]string{"10.244.1.7": "shop/db-0"}},
		"the kubelet alone": {func(root string) {
			write(t, root, "var/lib/kubelet/pods/1-2-3/etc-hosts", "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"+
				"::1\tlocalhost ip6-localhost\nfe00::0\tip6-localnet\nfe00::1\tip6-allnodes\n10.244.1.8\tcart-1\nfd00:244::8\tcart-1\n\n"+
				"# Entries added by HostAliases.\n192.0.2.1\tlegacy\n")
			write(t, root, "var/lib/kubelet/pods/4-5-6/etc-hosts", "# Kubernetes-managed hosts file (host network).\n192.168.60.11\tworker-3\n")
			write(t, root, "var/lib/kubelet/pods/7-8-9/etc-hosts", "# Kubernetes-managed hosts file.\n10.244.1.9\tnobody\n")
			write(t, root, "var/log/pods/shop_cart-1_1-2-3/cart/0.log", "")
			write(t, root, "var/log/pods/kube-system_proxy_4-5-6/proxy/0.log", "")
		}, map[string]string{"10.244.1.8": "shop/cart-1", "fd00:244::8": "shop/cart-1"}},
		"an address whose sandbox nothing tells": {func(root string) { local(root, "10.244.1.6") }, map[string]string{}},
		"names of files that lead elsewhere": {func(root string) {
			write(t, root, "var/lib/cni/networks/cbr0/10.244.1.6", "../../../../secret\neth0")
			write(t, root, "var/lib/cri-dockerd/sandbox/x", "")
			write(t, root, "var/lib/secret", `{"name":"a","namespace":"b"}`)
		}, map[string]string{}},
		"nothing": {func(string) {}, map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			c.files(root)
			got := map[string]string{}
			for a, n := range podNames(t, root) {
				got[a.String()] = n
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestAPodThatComesIsFoundAndOneThatGoesIsForgotten(t *testing.T) {
	root := t.TempDir()
	files, err := OpenRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	p := NewPods(files)
	result := func(name string) string {
		return strings.ReplaceAll(`{"cniArgs":[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","%NAME"]],"result":{"ips":[{"address":"10.244.1.5/24"}]}}`, "%NAME", name)
	}
	look := func() string {
		p.next = time.Time{}
		return p.Names()[netip.MustParseAddr("10.244.1.5")]
	}
	for i, name := range []string{"cart-0", "cart-1"} { // the address is given out again
		file := filepath.Join(root, "var/lib/cni/results", fmt.Sprintf("cbr0-%d-eth0", i))
		write(t, root, strings.TrimPrefix(file, root+"/"), `{"cniArgs":`) // half written
		if got := look(); got != "" {
			t.Errorf("half written: %q", got)
		}
		write(t, root, strings.TrimPrefix(file, root+"/"), result(name))
		if got := look(); got != "shop/"+name {
			t.Errorf("%q, want shop/%s", got, name)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if got := look(); got != "" {
			t.Errorf("gone: %q", got)
		}
	}
	write(t, root, "var/lib/cni/results/a", result("a"))
	if p.Names(); len(p.names) != 0 {
		t.Error("files are read again within moments")
	}
}

func FuzzPodFiles(f *testing.F) {
	f.Add([]byte(`{"annotations":{"io.kubernetes.pod.name":"web","io.kubernetes.pod.namespace":"shop"}}`))
	f.Add([]byte(`{"cniArgs":[["K8S_POD_NAME"]],"result":{"ips":[{"address":"x"}]}}`))
	f.Add([]byte("# Kubernetes-managed hosts file.\n10.244.1.8\tcart-1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, name := range []string{podOfSandbox(data), podOfResult(data).name} {
			if name != "" && strings.Count(name, "/") == 0 {
				t.Errorf("%q", name)
			}
		}
		for _, a := range podOfHosts(data) {
			if a.IsLoopback() || !a.IsValid() {
				t.Errorf("%v", a)
			}
		}
	})
}
