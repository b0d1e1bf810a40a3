package cli

import (
	"context"
	"fmt"
	"sync"
	"time"

	"flanwatch/flannel"
	"flanwatch/remediate"
	"flanwatch/ui"
	"flanwatch/watcher/incident"
	"flanwatch/watcher/journal"
)

// speeds are the notches of a player.
var speeds = []float64{0.1, 0.25, 0.5, 1, 2, 5, 10, 25, 50, 100}

const realTime = 3 // the notch at which recorded time passes as fast as ours

// position is where a player stands and how fast it goes. It knows no clock: it is told how much time has passed.
type position struct {
	cursor    *journal.Cursor
	recording *journal.Recording
	now       flannel.Time // the moment shown, at or behind the cursor's
	playing   bool
	notch     int
}

func newPosition(r *journal.Recording) *position {
	p := &position{cursor: r.Cursor(), recording: r, notch: realTime}
	p.hold()
	return p
}

// hold shows the moment of the last observation.
func (p *position) hold() { p.now = p.cursor.Time() }

// advance plays what was recorded while our clock went on by d. A span that nobody watched is passed over at once. At the
// end it holds still.
func (p *position) advance(d time.Duration) {
	if !p.playing {
		return
	}
	p.now = p.now.Add(time.Duration(float64(d) * speeds[p.notch]))
	for o := p.cursor.Next(); o != nil; o = p.cursor.Next() {
		if o.Time.Session != p.now.Session {
			p.now = o.Time
		}
		if o.Time.Sub(p.now) > 0 {
			return
		}
		p.cursor.Step()
	}
	p.playing = false
	p.hold()
}

func (p *position) toggle() {
	p.playing = !p.playing
	if p.playing && p.cursor.Next() == nil {
		p.cursor.Go(0)
		p.hold()
	}
}

func (p *position) step(n int) {
	p.playing = false
	p.cursor.Go(p.cursor.Number() + n)
	p.hold()
}

func (p *position) seek(d time.Duration) { p.goTo(p.now.Wall.Add(d)) }

func (p *position) goTo(t time.Time) {
	p.cursor.GoTo(t)
	p.hold()
}

// jump goes to the beginning of another incident: the nth behind the moment shown, or before it. Where there is none it
// stays.
func (p *position) jump(n int) {
	p.playing = false
	var starts []time.Time
	for _, i := range p.recording.Final.Incidents {
		starts = append(starts, i.Start.Wall)
	}
	if n < 0 {
		for i := len(starts) - 1; i >= 0; i-- {
			if starts[i].Before(p.now.Wall) {
				p.goTo(starts[i])
				return
			}
		}
		return
	}
	for _, start := range starts {
		if start.After(p.now.Wall) {
			p.goTo(start)
			return
		}
	}
}

func (p *position) speed(n int) { p.notch = max(0, min(p.notch+n, len(speeds)-1)) }

// status says where we are: "held at 12:04:27.118, observation 812 of 10802", "playing at 10x, …".
func (p *position) status() string {
	how := "held"
	if p.playing {
		how = "playing"
	}
	text := fmt.Sprintf("%s at %gx, %s, observation %d of %d", how, speeds[p.notch],
		p.now.Wall.UTC().Format("2006-01-02 15:04:05.000 UTC"), p.cursor.Number(), p.recording.Count)
	if err := p.cursor.Err(); err != nil {
		text += ": " + flannel.Printable(err.Error())
	}
	return text
}

// player moves a position as keys and time ask, and leaves pictures in the screen's mailbox.
type player struct {
	ask  chan func(*position)
	look chan func(*position) // looks only, and changes nothing

	mu   sync.Mutex
	text string
}

func newPlayer() *player {
	return &player{ask: make(chan func(*position), 64), look: make(chan func(*position), 1)}
}

var _ ui.Player = (*player)(nil)

// do hands a wish over. One key too many within the same picture is dropped rather than waited for.
func (p *player) do(f func(*position)) {
	select {
	case p.ask <- f:
	default:
	}
}

func (p *player) Toggle()              { p.do((*position).toggle) }
func (p *player) Step(n int)           { p.do(func(at *position) { at.step(n) }) }
func (p *player) Jump(n int)           { p.do(func(at *position) { at.jump(n) }) }
func (p *player) Seek(d time.Duration) { p.do(func(at *position) { at.seek(d) }) }
func (p *player) GoTo(t time.Time)     { p.do(func(at *position) { at.goTo(t) }) }
func (p *player) Speed(n int)          { p.do(func(at *position) { at.speed(n) }) }

// desk makes plans from what the recording tells at the moment shown; they are there to be looked at.
func (p *player) desk(state string) (ask func(ui.Wish), answers *ui.Box[ui.Answer]) {
	answers = ui.NewAnswers()
	return func(w ui.Wish) {
		f := func(at *position) {
			var f remediate.Facts
			f.Facts, f.History = at.cursor.Facts(at.now)
			offers := remediate.Offers(f, w.Chains, w.Kind)
			if w.Do == ui.DoMake {
				offers = []remediate.Offer{remediate.Make(f, remediate.Offer{Kind: w.Kind, Choice: w.Choice})}
			}
			a := ui.Answer{Wish: w.Number}
			for _, o := range offers {
				a.Offers = append(a.Offers, ui.OfferOf(o, state, w.Opened))
			}
			answers.Put(a)
		}
		select {
		case p.look <- f:
		default: // the one before is not answered yet; the next view asks again
		}
	}, answers
}

func (p *player) status() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text
}

// run plays until the context ends.
func (p *player) run(ctx context.Context, at *position, put func(*incident.View)) {
	beat := time.NewTicker(frameAtOnce)
	defer beat.Stop()
	last := time.Now()
	for changed := true; ; {
		if changed {
			p.mu.Lock()
			p.text = at.status()
			p.mu.Unlock()
			put(at.cursor.View(at.now))
		}
		select {
		case <-ctx.Done():
			return
		case f := <-p.ask:
			f(at)
			changed = true
		case f := <-p.look:
			f(at)
			changed = false
		case <-beat.C:
			changed = at.playing
			at.advance(time.Since(last))
		}
		last = time.Now()
	}
}
