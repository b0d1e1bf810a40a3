package host

import (
	"fmt"
	"net/netip"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// Bounds of what is read of files on demand.
const (
	maxFirewall = 8 << 20
	maxNames    = 8192
	maxStale    = 64
)

// flannelFiles are what Flannel and its plugin leave on a node, beside network configurations and reservations.
var flannelFiles = []string{SubnetEnv, k3sNetConf, "/var/lib/cni/flannel", "/opt/cni/bin/flannel"}

// Places where the network plugins write down what they gave to pods.
const (
	reservations = "/var/lib/cni/networks"
	results      = "/var/lib/cni/results"
	oldResults   = "/var/lib/cni/cache/results"
)

// Remains looks through the files that are read on demand only. Pods are the addresses of local pods that are known, procs
// is the proc file system in which containers are looked for.
func Remains(files *Files, procs string, networks []netip.Prefix, pods []netip.Addr, now flannel.Time) flannel.Reading[diagnose.Remains] {
	h := &hunter{files: files, alive: containers(procs)}
	for _, name := range flannelFiles {
		if st, err := files.stat(name); err == nil {
			h.found.Files = append(h.found.Files, diagnose.File{Path: name, Written: time.Unix(st.Mtim.Unix())})
		}
	}
	h.saved(networks)
	h.configs()
	h.pools()
	h.hostPorts(pods)
	h.boot()
	return flannel.Know(h.found, files.Name(), now)
}

type hunter struct {
	files *Files
	alive map[string]bool // containers that run; empty where that cannot be told
	found diagnose.Remains
}

// take reads a file, and notes why it cannot be read unless it does not exist.
func (h *hunter) take(name string, max int64) ([]byte, bool) {
	data, _, err := h.files.ReadFile(name, max)
	if err != nil && !absent(err) && len(h.found.Failures) < maxStale {
		h.found.Failures = append(h.found.Failures, fmt.Sprintf("%s: %v", name, cause(err)))
	}
	return data, err == nil
}

func (h *hunter) list(folder string) []string {
	names, err := h.files.ReadDir(folder, maxNames)
	if err != nil && !absent(err) {
		h.found.Failures = append(h.found.Failures, fmt.Sprintf("%s: %v", folder, cause(err)))
	}
	h.found.Bounded = h.found.Bounded || len(names) == maxNames
	return names
}

func (h *hunter) saved(networks []netip.Prefix) {
	for _, pattern := range firewallFiles {
		for _, name := range h.files.Glob(pattern, maxNames) {
			if data, ok := h.take(name, maxFirewall); ok {
				if s, found := savedRules(name, string(data), networks); found {
					h.found.Saved = append(h.found.Saved, s)
				}
			}
		}
	}
}

func (h *hunter) configs() {
	for _, folder := range cniFolders {
		for _, name := range h.list(folder) {
			if !cniFile(name) {
				continue
			}
			if data, ok := h.take(path.Join(folder, name), maxConfig); ok {
				c, _ := parseCNI(path.Join(folder, name), data)
				h.found.Configs = append(h.found.Configs, c)
			}
		}
	}
}

// pools counts the reservations of host-local: a file for each address, named after it, with the container in its first
// line.
func (h *hunter) pools() {
	for _, network := range h.list(reservations) {
		p := diagnose.Pool{Path: path.Join(reservations, network), Told: len(h.alive) > 0}
		if st, err := h.files.stat(p.Path); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		for _, name := range h.list(p.Path) {
			if _, err := netip.ParseAddr(name); err != nil {
				continue
			}
			p.Reserved++
			if !p.Told {
				continue
			}
			data, _ := h.take(path.Join(p.Path, name), maxConfig)
			id, _, _ := strings.Cut(string(data), "\n")
			switch {
			case h.alive[strings.TrimSpace(id)]:
				p.Alive++
			case len(p.Stale) < maxStale:
				p.Stale = append(p.Stale, name)
			}
		}
		h.found.Pools = append(h.found.Pools, p)
	}
}

// hostPorts finds the ports of the node that were promised to pods which are there.
func (h *hunter) hostPorts(pods []netip.Addr) {
	for _, folder := range []string{results, oldResults} {
		for _, name := range h.list(folder) {
			data, ok := h.take(path.Join(folder, name), maxConfig)
			if !ok {
				continue
			}
			r, ok := parseResult(data)
			here := h.alive[r.container] ||
				slices.ContainsFunc(r.addresses, func(a netip.Addr) bool { return slices.Contains(pods, a) })
			if ok && here && len(h.found.Ports) < maxStale {
				h.found.Ports = append(h.found.Ports, r.ports...)
			}
		}
	}
}

func (h *hunter) boot() {
	for _, name := range bootFiles(h.list) {
		if data, ok := h.take(name, maxConfig); ok {
			h.found.Boot = parseSysctl(name, string(data), h.found.Boot)
		}
	}
}

// containerID finds the number of a container in a control group.
var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// containers lists the containers that have a process.
func containers(procs string) map[string]bool {
	alive := map[string]bool{}
	dir, err := os.Open(procs)
	if err != nil {
		return alive
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		data, err := os.ReadFile(path.Join(procs, name, "cgroup"))
		if err != nil {
			continue
		}
		if id := containerID.Find(data); id != nil {
			alive[string(id)] = true
		}
	}
	return alive
}
