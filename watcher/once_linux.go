package watcher

import "flanwatch/flannel"

// Within runs f on a thread in the watched network namespace: sockets that it opens and programs that it starts belong there.
func (w *Watcher) Within(f func() error) error { return w.ns.do(f) }

// Rules reads the rules of every backend once, and nothing else. A backend that was not there is looked for again.
func (w *Watcher) Rules(sink Sink) {
	w.nft.tried, w.legacy.tried = flannel.Time{}, flannel.Time{}
	w.nft.read(w.clock.now, w.holding(sink))
	w.legacy.read(w.clock.now, w.holding(sink))
}
