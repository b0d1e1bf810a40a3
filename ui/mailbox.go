package ui

import (
	"context"
	"sync"

	"flanwatch/watcher/incident"

	tea "charm.land/bubbletea/v2"
)

// Box hands something to the screen. It holds one: a newer one replaces one that nobody took, so a terminal that is slow
// or has stopped reading never holds up whoever fills it.
type Box[T any] struct {
	mu   sync.Mutex
	held T
	wake chan struct{}
}

// Mailbox hands views to the screen.
type Mailbox = Box[*incident.View]

// NewMailbox gives an empty mailbox.
func NewMailbox() *Mailbox { return newBox[*incident.View]() }

// NewAnswers gives an empty box for answers.
func NewAnswers() *Box[Answer] { return newBox[Answer]() }

func newBox[T any]() *Box[T] { return &Box[T]{wake: make(chan struct{}, 1)} }

// Put leaves the newest; it never waits for the screen. It must not change afterwards.
func (b *Box[T]) Put(v T) {
	b.mu.Lock()
	b.held = v
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default: // the screen has been woken for an older one and will find this
	}
}

type viewMsg struct{ view *incident.View }

type answerMsg struct{ answer Answer }

// wait is a command that ends with the next one.
func (b *Box[T]) wait(ctx context.Context, msg func(T) tea.Msg) tea.Cmd {
	return func() tea.Msg {
		select {
		case <-ctx.Done():
			return nil
		case <-b.wake:
			b.mu.Lock()
			defer b.mu.Unlock()
			return msg(b.held)
		}
	}
}
