package host

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// Options says where to look.
type Options struct {
	Files    *Files         // files of the host
	Proc     string         // proc file system of the host, "/proc" if empty
	State    string         // flanwatch's state directory, "" for none
	Networks []netip.Prefix // what the person gave with --network and --subnet
	Subnets  []netip.Prefix
}

// Reader reads the node's configuration from all its sources.
type Reader struct {
	options Options
	kernel  *netlink.Handle
	volumes volumes
}

// Open prepares reading; links and routes will be those of the calling thread's network namespace.
func Open(o Options) (*Reader, error) {
	if o.Proc == "" {
		o.Proc = "/proc"
	}
	kernel, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open links and routes: %w", err)
	}
	return &Reader{options: o, kernel: kernel}, nil
}

// Close closes what Open opened.
func (r *Reader) Close() { r.kernel.Close() }

// Node looks once. Procs are the processes that run Flannel here, near the other programs of the node, rules what each
// backend holds or held last (nil ones are skipped).
func (r *Reader) Node(
	procs flannel.Reading[[]diagnose.Process], near []diagnose.Process, rules []*flannel.Ruleset, now flannel.Time,
) flannel.Node {
	g := &gatherer{files: r.options.Files, proc: r.options.Proc, volumes: &r.volumes, now: now}
	if procs.State == flannel.Unreadable {
		g.evidence.Failures = append(g.evidence.Failures, Failure{Source: "processes", Why: procs.Why})
	}
	roots := g.roots(procs.Value)
	defer func() {
		for _, f := range roots {
			f.Close()
		}
	}()
	// The order is that of trust.
	g.subnetEnvs(procs.Value, roots)
	g.netConfs(procs.Value, near, roots)
	g.live(procs.Value)
	g.saved(r.options.State)
	g.rules(rules)
	g.links(r.kernel)
	g.kubeProxy(near)
	g.claim(Claim{Source: sourceGiven, Networks: r.options.Networks, Subnets: r.options.Subnets})

	g.evidence.Claims = append(g.evidence.Claims, g.defaults...)

	g.evidence.Name, _ = os.Hostname()
	g.evidence.Distribution = distribution(procs, near, g.traces(), now)
	return Combine(g.evidence, now)
}

// Running leaves out every k3s that its configuration files tell to do without Flannel; its flags were looked at when it
// was found.
func (r *Reader) Running(procs flannel.Reading[[]diagnose.Process]) flannel.Reading[[]diagnose.Process] {
	var out []diagnose.Process
	for _, p := range procs.Value {
		if p.Kind == diagnose.ProcK3s {
			config, _ := k3sFlags(r.options.Files)
			if v, _ := flag(config, "--flannel-backend"); v == "none" {
				continue
			}
		}
		out = append(out, p)
	}
	procs.Value = out
	return procs
}

func (g *gatherer) rules(rules []*flannel.Ruleset) {
	for _, rs := range rules {
		if rs == nil {
			continue
		}
		networks, subnets := flannel.FromRules(rs)
		g.claim(Claim{Source: sourceRules + rs.Backend.String(), Networks: networks, Subnets: subnets})
	}
}

// traces are the files by which a distribution is told.
func (g *gatherer) traces() []string {
	var out []string
	for _, name := range telling {
		if g.files.exists(name) {
			out = append(out, name)
		}
	}
	return out
}
