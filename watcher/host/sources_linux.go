package host

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// Bounds of what is read. Flannel's files are some hundred bytes long.
const (
	maxConfig = 256 << 10
	maxPods   = 4096
)

// Paths on the node beside those of flanneld itself.
const (
	k3sConfig   = "/etc/rancher/k3s/config.yaml"
	kubeletRoot = "/var/lib/kubelet"
	configMaps  = "pods/*/volumes/kubernetes.io~configmap/*/net-conf.json"
)

// gatherer collects the evidence of one look.
type gatherer struct {
	files    *Files
	proc     string
	volumes  *volumes
	now      flannel.Time
	evidence Evidence
	defaults []Claim // what programs do unless told otherwise
}

// volumes remembers which ConfigMap volumes hold a net-conf.json: a search goes through the folders of all pods.
type volumes struct {
	searched flannel.Time
	names    []string
}

// searchPause is how long the outcome of a search is good.
const searchPause = 30 * time.Second

func (v *volumes) find(files *Files, dir string, now flannel.Time) []string {
	if v.searched.IsZero() || now.Sub(v.searched) >= searchPause {
		v.names, v.searched = files.Glob(path.Join(dir, configMaps), maxPods), now
	}
	return v.names
}

// roots opens the files of each flanneld as it sees them itself. A process that ended meanwhile has none.
func (g *gatherer) roots(procs []diagnose.Process) map[int]*Files {
	roots := map[int]*Files{}
	for _, p := range procs {
		if p.Kind != diagnose.ProcFlanneld {
			continue
		}
		name := fmt.Sprintf("%s/%d/root", g.proc, p.PID)
		f, err := OpenRoot(name)
		if err != nil {
			g.fail(name, err)
			continue
		}
		roots[p.PID] = f
	}
	return roots
}

// fail notes a source that could not be read, unless it simply does not exist.
func (g *gatherer) fail(source string, err error) {
	if absent(err) {
		return
	}
	why := cause(err).Error()
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		why += " (another process's files need CAP_SYS_PTRACE)"
	}
	g.evidence.Failures = append(g.evidence.Failures, Failure{Source: source, Why: why})
}

func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESRCH)
}

