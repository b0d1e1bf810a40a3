package watcher

import (
	"errors"
	"reflect"
	"sync/atomic"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/host"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/proc"
)

// hostFacts reads what the node tells apart from its packet filter: files, links, routes, processes.
type hostFacts struct {
	files *host.Files
	fs    *proc.FS
	scan  *proc.Scanner
	execs *proc.Execs // nil where starts of programs are not announced
	asker *proc.Asker
	links *proc.LinkReader
	node  *host.Reader
	held  map[flannel.Backend]*flannel.Ruleset // the last rules of each backend that told networks
	told  func(*about)                         // told of what others judge by, whenever that is new

	seen   atomic.Pointer[flannel.Node] // for other goroutines: the node as it was read last, never changed
	around *around

	last struct {
		node  flannel.Node
		procs flannel.Reading[[]diagnose.Process]
		links flannel.Reading[[]diagnose.Link]
		near  []diagnose.Process
	}
}

func openHost(ns *namespace, o Options) (h *hostFacts, err error) {
	h = &hostFacts{held: map[flannel.Backend]*flannel.Ruleset{}}
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
	h.execs, _ = proc.OpenExecs(h.fs) // without it only programs that still run can be asked about
	h.asker = proc.NewAsker(h.fs, h.execs)
	if h.links, err = within(ns, proc.OpenLinks); err != nil {
		return h, err
	}
	h.scan.Recognize(h.links)
	where := host.Options{Files: h.files, State: o.State, Networks: o.Networks, Subnets: o.Subnets}
	if h.node, err = within(ns, func() (*host.Reader, error) { return host.Open(where) }); err != nil {
		return h, err
	}
	h.around, err = openAround(ns, h.files)
	return h, err
}

// hold keeps rules that tell networks: when they are gone, what they told may be all that is left.
func (h *hostFacts) hold(rules *flannel.Ruleset) {
	if before := h.held[rules.Backend]; before != nil && before.Revision == rules.Revision {
		return
	}
	if networks, _ := flannel.FromRules(rules); len(networks) == 0 {
		return
	}
	c := rules.Clone()
	h.held[rules.Backend] = &c
}

// read hands out what differs from the last look.
func (h *hostFacts) read(now flannel.Time, sink Sink) {
	found := h.scan.Scan(now)
	procs := h.node.Running(found.Flannel)
	news := changed(&h.last.procs, procs)
	if news {
		sink(&incident.Observation{Time: now, Procs: &procs})
	}
	links := h.links.Read(now)
	if changed(&h.last.links, links) {
		sink(&incident.Observation{Time: now, Links: &links})
	}
	rules := []*flannel.Ruleset{h.held[flannel.IptablesNft], h.held[flannel.IptablesLegacy], h.held[flannel.Nftables]}
	node := h.node.Node(procs, found.Near, rules, now)
	if !host.Same(h.last.node, node) {
		h.last.node, news = node, true
		h.seen.Store(&node)
		sink(&incident.Observation{Time: now, Node: &node})
	}
	if news {
		h.told(&about{h.last.node, h.last.procs.Value})
	}
	h.last.near = found.Near
	h.around.read(found.Near, now, sink)
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
	if h.around != nil {
		errs = append(errs, h.around.close()...)
	}
	if h.files != nil {
		errs = append(errs, h.files.Close())
	}
	if h.execs != nil {
		errs = append(errs, h.execs.Close())
	}
	if h.fs != nil {
		errs = append(errs, h.fs.Close())
	}
	if h.links != nil {
		h.links.Close()
	}
	if h.node != nil {
		h.node.Close()
	}
	return errors.Join(errs...)
}
