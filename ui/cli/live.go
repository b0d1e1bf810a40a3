package cli

import (
	"context"
	"sync"
	"time"

	"flanwatch/flannel"
	"flanwatch/ui"
	"flanwatch/watcher/incident"
)

// Frames are drawn once a second at rest, and sooner when something happened, though never more often than a person can
// follow.
const (
	frameAtRest = time.Second
	frameAtOnce = time.Second / 15
)

// live folds a stream of observations and leaves pictures of it in the screen's mailbox. The stream never waits for the
// screen.
type live struct {
	mu        sync.Mutex
	state     *incident.State
	revisions map[flannel.Backend]uint64
	looks     map[string]flannel.ReadState
	news      chan struct{}
	list      bool // somebody reads the list of connections
	wanted    *incident.FlowsWanted
	wantFlows func(*incident.FlowsWanted) // told how closely connections are to be looked at; nil where nobody can
	settle    func()                      // waits until what was observed is recorded; nil where nothing is
}

func newLive() *live {
	return &live{
		state: incident.NewState(), revisions: map[flannel.Backend]uint64{}, looks: map[string]flannel.ReadState{},
		news: make(chan struct{}, 1),
	}
}

// observe is the sink of the watcher.
func (l *live) observe(o *incident.Observation) {
	l.mu.Lock()
	l.state.Apply(o)
	news := l.isNews(o)
	l.attend(o.Time)
	l.mu.Unlock()
	if !news {
		return
	}
	select {
	case l.news <- struct{}{}:
	default:
	}
}

// attend lets connections be looked at as closely as the state asks for.
func (l *live) attend(now flannel.Time) {
	if l.wantFlows == nil {
		return
	}
	if w := l.state.WantsFlows(now, l.list); !w.Same(l.wanted) {
		l.wanted = w
		l.wantFlows(w)
	}
}

// readList is told whether somebody reads the list of connections.
func (l *live) readList(open bool, now flannel.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = open
	l.attend(now)
}

// isNews tells whether an observation is worth a picture at once: anything but counters.
func (l *live) isNews(o *incident.Observation) bool {
	switch {
	case o.Table != nil:
		return false
	case o.Bases != nil:
		return l.differs("bases "+o.Bases.Backend.String(), o.Bases.Bases.State)
	case o.Opened != nil:
		return l.differs("opened "+o.Opened.ID.String(), o.Opened.Chain.State)
	case o.Rules == nil:
		return true
	}
	b, revision := o.Rules.Backend, o.Rules.Ruleset.Value.Revision
	if l.revisions[b] == revision && revision != 0 {
		return false
	}
	l.revisions[b] = revision
	return true
}

// differs tells whether what somebody looks at is in another state than before.
func (l *live) differs(what string, state flannel.ReadState) bool {
	before := l.looks[what]
	if state == flannel.Unread {
		delete(l.looks, what)
	} else {
		l.looks[what] = state
	}
	return state != before
}

func (l *live) view(now flannel.Time) *incident.View {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.View(now)
}

// frames puts pictures into the mailbox until the context ends.
func (l *live) frames(ctx context.Context, now func() flannel.Time, box *ui.Mailbox) {
	rest := time.NewTicker(frameAtRest)
	defer rest.Stop()
	for {
		v := l.view(now())
		if l.settle != nil {
			l.settle() // nobody is shown what would be lost with us
		}
		box.Put(v)
		select {
		case <-ctx.Done():
			return
		case <-rest.C:
		case <-l.news:
			select {
			case <-ctx.Done():
				return
			case <-time.After(frameAtOnce):
			}
		}
	}
}