// cause is the innermost error: the name of the file stands before it already.
func cause(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// found is a file that was read, and where a person finds it.
type found struct {
	shown   string
	data    []byte
	written time.Time
}

func (g *gatherer) take(f *Files, prefix, name string) (found, bool) {
	data, written, err := f.ReadFile(name, maxConfig)
	if err != nil {
		g.fail(prefix+name, err)
		return found{}, false
	}
	return found{shown: prefix + name, data: data, written: written}, true
}

// subnetEnvs reads subnet.env on the host and in every flanneld's container. On most distributions both are one file. Where
// they differ the one written last counts: flanneld writes it at every start, and on Canal the host's is left from before.
func (g *gatherer) subnetEnvs(procs []diagnose.Process, roots map[int]*Files) {
	var list []found
	if f, ok := g.take(g.files, "", SubnetEnv); ok {
		list = append(list, f)
	}
	for _, p := range procs {
		root := roots[p.PID]
		if root == nil {
			continue
		}
		f, ok := g.take(root, root.Name(), flanneldOf(p).path("subnet-file", SubnetEnv))
		if ok && !slices.ContainsFunc(list, f.same) {
			list = append(list, f)
		}
	}
	newestFirst(list)
	for _, f := range list {
		env, problems := flannel.ParseSubnetEnv(f.data, f.shown)
		c := Claim{Source: f.shown, Written: f.written, Networks: env.Networks, Subnets: env.Subnets}
		c.MTU = env.MTU
		if env.IPMasqKnown {
			c.IPMasq = &env.IPMasq
		}
		g.claim(c)
		g.evidence.Problems = append(g.evidence.Problems, problems...)
	}
}

func (f found) same(o found) bool { return f.written.Equal(o.written) && bytes.Equal(f.data, o.data) }

func newestFirst(list []found) {
	slices.SortStableFunc(list, func(a, b found) int { return b.written.Compare(a.written) })
}

func (g *gatherer) claim(c Claim) { g.evidence.Claims = append(g.evidence.Claims, c) }

// netConfs reads net-conf.json where flanneld or k3s reads it. Only where none is found, as when the container is gone, the
// ConfigMap volumes of all pods are searched.
func (g *gatherer) netConfs(procs, near []diagnose.Process, roots map[int]*Files) {
	var list []found
	for _, p := range procs {
		if root := roots[p.PID]; root != nil {
			if f, ok := g.take(root, root.Name(), flanneldOf(p).path("net-config-path", NetConf)); ok {
				list = append(list, f)
			}
		}
	}
	for _, name := range []string{NetConf, k3sNetConf} {
		if f, ok := g.take(g.files, "", name); ok {
			list = append(list, f)
		}
	}
	if len(list) == 0 {
		list = g.mounted(near)
	}
	for i, f := range list {
		if !slices.ContainsFunc(list[:i], f.same) {
			g.netConf(f, procs)
		}
	}
}

// mounted reads the net-conf.json of ConfigMap volumes.
func (g *gatherer) mounted(near []diagnose.Process) []found {
	dir := kubeletRoot
	for _, p := range near {
		if v, ok := flag(p.Cmdline, "--root-dir"); ok && p.Comm == "kubelet" && path.IsAbs(v) {
			dir = v
		}
	}
	var list []found
	for _, name := range g.volumes.find(g.files, dir, g.now) {
		if f, ok := g.take(g.files, "", name); ok {
			list = append(list, f)
		}
	}
	newestFirst(list)
	return list
}

func (g *gatherer) netConf(f found, procs []diagnose.Process) {
	conf, problems := flannel.ParseNetConf(f.data, f.shown)
	c := Claim{Source: f.shown, Written: f.written, Networks: conf.Networks}
	switch {
	case pending(f, procs):
		problems = append(problems, flannel.Problem{
			File: f.shown, What: "was changed after flanneld had started, which reads it at its next start",
		})
	case len(problems) == 0:
		c.NFTables = &conf.EnableNFTables
	}
	g.claim(c)
	g.evidence.Problems = append(g.evidence.Problems, problems...)
	for _, k := range conf.Ignored {
		g.evidence.Ignored = append(g.evidence.Ignored, flannel.Problem{File: f.shown, Line: k.Line, What: k.Key})
	}
}

// slack is how far the clocks of a file and of a process's start may be apart.
const slack = 2 * time.Second

// pending tells whether every flanneld here is older than the file: it is not in force yet.
func pending(f found, procs []diagnose.Process) bool {
	older, any := true, false
	for _, p := range procs {
		if p.Kind == diagnose.ProcFlanneld {
			any = true
			older = older && p.Started.Wall.Add(slack).Before(f.written)
		}
	}
	return any && older
}

// flanneldSettings is what a flanneld was told. Where nothing was said of ip-masq, its default holds only if no subnet.env
// says otherwise: flanneld writes there at each start what is in force, and may have got it in a way that is not seen here.
func (g *gatherer) flanneldSettings(p diagnose.Process, source string) Settings {
	f := flanneldOf(p)
	s := f.settings()
	if _, said := f.get("ip-masq"); !said {
		g.defaults = append(g.defaults, Claim{Source: source, Settings: Settings{IPMasq: s.IPMasq}})
		s.IPMasq = nil
	}
	return s
}

// live takes what running processes were told, the newest first.
func (g *gatherer) live(procs []diagnose.Process) {
	for _, p := range slices.Backward(procs) {
		c := Claim{Source: sourceOf(p)}
		switch p.Kind {
		case diagnose.ProcFlanneld:
			c.Settings = g.flanneldSettings(p, c.Source)
			if p.Env == nil {
				g.fail("environment of "+c.Source[len("flags of "):], unix.EACCES)
			}
		case diagnose.ProcK3s:
			config, err := k3sFlags(g.files)
			if err != nil {
				g.fail(k3sConfig, err)
			}
			c = k3sClaim(p, config, err == nil)
		}
		g.evidence.Live = append(g.evidence.Live, c)
		if len(c.Networks) > 0 {
			g.claim(Claim{Source: c.Source, Networks: c.Networks})
		}
	}
}

// k3sFlags gives the flags in k3s's configuration files, later files last. No file is no error.
func k3sFlags(files *Files) ([]string, error) {
	names := append([]string{k3sConfig}, files.Glob(k3sConfig+".d/*.yaml", maxPods)...)
	var out []string
	for _, name := range names {
		data, _, err := files.ReadFile(name, maxConfig)
		if absent(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, yamlFlags(data)...)
	}
	return out, nil
}

// kubeProxy takes the network of all pods from kube-proxy's flags, or from the file that they name.
func (g *gatherer) kubeProxy(near []diagnose.Process) {
	for _, p := range near {
		if p.Comm != "kube-proxy" {
			continue
		}
		if v, ok := flag(p.Cmdline, "--cluster-cidr"); ok {
			g.claim(Claim{Source: sourceOf(p), Networks: prefixes(v)})
			continue
		}
		if name, ok := flag(p.Cmdline, "--config"); ok {
			g.kubeProxyConfig(p, name)
		}
	}
}

func (g *gatherer) kubeProxyConfig(p diagnose.Process, name string) {
	root, err := OpenRoot(fmt.Sprintf("%s/%d/root", g.proc, p.PID))
	if err != nil {
		g.fail(fmt.Sprintf("%s of kube-proxy (pid %d)", name, p.PID), err)
		return
	}
	defer root.Close()
	f, ok := g.take(root, root.Name(), name)
	if !ok {
		return
	}
	if v, ok := flag(yamlFlags(f.data), "--clusterCIDR"); ok {
		g.claim(Claim{Source: f.shown, Written: f.written, Networks: prefixes(v)})
	}
}
