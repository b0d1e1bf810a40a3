package legacy

import (
	"flanwatch/flannel"
)

// Tracking tells for which families some rule of iptables-legacy makes the kernel track connections. It copies table after
// table until it finds one.
func (b *Browser) Tracking() (map[flannel.Family]bool, error) {
	found := map[flannel.Family]bool{}
	if err := b.reader.load(); err != nil {
		return nil, err
	}
	for i, f := range b.reader.families {
		if !f.loaded() {
			continue
		}
		if err := f.names.refresh(); err != nil {
			return nil, err
		}
		for _, t := range browsable {
			if found[f.id] || !f.names.has(t.name) {
				continue
			}
			entries, err := b.fetch(i, t.name)
			if err != nil {
				return nil, err
			}
			found[f.id] = b.scans[i].layout.tracks(entries)
		}
	}
	return found, nil
}

// tracks tells whether a rule of a table makes the kernel track connections. What cannot be read is taken for one that does.
func (l *layout) tracks(entries []byte) bool {
	for off := 0; off < len(entries); {
		e, ok := l.entry(entries, off)
		if !ok {
			return true
		}
		uses := flannel.TracksConnections(string(e.ext(e.target).name()))
		whole := e.matches(l, func(m ext) bool {
			uses = uses || flannel.TracksConnections(string(m.name()))
			return !uses
		})
		if uses || !whole {
			return true
		}
		off += len(e.raw)
	}
	return false
}
