package legacy

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
)

// What keeps a Reader from being opened.
var (
	ErrNotLoaded = errors.New("ip_tables is not loaded")
	ErrPrivilege = errors.New("CAP_NET_ADMIN is missing")
)

// Reader reads Flannel's chains, and the base chains that lead to them, of both families in one network namespace. It is
// for one goroutine at a time.
type Reader struct {
	families  []*family
	namespace uint64 // inode number of the network namespace
	ruleset   flannel.Ruleset
	budget    budget
	tried     flannel.Time // when a family that was not loaded was last looked for
	clock     unix.Timespec
}

// family is one address family: nil socket where the kernel has not loaded its part of ip_tables.
type family struct {
	id     flannel.Family
	names  *names
	socket *socket
	tables []*table
}

// Open makes a Reader for the network namespace of the calling thread, for good. The error is ErrNotLoaded where the
// kernel has no legacy tables in either family, which can change at any time, and ErrPrivilege where it has and may not be
// asked.
func Open() (*Reader, error) {
	r := &Reader{ruleset: flannel.Ruleset{Backend: flannel.IptablesLegacy}}
	ns, err := threadNamespace()
	if err != nil {
		return nil, fmt.Errorf("open iptables-legacy: %w", err)
	}
	r.namespace = ns
	for _, f := range flannel.Families {
		r.families = append(r.families, newFamily(f, &r.ruleset))
	}
	if err := r.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("open iptables-legacy: %w", err), r.Close())
	}
	if !slices.ContainsFunc(r.families, (*family).loaded) {
		return nil, fmt.Errorf("open iptables-legacy: %w", ErrNotLoaded)
	}
	return r, nil
}

// Close closes sockets and files. The Reader must not be used afterwards.
func (r *Reader) Close() error {
	var errs []error
	for _, f := range r.families {
		errs = append(errs, f.close())
	}
	return errors.Join(errs...)
}

// Read gives what the tables hold now, both families in one ruleset: chains that do not exist, or whose table does not, are
// listed as absent. The ruleset is overwritten by the next Read.
func (r *Reader) Read(now flannel.Time) (*flannel.Ruleset, error) {
	runtime.LockOSThread() // the thread's clock must be the same one before and after
	defer runtime.UnlockOSThread()
	start := r.cpu()
	err := r.read(now)
	r.budget.spend(now, r.cpu()-start, r.fell())
	if err != nil {
		return nil, fmt.Errorf("read iptables-legacy: %w", err)
	}
	return &r.ruleset, nil
}

func (r *Reader) read(now flannel.Time) error {
	if r.tried.IsZero() || now.Sub(r.tried) >= time.Second {
		r.tried = now
		if err := r.load(); err != nil {
			return err
		}
	}
	changed := r.ruleset.Revision == 0
	for _, f := range r.families {
		c, err := f.read(now)
		if changed = changed || c; err != nil {
			r.revise(changed)
			return err
		}
	}
	r.revise(changed)
	return nil
}

// revise starts a new revision, and lists the tables anew.
func (r *Reader) revise(changed bool) {
	if !changed {
		return
	}
	r.ruleset.Revision++
	r.ruleset.Tables = nil
	for _, f := range r.families {
		for _, t := range f.tables {
			if t.present {
				r.ruleset.Tables = append(r.ruleset.Tables, t.id)
			}
		}
	}
}

// Changed tells whether the size or the number of entries of a table, or the set of tables, differs from the last Read. It
// costs some microseconds, and does not see a rule that was replaced by one of the same size.
func (r *Reader) Changed() (bool, error) {
	for _, f := range r.families {
		changed, err := f.changed()
		if err != nil {
			return false, fmt.Errorf("look at iptables-legacy: %w", err)
		}
		if changed {
			return true, nil
		}
	}
	return false, nil
}

// Cost is the CPU time that the last Read took.
func (r *Reader) Cost() time.Duration { return r.budget.last }

// Interval is how long to wait from the last Read to the next one, if nothing happens: base, or as much longer as keeps
// reading at one hundredth of a core. It is shorter for a second after a counter fell, as far as the budget goes.
func (r *Reader) Interval(base time.Duration) time.Duration { return r.budget.interval(base) }

// Affordable tells whether a change may be answered by a Read at once, ahead of Interval. Where it is false, Changed is
// still cheap.
func (r *Reader) Affordable(now flannel.Time) bool { return r.budget.owed(now) < burst }

// fell tells whether a counter of a rule that stayed was lower in the last Read than in the one before.
func (r *Reader) fell() bool {
	for _, f := range r.families {
		for _, t := range f.tables {
			if t.fell {
				return true
			}
		}
	}
	return false
}

func (r *Reader) cpu() time.Duration {
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &r.clock) != nil {
		return 0
	}
	return time.Duration(r.clock.Nano())
}

// load opens what is loaded by now. A family can be looked for only on a thread of the reader's namespace; on others it
// waits.
func (r *Reader) load() error {
	if !slices.ContainsFunc(r.families, func(f *family) bool { return !f.loaded() }) {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if ns, err := threadNamespace(); err != nil || ns != r.namespace {
		return err
	}
	for _, f := range r.families {
		if err := f.load(); err != nil {
			return err
		}
	}
	return nil
}

func threadNamespace() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return 0, fmt.Errorf("find network namespace: %w", err)
	}
	return st.Ino, nil
}
