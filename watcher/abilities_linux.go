package watcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack/ctnl"
	"flanwatch/flannel"
	"flanwatch/watcher/host"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/legacy"
	"flanwatch/watcher/nft"
	"flanwatch/watcher/proc"
)

// Ability is something that flanwatch can see or do on this node, or cannot, and why.
type Ability struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Why  string `json:"why"`
}

// Abilities tries everything once that watching needs, without changing anything.
func (w *Watcher) Abilities(ctx context.Context) []Ability {
	var out []Ability
	add := func(name string, ok bool, why string) { out = append(out, Ability{name, ok, why}) }
	try := func(name, good string, f func() error) {
		err := f()
		switch {
		case err == nil:
			add(name, true, good)
		case errors.Is(err, nft.ErrNotPresent), errors.Is(err, legacy.ErrNotLoaded), errors.Is(err, ctnl.ErrNotPresent):
			add(name, false, "the kernel has none here, so there is nothing to see: "+err.Error())
		default:
			add(name, false, err.Error())
		}
	}
	w.Once(func(*incident.Observation) {})
	w.addPrivileges(add)
	w.addPlace(add)
	try("read nf_tables", "iptables-nft and native tables, in one generation", func() error { return open(w.ns, nft.Open) })
	try("hear changes of nf_tables", "the kernel announces every commit with process and program", func() error {
		return open(w.ns, nft.Subscribe)
	})
	try("read iptables-legacy", "tables that exist; none is made by looking", func() error { return open(w.ns, legacy.Open) })
	w.addLegacyEvents(add)
	try("name programs that have ended", "starts of programs are kept for a while", func() error { return w.listens() })
	try("count connections", "netlink, else /proc", func() error { return open(w.ns, ctnl.OpenMeter) })
	try("list and delete connections", "netlink", func() error { return open(w.ns, ctnl.Open) })
	w.addTools(ctx, add)
	return out
}

// open opens something in the namespace and closes it again.
func open[T io.Closer](ns *namespace, f func() (T, error)) error {
	v, err := within(ns, f)
	if err != nil {
		return err
	}
	return v.Close()
}

// privileges are those that something here needs.
var privileges = []struct {
	name string
	bit  uint
	use  string
}{
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN, "read and change rules and connections"},
	{"CAP_SYS_PTRACE", unix.CAP_SYS_PTRACE, "read environment, files and network namespace of other processes"},
	{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN, "enter another network namespace, and learn who takes the lock of iptables-legacy"},
}

func (w *Watcher) addPrivileges(add func(string, bool, string)) {
	status, _ := os.ReadFile("/proc/thread-self/status") // without it none is known to be there
	held := uint64(0)
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			held, _ = strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	for _, p := range privileges {
		why := "needed to " + p.use
		if held&(1<<p.bit) == 0 {
			why += "; run as root, or in a pod with securityContext.capabilities.add"
		}
		add(p.name, held&(1<<p.bit) != 0, why)
	}
}

// addPlace says which namespaces and files are looked at.
func (w *Watcher) addPlace(add func(string, bool, string)) {
	switch why := w.Elsewhere(); {
	case w.ns.path != "":
		add("network namespace", w.ns.gone() == "", orElse(w.ns.gone(), "that of "+w.ns.path))
	case why != "":
		add("network namespace", false, "not the node's ("+why+"): run on the host network, or name the namespace with --netns")
	default:
		add("network namespace", true, "our own, and nothing says that it is not the node's")
	}
	procs := w.host.last.procs
	add("see the node's processes", procs.State != flannel.Unreadable, orElse(procs.Why, "processes of this network namespace are seen; a pod needs hostPID"))
	if _, _, err := w.host.files.ReadFile("/etc/os-release", 1<<20); err == nil {
		add("read the node's files", true, "below "+w.host.files.Name())
	} else {
		add("read the node's files", false, fmt.Sprintf("below %s is no /etc/os-release: name the node's root with --root, /host in a debug pod", w.host.files.Name()))
	}
}

func orElse(why, otherwise string) string {
	if why == "" {
		return otherwise
	}
	return why
}

// addLegacyEvents says how changes of the legacy tables are heard of.
func (w *Watcher) addLegacyEvents(add func(string, bool, string)) {
	lock, err := legacy.WatchLock([]string{filepath.Join(w.root, legacy.LockFile)})
	if err != nil {
		add("hear changes of iptables-legacy", false, err.Error())
		return
	}
	method := lock.Method()
	add("hear changes of iptables-legacy", !strings.Contains(method, "cannot be watched"), method)
	_ = lock.Close() // of our own: nothing can be lost
}

// listens tells why starts of programs are not heard of. The socket must be made outside of the watched namespace.
func (w *Watcher) listens() error {
	if w.host.execs != nil {
		return nil
	}
	e, err := proc.OpenExecs(w.host.fs)
	if err != nil {
		return err
	}
	return e.Close()
}

// addTools lists the node's programs. Those of another root are not run.
func (w *Watcher) addTools(ctx context.Context, add func(string, bool, string)) {
	tools := host.Tools(w.host.files, w.clock.now()).Value
	if w.host.files.Name() == "/" {
		host.AskVersions(ctx, tools)
	}
	for _, name := range host.ToolNames() {
		t, ok := tools[name]
		why := "not needed to watch"
		switch {
		case ok && t.Version != "":
			why = t.Path + ", " + t.Version
		case ok:
			why = t.Path
		case name == "iptables-legacy" || name == "ip6tables-legacy":
			why = "needed to change legacy rules, not to watch"
		}
		add("program "+name, ok, why)
	}
}
