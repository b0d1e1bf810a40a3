package ui

import (
	"context"
	"sync"

	"flanwatch/watcher/incident"

	tea "charm.land/bubbletea/v2"
)

// Mailbox hands views to the screen. It holds one: a newer view replaces one that nobody took, so a terminal that is slow
// or has stopped reading never holds up whoever makes the views.
type Mailbox struct {
	mu   sync.Mutex
	view *incident.View
	wake chan struct{}
}

// NewMailbox gives an empty mailbox.
func NewMailbox() *Mailbox { return &Mailbox{wake: make(chan struct{}, 1)} }

// Put leaves the newest view; it never waits for the screen. The view must not change afterwards.
func (b *Mailbox) Put(v *incident.View) {
	b.mu.Lock()
	b.view = v
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default: // the screen has been woken for an older one and will find this
	}
}

type viewMsg struct{ view *incident.View }

// wait is a command that ends with the next view.
func (b *Mailbox) wait(ctx context.Context) tea.Cmd {
	return func() tea.Msg {
		select {
		case <-ctx.Done():
			return nil
		case <-b.wake:
			b.mu.Lock()
			defer b.mu.Unlock()
			return viewMsg{b.view}
		}
	}
}
