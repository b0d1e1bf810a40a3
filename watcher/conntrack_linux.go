package watcher

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"flanwatch/conntrack"
	"flanwatch/conntrack/ctnl"
	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/host"
	"flanwatch/watcher/incident"
)

// tableInterval is how often the counters of connection tracking are read, which takes some 20 µs.
const tableInterval = time.Second

// connections reads connection tracking: its counters always, its entries only while somebody wants them.
type connections struct {
	ns     *namespace
	meter  *ctnl.Meter
	tried  flannel.Time
	reader *ctnl.Reader // of entries, opened by the first look
	around *surroundings
	pods   *host.Pods
	ages   *conntrack.Ages

	about  atomic.Pointer[about]                // what connections are judged by
	wanted atomic.Pointer[incident.FlowsWanted] // nil: nobody wants the entries
	wake   chan struct{}

	tracking tracking
	uses     atomic.Pointer[uses] // nil: not known yet
	changed  atomic.Bool          // rules changed since

	deleting sync.Mutex
	deleter  *ctnl.Reader // opened by the first deletion
}

// about is what the node's reader told last.
type about struct {
	node  flannel.Node
	procs []diagnose.Process
}

func newConnections(ns *namespace, files *host.Files) *connections {
	return &connections{ns: ns, tracking: tracking{ns: ns}, ages: conntrack.NewAges(), pods: host.NewPods(files), wake: make(chan struct{}, 1)}
}

// readTable reads the counters.
func (c *connections) readTable(now func() flannel.Time, sink Sink) {
	at := now()
	if c.meter == nil {
		if !c.tried.IsZero() && at.Sub(c.tried) < retry {
			return
		}
		c.tried = at
		meter, err := within(c.ns, ctnl.OpenMeter)
		if err != nil {
			observeTable(missTable[conntrack.Health](err, at), sink)
			return
		}
		c.meter = meter
	}
	h, err := c.meter.Read()
	if err != nil {
		observeTable(missTable[conntrack.Health](err, now()), sink)
		return
	}
	if u := c.uses.Load(); u != nil {
		h.Use4, h.Use6 = u[0], u[1]
	}
	observeTable(flannel.Know(h, h.Source, now()), sink)
}

func observeTable(r flannel.Reading[conntrack.Health], sink Sink) {
	sink(&incident.Observation{Time: r.At, Table: &r})
}

func missTable[T any](err error, at flannel.Time) flannel.Reading[T] {
	if errors.Is(err, ctnl.ErrNotPresent) {
		return flannel.Miss[T](flannel.Absent, "the kernel tracks no connections", "nf_conntrack", at)
	}
	return flannel.Miss[T](flannel.Unreadable, err.Error(), "nf_conntrack", at)
}

// survey looks at every entry once. It gives how long that took.
func (c *connections) survey(masquerade map[flannel.Family]bool, now func() flannel.Time, sink Sink) time.Duration {
	err := c.open()
	start := now()
	var r flannel.Reading[conntrack.Survey]
	var s *conntrack.Survey
	if err == nil {
		s, err = c.look(masquerade, now)
	}
	if err != nil {
		r = missTable[conntrack.Survey](err, now())
	} else {
		c.ages.Mark(s, start)
		r = flannel.Know(*s, conntrack.SourceNetlink, now())
	}
	sink(&incident.Observation{Time: r.At, Flows: &r})
	return now().Sub(start)
}

// attempts bounds how often a table that is resized while it is read is read again.
const attempts = 3

// open opens the reader of entries, once.
func (c *connections) open() (err error) {
	if c.reader == nil {
		c.reader, err = within(c.ns, ctnl.Open)
	}
	return err
}

func (c *connections) look(masquerade map[flannel.Family]bool, now func() flannel.Time) (*conntrack.Survey, error) {
	t, err := c.topology(now())
	if err != nil {
		return nil, err
	}
	t.Masquerade = masquerade
	for range attempts {
		start := now()
		s := conntrack.NewSurveyor(t, c.ages)
		if err = c.reader.Dump(ctnl.All, s.Add, s.Skip); err == nil {
			return s.Done(now().Sub(start)), nil
		}
		if !errors.Is(err, ctnl.ErrInterrupted) {
			break
		}
	}
	return nil, err
}

// errNoNode: the node's configuration was not read yet.
var errNoNode = errors.New("the node's networks were not read yet")

func (c *connections) topology(now flannel.Time) (conntrack.Topology, error) {
	about := c.about.Load()
	if about == nil {
		return conntrack.Topology{}, errNoNode
	}
	if c.around == nil {
		around, err := within(c.ns, openSurroundings)
		if err != nil {
			return conntrack.Topology{}, err
		}
		c.around = around
	}
	t, err := c.around.read(&about.node, about.procs, now)
	t.Pods = c.pods.Names()
	return t, err
}

// findUses searches the rules for those that make the kernel track connections. It gives how long that took.
func (c *connections) findUses() time.Duration {
	start := time.Now()
	c.changed.Store(false)
	u := c.tracking.find()
	c.uses.Store(&u)
	return time.Since(start)
}

// rulesChanged notes that rules may have come or gone that make the kernel track connections.
func (c *connections) rulesChanged() {
	if !c.changed.Swap(true) {
		c.poke()
	}
}

func (c *connections) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *connections) close() error {
	if c.around != nil {
		c.around.close()
	}
	errs := []error{c.tracking.close()}
	for _, r := range []*ctnl.Reader{c.deleter, c.reader} {
		if r != nil {
			errs = append(errs, r.Close())
		}
	}
	if c.meter != nil {
		errs = append(errs, c.meter.Close())
	}
	return errors.Join(errs...)
}

// Survey looks at every connection once, after Once has read what they are judged by, and not while Run runs. masquerade
// tells in which families pods are meant to leave with the node's address.
func (w *Watcher) Survey(masquerade map[flannel.Family]bool, sink Sink) {
	w.connections.survey(masquerade, w.clock.now, sink)
}

// WantFlows makes Run look at the connections again and again, and listen for new ones if that is wanted, until it is called
// with nil. It may be called at any time and must not be changed afterwards.
func (w *Watcher) WantFlows(wanted *incident.FlowsWanted) {
	w.connections.wanted.Store(wanted)
	w.connections.poke()
}

// Unstick deletes one connection, as ctnl.Reader.Delete does, on a socket of its own. It may be called while Run runs.
func (w *Watcher) Unstick(f *conntrack.Flow) error {
	c := w.connections
	c.deleting.Lock()
	defer c.deleting.Unlock()
	if c.deleter == nil {
		deleter, err := within(c.ns, ctnl.Open)
		if err != nil {
			return err
		}
		c.deleter = deleter
	}
	return c.deleter.Delete(f)
}
