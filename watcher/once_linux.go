package watcher

import "flanwatch/flannel"

// Within runs f on a thread in the watched network namespace: sockets that it opens and programs that it starts belong there.
func (w *Watcher) Within(f func() error) error { return w.ns.do(f) }

// Rules reads the rules of nf_tables once, those of iptables-legacy if asked for, and nothing else. A backend that was not
// there is looked for again.
func (w *Watcher) Rules(sink Sink, legacy bool) {
	w.nft.tried = flannel.Time{}
	w.nft.read(w.clock.now, w.holding(sink))
	if legacy {
		w.readLegacy(w.holding(sink))
	}
}
