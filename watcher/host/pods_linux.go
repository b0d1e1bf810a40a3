package host

import (
	"net/netip"
	"path"
	"strings"
	"sync"
	"time"
)

// Where pods and their addresses are written down, by whom. No runtime is asked: its sockets are not ours to touch.
const (
	cniResults  = "/var/lib/cni/results"  // by libcni, for every runtime that uses it: one file for each pod and network
	cniNetworks = "/var/lib/cni/networks" // by the plugin host-local: one file for each address, with the sandbox's ID
	kubeletPods = "/var/lib/kubelet/pods" // by the kubelet: a folder for each pod, with its hosts file
	podLogs     = "/var/log/pods"         // by the kubelet: a folder NAMESPACE_NAME_UID for each pod
)

// sandboxes are the files in which runtimes describe a sandbox, its ID in place of the star.
var sandboxes = []string{
	"/run/containerd/io.containerd.runtime.v2.task/k8s.io/*/config.json",
	"/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/*/config.json",
	"/run/containers/storage/overlay-containers/*/userdata/config.json",     // CRI-O
	"/var/lib/containers/storage/overlay-containers/*/userdata/config.json", // CRI-O
	"/var/lib/cri-dockerd/sandbox/*",
	"/var/lib/dockershim/sandbox/*",
}

const (
	maxPodEntries = 4096    // entries of a folder that are looked at
	maxPodFile    = 1 << 20 // of a description of a sandbox
	podsShare     = 100     // looking takes one part in so many of the time, at the most
	leastPods     = 5 * time.Second
	maxHostFile   = 64 << 10
)

// Pods finds the names of pods by their addresses, NAMESPACE/NAME, in the files of the node. It is safe for concurrent use.
type Pods struct {
	files *Files

	mu        sync.Mutex
	names     map[netip.Addr]string
	next      time.Time
	known     map[string]pod    // by file, of those that never change: they are named after a container
	sandboxes map[string]string // names of pods by the ID of their sandbox
}

// NewPods makes a finder for the files of a node.
func NewPods(files *Files) *Pods {
	return &Pods{files: files, known: map[string]pod{}, sandboxes: map[string]string{}}
}

// Names gives the names of pods by address. They are some seconds old at the most on a node with few pods. What it gave
// before does not change.
func (p *Pods) Names() map[netip.Addr]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	start := time.Now()
	if start.Before(p.next) {
		return p.names
	}
	p.names = p.look()
	end := time.Now()
	p.next = end.Add(max(leastPods, podsShare*end.Sub(start)))
	return p.names
}

// look reads all sources. Later ones tell only of addresses that those before say nothing of.
func (p *Pods) look() map[netip.Addr]string {
	names := map[netip.Addr]string{}
	add := func(found pod) {
		for _, a := range found.addrs {
			if names[a] == "" && found.name != "" {
				names[a] = found.name
			}
		}
	}
	kept := map[string]pod{}
	for _, file := range p.list(cniResults) {
		found, ok := p.known[file]
		if !ok {
			data, _, err := p.files.ReadFile(file, maxPodFile)
			if err != nil {
				continue
			}
			found = podOfResult(data)
		}
		if found.name != "" { // it may not be written in full yet
			kept[file] = found
		}
		add(found)
	}
	p.known = kept
	p.hostLocal(add, names)
	p.kubelet(add)
	return names
}

func (p *Pods) list(folder string) []string {
	names, err := p.files.ReadDir(folder, maxPodEntries)
	if err != nil {
		return nil
	}
	for i, n := range names {
		names[i] = path.Join(folder, n)
	}
	return names
}

// hostLocal reads the addresses that the plugin host-local gave out, and looks the sandboxes up that they belong to.
func (p *Pods) hostLocal(add func(pod), names map[netip.Addr]string) {
	seen := map[string]string{}
	for _, folder := range p.list(cniNetworks) {
		for _, file := range p.list(folder) {
			addr, err := netip.ParseAddr(path.Base(file))
			if err != nil || names[addr] != "" {
				continue
			}
			data, _, err := p.files.ReadFile(file, maxHostFile)
			if err != nil {
				continue
			}
			id := firstWord(data)
			if !isID(id) {
				continue
			}
			name := p.sandboxes[id]
			if name == "" {
				name = p.sandbox(id) // a runtime writes it later than the plugin its file
			}
			if name != "" {
				seen[id] = name
			}
			add(pod{name, []netip.Addr{addr}})
		}
	}
	p.sandboxes = seen
}

// sandbox looks for the pod of a sandbox in the files of the runtimes.
func (p *Pods) sandbox(id string) string {
	for _, pattern := range sandboxes {
		data, _, err := p.files.ReadFile(strings.Replace(pattern, "*", id, 1), maxPodFile)
		if err != nil {
			continue
		}
		if name := podOfSandbox(data); name != "" {
			return name
		}
	}
	return ""
}

// kubelet reads the hosts file that the kubelet writes for each pod, and the pod's name off its folder of logs.
func (p *Pods) kubelet(add func(pod)) {
	folders := p.list(kubeletPods)
	if len(folders) == 0 {
		return
	}
	byUID := map[string]string{}
	for _, folder := range p.list(podLogs) {
		if uid, name, ok := podOfLogs(path.Base(folder)); ok {
			byUID[uid] = name
		}
	}
	for _, folder := range folders {
		name := byUID[path.Base(folder)]
		if name == "" {
			continue
		}
		data, _, err := p.files.ReadFile(path.Join(folder, "etc-hosts"), maxHostFile)
		if err == nil {
			add(pod{name, podOfHosts(data)})
		}
	}
}
