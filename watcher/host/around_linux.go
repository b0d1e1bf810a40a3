package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// How often the parts are read: routes cost with the number of nodes, and tools do not come and go.
const (
	routingPause = 10 * time.Second
	toolsPause   = time.Minute
)

// lockPath is where iptables-legacy keeps its lock.
const lockPath = "/run/xtables.lock"

// Around reads the node's surroundings. Its methods are for a thread in the watched network namespace, which procfs shows
// to the thread that asks.
type Around struct {
	files  *Files
	kernel *netlink.Handle
	ether  int // socket for questions about network cards

	settings map[string]diagnose.Setting
	counters risen
	last     diagnose.Surroundings
	tools    flannel.Time
}

// OpenAround prepares reading in the network namespace of the calling thread.
func OpenAround(files *Files) (*Around, error) {
	kernel, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open routes: %w", err)
	}
	ether, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		kernel.Close()
		return nil, fmt.Errorf("open socket for network cards: %w", err)
	}
	return &Around{files: files, kernel: kernel, ether: ether, settings: map[string]diagnose.Setting{}}, nil
}

// Close closes what OpenAround opened.
func (a *Around) Close() error {
	a.kernel.Close()
	return unix.Close(a.ether)
}

// Read looks once. Signs are the caller's to fill in.
func (a *Around) Read(now flannel.Time) diagnose.Surroundings {
	s := a.last
	if r := s.Routing; r.State == flannel.Unread || now.Sub(r.At) >= routingPause {
		s.Routing = a.routing(now)
	}
	s.Settings = a.switches(s.Routing.Value, now)
	s.Lock = a.lock(s.Lock, now)
	s.Counters = a.discards(now)
	if a.tools.IsZero() || now.Sub(a.tools) >= toolsPause {
		s.Tools, a.tools = Tools(a.files, now), now
	}
	a.last = s
	return s
}

// switches reads the settings of the namespace, and of the links that pods' packets pass.
func (a *Around) switches(r diagnose.Routing, now flannel.Time) []diagnose.Setting {
	names := []string{
		"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "net.bridge.bridge-nf-call-iptables",
		"net.bridge.bridge-nf-call-ip6tables", "net.ipv4.conf.all.rp_filter",
	}
	links := []string{}
	for _, l := range r.Links {
		if l.Name == "cni0" || strings.HasPrefix(l.Name, "flannel") {
			links = append(links, l.Name)
		}
	}
	if r.Uplink != "" {
		links = append(links, r.Uplink)
	}
	for _, l := range links {
		l = strings.ReplaceAll(l, ".", "/") // as sysctl writes it
		names = append(names, "net.ipv4.conf."+l+".forwarding", "net.ipv4.conf."+l+".rp_filter", "net.ipv6.conf."+l+".forwarding")
	}
	out := make([]diagnose.Setting, 0, len(names))
	known := make(map[string]diagnose.Setting, len(names))
	for _, name := range names {
		s := diagnose.Setting{Name: name, Value: readSwitch(name, now)}
		if before, ok := a.settings[name]; ok {
			s.Changed = before.Changed
			if before.Value.State != s.Value.State || before.Value.Value != s.Value.Value {
				s.Changed = now
			} else {
				s.Value.At = before.Value.At // since when it is so
			}
		}
		known[name] = s
		out = append(out, s)
	}
	a.settings = known
	return out
}

// readSwitch reads a setting. The name has dots for slashes and slashes for dots.
func readSwitch(name string, now flannel.Time) flannel.Reading[string] {
	file := path.Join("/proc/sys", strings.NewReplacer(".", "/", "/", ".").Replace(name))
	data, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return flannel.Miss[string](flannel.Absent, "the kernel has no such switch", file, now)
	case err != nil:
		return flannel.Miss[string](flannel.Unreadable, cause(err).Error(), file, now)
	}
	return flannel.Know(strings.TrimSpace(string(data)), file, now)
}

// lock tells who holds the lock of iptables-legacy, and since when it is known to be the same process.
func (a *Around) lock(before flannel.Reading[diagnose.Lock], now flannel.Time) flannel.Reading[diagnose.Lock] {
	st, err := a.files.stat(lockPath)
	if absent(err) {
		return flannel.Miss[diagnose.Lock](flannel.Absent, "no lock file", lockPath, now)
	}
	if err != nil {
		return flannel.Miss[diagnose.Lock](flannel.Unreadable, cause(err).Error(), lockPath, now)
	}
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return flannel.Miss[diagnose.Lock](flannel.Unreadable, cause(err).Error(), "/proc/locks", now)
	}
	pid, held := parseLocks(string(text), unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	if !held {
		return flannel.Miss[diagnose.Lock](flannel.Absent, "nobody holds it", lockPath, now)
	}
	l := diagnose.Lock{PID: pid, Since: now}
	if pid > 0 {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // it may be gone
		l.Comm = strings.TrimSpace(string(comm))
	}
	if was, known := before.Get(); known && was.PID == l.PID && was.Comm == l.Comm {
		l.Since = was.Since
	}
	return flannel.Know(l, lockPath, now)
}

// discards reads the counters of the namespace.
func (a *Around) discards(now flannel.Time) flannel.Reading[[]diagnose.Counter] {
	const folder = "/proc/thread-self/net/"
	totals := map[string]uint64{}
	for _, f := range []struct {
		name  string
		parse func(string, map[string]uint64)
	}{{"snmp", parsePairs}, {"netstat", parsePairs}, {"snmp6", parseSNMP6}} {
		text, err := os.ReadFile(folder + f.name)
		switch {
		case err == nil:
			f.parse(string(text), totals)
		case f.name == "snmp":
			return flannel.Miss[[]diagnose.Counter](flannel.Unreadable, cause(err).Error(), folder+f.name, now)
		}
	}
	return flannel.Know(a.counters.next(totals, now), folder+"snmp", now)
}
