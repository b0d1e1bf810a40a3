package watcher

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"flanwatch/conntrack"
	"flanwatch/conntrack/ctnl"
	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// tableInterval is how often the counters of connection tracking are read, which takes some 20 µs.
const tableInterval = time.Second

// connections reads connection tracking: its counters always, its entries only while somebody wants them.
type connections struct {
	ns     *namespace
	host   *hostFacts
	meter  *ctnl.Meter
	tried  flannel.Time
	around *surroundings
	ages   *conntrack.Ages

	wanted  atomic.Pointer[map[flannel.Family]bool] // families in which pods should be masqueraded; nil: nobody wants the entries
	next    time.Time                               // when to look at the entries again
	births  chan birth
	hearing *ctnl.NewFlows
	heard   sync.WaitGroup

	deleting sync.Mutex
	deleter  *ctnl.Reader // opened by the first deletion
}

// birth is a new connection as announced.
type birth struct {
	flow conntrack.Flow
	at   flannel.Time
}

func newConnections(ns *namespace, host *hostFacts) *connections {
	return &connections{ns: ns, host: host, ages: conntrack.NewAges(), births: make(chan birth, 4096)}
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
	start := now()
	var r flannel.Reading[conntrack.Survey]
	if s, err := c.look(masquerade, now); err != nil {
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

func (c *connections) look(masquerade map[flannel.Family]bool, now func() flannel.Time) (*conntrack.Survey, error) {
	if c.meter == nil {
		return nil, errNotOpen
	}
	reader, err := c.meter.Reader()
	if err != nil {
		return nil, err
	}
	t, err := c.topology(now())
	if err != nil {
		return nil, err
	}
	t.Masquerade = masquerade
	for range attempts {
		start := now()
		s := conntrack.NewSurveyor(t)
		if err = reader.Dump(ctnl.All, s.Add, s.Skip); err == nil {
			return s.Done(now().Sub(start)), nil
		}
		if !errors.Is(err, ctnl.ErrInterrupted) {
			break
		}
	}
	return nil, err
}

// errNotOpen: the counters could not be read either, and say why.
var errNotOpen = errors.New("connection tracking cannot be read")

func (c *connections) topology(now flannel.Time) (conntrack.Topology, error) {
	if c.around == nil {
		around, err := within(c.ns, openSurroundings)
		if err != nil {
			return conntrack.Topology{}, err
		}
		c.around = around
	}
	return c.around.read(&c.host.last.node, c.host.last.procs.Value, now)
}

// tick looks at the entries if they are wanted and due, and begins or ends listening for new ones.
func (c *connections) tick(now func() flannel.Time, sink Sink) {
	masquerade := c.wanted.Load()
	if masquerade == nil {
		c.deafen()
		return
	}
	if time.Now().Before(c.next) {
		return
	}
	c.listen(now) // first, so that what is born during the dump is not missed
	c.next = time.Now().Add(conntrack.Interval(c.survey(*masquerade, now, sink)))
}

// due is when tick has something to do at the latest.
func (c *connections) due(otherwise time.Time) time.Time {
	if c.wanted.Load() == nil {
		return otherwise
	}
	return c.next
}

// listen opens the subscription unless it is open. Without it no birth is known, and the list says so.
func (c *connections) listen(now func() flannel.Time) {
	if c.hearing != nil {
		return
	}
	t, err := c.topology(now())
	if err != nil || len(t.Networks) == 0 {
		return
	}
	wanted := ctnl.Wanted{Networks: t.Networks, Inside: t.Inside()}
	hearing, err := within(c.ns, func() (*ctnl.NewFlows, error) { return ctnl.Listen(wanted) })
	if err != nil {
		return
	}
	c.hearing = hearing
	c.heard.Go(func() {
		for {
			var b birth
			err := hearing.Next(time.Time{}, &b.flow)
			switch {
			case err == nil:
				b.at = now()
				select {
				case c.births <- b:
				default: // nobody keeps up; its age stays unknown
				}
			case errors.Is(err, ctnl.ErrLost), errors.Is(err, os.ErrDeadlineExceeded):
			default:
				return
			}
		}
	})
}

// deafen ends the subscription, if there is one.
func (c *connections) deafen() {
	if c.hearing == nil {
		return
	}
	_ = c.hearing.Wake()
	c.heard.Wait()
	_ = c.hearing.Close()
	c.hearing = nil
}

func (c *connections) close() error {
	c.deafen()
	if c.around != nil {
		c.around.close()
	}
	var errs []error
	if c.deleter != nil {
		errs = append(errs, c.deleter.Close())
	}
	if c.meter != nil {
		errs = append(errs, c.meter.Close())
	}
	return errors.Join(errs...)
}

// Survey looks at every connection once, after Once has read what they are judged by, and not while Run runs. masquerade tells in which families
// pods are meant to leave with the node's address.
func (w *Watcher) Survey(masquerade map[flannel.Family]bool, sink Sink) {
	w.connections.survey(masquerade, w.clock.now, sink)
}

// WantFlows makes Run look at the connections again and again and listen for new ones, until it is called with nil. It may be
// called at any time. Listening costs the data path some 3 µs for every new connection.
func (w *Watcher) WantFlows(masquerade map[flannel.Family]bool) {
	if masquerade == nil {
		w.connections.wanted.Store(nil)
	} else {
		w.connections.wanted.Store(&masquerade)
	}
	select {
	case w.kick <- struct{}{}:
	default:
	}
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
