package journal

import (
	"slices"

	"flanwatch/watcher/incident"
)

// carried keeps the last fact of each kind that lasts until the next of its kind, as lines for those who start reading
// later. Rulesets are not among them, since each is read anew within moments.
type carried struct {
	node, procs, links, paths []byte
	around, remains           []byte
	faults                    []fault
}

// fault is the open trouble of one reader.
type fault struct {
	reader string
	line   []byte
}

// note remembers a fact that lasts.
func (c *carried) note(e *Encoder, o *incident.Observation) (err error) {
	line := func(keep []byte) []byte {
		keep, err = e.append(keep[:0], entry{Carried: true, Observation: *o})
		return keep
	}
	switch {
	case o.Node != nil:
		c.node = line(c.node)
	case o.Procs != nil:
		c.procs = line(c.procs)
	case o.Links != nil:
		c.links = line(c.links)
	case o.Paths != nil:
		c.paths = line(c.paths)
	case o.Around != nil:
		c.around = line(c.around)
	case o.Remains != nil:
		c.remains = line(c.remains)
	case o.Fault != nil:
		c.faults = slices.DeleteFunc(c.faults, func(f fault) bool { return f.reader == o.Fault.Reader })
		if o.Fault.Why != "" && len(c.faults) < maxFaults {
			c.faults = append(c.faults, fault{o.Fault.Reader, line(nil)})
		}
	}
	return err
}

// maxFaults bounds what is remembered, as incident.State does.
const maxFaults = 32

func (c *carried) append(dst []byte) []byte {
	dst = append(append(append(append(dst, c.links...), c.node...), c.procs...), c.paths...)
	dst = append(append(dst, c.around...), c.remains...)
	for _, f := range c.faults {
		dst = append(dst, f.line...)
	}
	return dst
}
