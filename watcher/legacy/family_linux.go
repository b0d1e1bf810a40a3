package legacy

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
)

// newFamily adds the chains of one family to a ruleset, in the order of their IDs.
func newFamily(f flannel.Family, rs *flannel.Ruleset) *family {
	l := &layout4
	if f == flannel.IPv6 {
		l = &layout6
	}
	fam := &family{id: f}
	for _, p := range places {
		t := newTable(p, l, rs, len(rs.Chains))
		for _, name := range []string{p.user, p.base} {
			id := flannel.ChainID{Backend: rs.Backend, Family: f, Table: p.table, Name: name}
			rs.Chains = append(rs.Chains, flannel.Chain{ID: id})
		}
		fam.tables = append(fam.tables, t)
	}
	for _, id := range flannel.Marks(rs.Backend) {
		if id.Family == f {
			fam.tables[0].others = append(fam.tables[0].others, len(rs.Others))
			rs.Others = append(rs.Others, flannel.Mark{ID: id})
		}
	}
	return fam
}

func (f *family) loaded() bool { return f.socket != nil }

// load opens the family's list of tables and its socket, if the kernel has them and they are not open.
func (f *family) load() error {
	if f.loaded() {
		return nil
	}
	n, err := openNames(f.id)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	s, err := openSocket(f.id)
	if err != nil {
		return errors.Join(err, n.close())
	}
	f.names, f.socket = n, s
	return nil
}

func (f *family) close() error {
	if !f.loaded() {
		return nil
	}
	errs := []error{f.socket.close(), f.names.close()}
	for _, t := range f.tables {
		errs = append(errs, t.buf.free())
	}
	return errors.Join(errs...)
}

func (f *family) read(now flannel.Time) (bool, error) {
	if !f.loaded() {
		return false, nil
	}
	if err := f.names.refresh(); err != nil {
		return false, err
	}
	changed := false
	for _, t := range f.tables {
		if !f.names.has(t.id.Name) {
			changed = t.forget() || changed
			continue
		}
		c, err := t.read(f.socket, now)
		changed = c || changed
		if err != nil {
			return changed, fmt.Errorf("%s %s: %w", f.id, t.id.Name, err)
		}
	}
	return changed, nil
}

func (f *family) changed() (bool, error) {
	if !f.loaded() {
		return false, nil
	}
	if err := f.names.refresh(); err != nil {
		return false, err
	}
	for _, t := range f.tables {
		present := f.names.has(t.id.Name)
		if present != t.present {
			return true, nil
		}
		if !present {
			continue
		}
		changed, err := t.changed(f.socket)
		if changed || err != nil {
			return changed, err
		}
	}
	return false, nil
}
