package watcher

import (
	"errors"
	"os"
	"reflect"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/host"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/proc"
)

// hostFacts reads what the node tells apart from its packet filter: files, links, processes.
type hostFacts struct {
	files *host.Files
	fs    *proc.FS
	scan  *proc.Scanner
	links *proc.LinkReader

	last struct {
		node  flannel.Node
		procs flannel.Reading[[]diagnose.Process]
		links flannel.Reading[[]diagnose.Link]
	}
}

func openHost(ns *namespace, o Options) (h *hostFacts, err error) {
	h = &hostFacts{}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	if h.files, err = host.OpenRoot(o.Root); err != nil {
		return h, err
	}
	if h.fs, err = proc.OpenFS("/proc"); err != nil {
		return h, err
	}
	id, err := within(ns, proc.Here)
	if err != nil {
		return h, err
	}
	h.scan = proc.New(h.fs, id)
	h.links, err = within(ns, proc.OpenLinks)
	return h, err
}

// read hands out what differs from the last look.
func (h *hostFacts) read(now flannel.Time, sink Sink) {
	procs := h.scan.Scan(now).Flannel
	if changed(&h.last.procs, procs) {
		sink(&incident.Observation{Time: now, Procs: &procs})
	}
	links := h.links.Read(now)
	if changed(&h.last.links, links) {
		sink(&incident.Observation{Time: now, Links: &links})
	}
	node := h.node(now)
	if !reflect.DeepEqual(h.last.node, node) {
		h.last.node = node
		sink(&incident.Observation{Time: now, Node: &node})
	}
}

func (h *hostFacts) node(now flannel.Time) flannel.Node {
	name, _ := os.Hostname()
	data, written, err := h.files.ReadFile("/run/flannel/subnet.env", 64<<10)
	var e host.Evidence
	e.Name = name
	if err == nil {
		env, problems := flannel.ParseSubnetEnv(data, "/run/flannel/subnet.env")
		e.Problems = problems
		e.Claims = append(e.Claims, host.Claim{Source: "/run/flannel/subnet.env", Written: written, Networks: env.Networks, Subnets: env.Subnets, Settings: host.Settings{IPMasq: &env.IPMasq}})
	}
	n := host.Combine(e, flannel.Time{})
	return n
}

// changed tells whether a reading says something new, and remembers it. The time of reading is not news.
func changed[T any](last *flannel.Reading[T], r flannel.Reading[T]) bool {
	before := *last
	*last = r
	before.At = r.At
	return !reflect.DeepEqual(before, r)
}

func (h *hostFacts) close() error {
	var errs []error
	if h.files != nil {
		errs = append(errs, h.files.Close())
	}
	if h.fs != nil {
		errs = append(errs, h.fs.Close())
	}
	if h.links != nil {
		h.links.Close()
	}
	return errors.Join(errs...)
}
