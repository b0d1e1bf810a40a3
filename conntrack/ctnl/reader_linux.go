package ctnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"flanwatch/conntrack"
	"flanwatch/conntrack/nfnl"
)

// Reader reads the table of one network namespace, again and again, on one socket. It is not safe for concurrent use.
type Reader struct {
	socket   *socket
	unmasked bool // the kernel does not know the status filter (before Linux 5.15)
}

// Open makes a reader for the calling thread's network namespace and asks the kernel once whether it will answer.
func Open() (*Reader, error) {
	r, err := open()
	if err != nil {
		return nil, fmt.Errorf("open conntrack: %w", err)
	}
	return r, nil
}

func open() (*Reader, error) {
	if err := nfnl.Present(os.DirFS("/"), nfnl.Conntrack); err != nil {
		return nil, err
	}
	s, err := dial()
	if err != nil {
		return nil, err
	}
	r := &Reader{socket: s}
	var h conntrack.Health
	if err := r.readHealth(&h); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return r, nil
}

// Close closes the socket. That waits until the nf_tables commit at hand in the namespace is over, possibly for seconds.
func (r *Reader) Close() error { return r.socket.close() }

// Health reads the number of entries, the maximum, and the counters summed over all processors.
func (r *Reader) Health() (conntrack.Health, error) {
	h := conntrack.Health{Source: conntrack.SourceNetlink}
	if err := r.readHealth(&h); err != nil {
		return conntrack.Health{}, fmt.Errorf("read conntrack statistics: %w", err)
	}
	return h, nil
}

func (r *Reader) readHealth(h *conntrack.Health) error {
	r.socket.begin(msgStats, 0, unix.AF_UNSPEC)
	err := r.socket.ask(true, func(_ byte, attrs []byte) error { return h.SetGlobal(attrs) })
	if err != nil {
		return nfnl.Explain(err)
	}
	r.socket.begin(msgStatsCPU, unix.NLM_F_DUMP, unix.AF_UNSPEC)
	return nfnl.Explain(r.socket.ask(false, func(_ byte, attrs []byte) error { return h.AddStats(attrs) }))
}

// Filter says which entries to read: those whose status has, of the bits in Mask, exactly those in Status.
type Filter struct {
	Status, Mask conntrack.Status
}

// Filters that the surveys use.
var (
	All         = Filter{}
	SourceNAT   = Filter{conntrack.SrcNAT, conntrack.SrcNAT}
	NoSourceNAT = Filter{0, conntrack.SrcNAT}
)

func (f Filter) matches(s conntrack.Status) bool { return s&f.Mask == f.Status }

// Dump hands every matching entry to each; the Flow is overwritten by the next. skip is called for an entry that cannot be
// decoded. It returns ErrInterrupted at the end of a dump that may be incomplete.
//
// The kernel filters by status since Linux 5.15, and is asked to; that one really did is checked on every entry, since older
// ones ignore the request.
func (r *Reader) Dump(filter Filter, each func(*conntrack.Flow), skip func()) error {
	err := r.dump(filter, each, skip)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		r.unmasked = true
		err = r.dump(filter, each, skip)
	}
	if err != nil {
		return fmt.Errorf("read conntrack entries: %w", nfnl.Explain(err))
	}
	return nil
}

func (r *Reader) dump(filter Filter, each func(*conntrack.Flow), skip func()) error {
	r.socket.begin(msgGet, unix.NLM_F_DUMP, unix.AF_UNSPEC)
	if filter.Mask != 0 && !r.unmasked {
		r.socket.attr32(attrStatus, uint32(filter.Status))
		r.socket.attr32(attrStatusMask, uint32(filter.Mask))
	}
	var f conntrack.Flow
	return r.socket.ask(false, func(_ byte, attrs []byte) error {
		if r.unmasked && filter.Mask != 0 {
			if s, ok := conntrack.DecodeStatus(attrs); ok && !filter.matches(s) {
				return nil
			}
		}
		switch {
		case conntrack.Decode(attrs, &f) != nil:
			skip()
		case filter.matches(f.Status):
			each(&f)
		default:
			r.unmasked = true
		}
		return nil
	})
}

const (
	attrStatus     = 3
	attrID         = 12
	attrStatusMask = 26
)

// What Delete found.
var (
	// ErrGone: there is no such entry any more. Nothing was deleted, and nothing need be.
	ErrGone = errors.New("gone already")
	// ErrOther: an entry of the same tuple is there that is another one, or translates otherwise. It was left alone.
	ErrOther = errors.New("another connection by now")
)

// Delete deletes one entry, by its tuple, zone and ID, after looking once more that it is the same entry with the same
// translation. An entry that has been replaced is left alone: the kernel itself compares the ID.
func (r *Reader) Delete(f *conntrack.Flow) error {
	if err := r.delete(f); err != nil {
		return fmt.Errorf("delete %v: %w", f, nfnl.Explain(err))
	}
	return nil
}

func (r *Reader) delete(f *conntrack.Flow) error {
	now, err := r.get(f)
	if err != nil {
		return err
	}
	if !f.Same(now) {
		return ErrOther
	}
	if err := r.name(msgDelete, unix.NLM_F_ACK, f); err != nil {
		return err
	}
	r.socket.req = conntrack.AppendID(r.socket.req, f.ID)
	err = r.socket.ask(false, func(byte, []byte) error { return nil })
	if errors.Is(err, unix.ENOENT) {
		return ErrGone
	}
	return err
}

// get reads the entry that has a flow's tuple now.
func (r *Reader) get(f *conntrack.Flow) (*conntrack.Flow, error) {
	if err := r.name(msgGet, 0, f); err != nil {
		return nil, err
	}
	var now conntrack.Flow
	err := r.socket.ask(true, func(_ byte, attrs []byte) error { return conntrack.Decode(attrs, &now) })
	if errors.Is(err, unix.ENOENT) {
		return nil, ErrGone
	}
	return &now, err
}

// errUnnamed guards against the request that would delete every entry: one without a tuple.
var errUnnamed = errors.New("an entry without addresses cannot be named")

// name begins a request about one entry.
func (r *Reader) name(command, flags uint16, f *conntrack.Flow) error {
	family := byte(unix.AF_INET)
	if f.Orig.Src.Is6() {
		family = unix.AF_INET6
	}
	r.socket.begin(command, flags, family)
	req := conntrack.AppendTuple(r.socket.req, f)
	if req == nil || binary.NativeEndian.Uint16(req[headerLen+genLen:]) <= 4 {
		return errUnnamed
	}
	r.socket.req = req
	return nil
}
