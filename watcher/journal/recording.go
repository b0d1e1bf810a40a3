package journal

import (
	"errors"
	"io"
	"sort"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

const (
	// frameEvery is the least number of observations between two keyframes, maxFrames bounds them: a state can take some
	// hundred kilobytes.
	frameEvery = 1000
	maxFrames  = 128
)

// Recording is a whole journal with an index of keyframes, made at opening, to go to any observation of it.
type Recording struct {
	Report
	Header Header         // of the last session
	Count  int            // observations
	First  flannel.Time   // of the first observation
	Last   flannel.Time   // of the last one
	Final  *incident.View // what is known at the end

	files  []string
	frames []frame
	every  int
}

// frame is a place to go on from: everything that is known before the observation with its number.
type frame struct {
	number  int
	time    flannel.Time // of the observation before
	latest  time.Time    // wall clock's highest value before
	at      place
	decoder *Decoder
	state   *incident.State
}

// Load reads a journal from beginning to end.
func Load(path string) (*Recording, error) { return load(path, frameEvery) }

func load(path string, every int) (*Recording, error) {
	r, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	rec := &Recording{files: r.lines.files, every: every}
	s := incident.NewState()
	var latest time.Time
	rec.keep(frame{decoder: r.decoder.clone(), state: s.Clone()})
	for {
		o, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		s.Apply(o)
		if rec.Count == 0 {
			rec.First = o.Time
		}
		rec.Last = o.Time
		rec.Count++
		if o.Time.Wall.After(latest) {
			latest = o.Time.Wall
		}
		if rec.Count%rec.every == 0 {
			rec.keep(frame{rec.Count, o.Time, latest, r.lines.at, r.decoder.clone(), s.Clone()})
		}
	}
	rec.Report, rec.Header, rec.Final = r.Report, r.Header(), s.View(rec.Last)
	return rec, nil
}

// keep adds a keyframe, and drops every other one when there are too many.
func (r *Recording) keep(f frame) {
	r.frames = append(r.frames, f)
	if len(r.frames) < maxFrames {
		return
	}
	for i := range len(r.frames) / 2 {
		r.frames[i] = r.frames[2*i]
	}
	r.frames = r.frames[:len(r.frames)/2]
	r.every *= 2
}

// clone gives a decoder that goes on by itself.
func (d *Decoder) clone() *Decoder {
	c := *d
	c.numbers = nil
	for i := range c.backends {
		c.backends[i].Ruleset.Value = c.backends[i].Ruleset.Value.Clone()
	}
	return &c
}

// Cursor stands between two observations of a recording and knows the state there. It is not safe for concurrent use.
type Cursor struct {
	rec    *Recording
	reader *Reader
	state  *incident.State
	number int          // observations before it
	time   flannel.Time // of the last of them
	next   *incident.Observation
	err    error
}

// Cursor stands before the first observation.
func (r *Recording) Cursor() *Cursor {
	c := &Cursor{rec: r}
	c.restore(&r.frames[0])
	return c
}

func (c *Cursor) restore(f *frame) {
	if c.reader != nil {
		c.reader.Close()
	}
	c.reader = &Reader{lines: lines{files: c.rec.files, at: f.at}, decoder: f.decoder.clone()}
	c.state, c.number, c.time = f.state.Clone(), f.number, f.time
	c.peek()
}

// peek reads the next observation ahead, since playing needs to know when it is due.
func (c *Cursor) peek() {
	if c.next = nil; c.number >= c.rec.Count { // the file may have grown since
		return
	}
	c.next, c.err = c.reader.Next()
	if errors.Is(c.err, io.EOF) {
		c.err = nil
	}
}

// Number is how many observations lie before the cursor.
func (c *Cursor) Number() int { return c.number }

// Time is that of the last observation before the cursor; at the beginning that of the first one behind it.
func (c *Cursor) Time() flannel.Time {
	if c.number == 0 {
		return c.rec.First
	}
	return c.time
}

// Next is the next observation, nil at the end. It is valid until the cursor moves.
func (c *Cursor) Next() *incident.Observation { return c.next }

// Err tells why there is no next observation before the end: the file can no longer be read.
func (c *Cursor) Err() error { return c.err }

// Step folds the next observation. It says no at the end.
func (c *Cursor) Step() bool {
	if c.next == nil {
		return false
	}
	c.state.Apply(c.next)
	c.time = c.next.Time
	c.number++
	c.peek()
	return true
}

// View is the picture at a moment, which must not lie before the cursor's.
func (c *Cursor) View(now flannel.Time) *incident.View { return c.state.View(now) }

// Facts is what is known at a moment, which must not lie before the cursor's, as a plan is made from.
func (c *Cursor) Facts(now flannel.Time) (diagnose.Facts, diagnose.History) {
	return c.state.Facts(now)
}

// Go moves the cursor so that n observations lie before it.
func (c *Cursor) Go(n int) {
	n = max(0, min(n, c.rec.Count))
	i := sort.Search(len(c.rec.frames), func(i int) bool { return c.rec.frames[i].number > n }) - 1
	if f := &c.rec.frames[i]; n < c.number || f.number > c.number {
		c.restore(f)
	}
	for c.number < n && c.Step() {
	}
}

// GoTo moves the cursor behind the last observation that was made at or before a moment of the wall clock. Where that clock
// was set back, the first such place counts.
func (c *Cursor) GoTo(t time.Time) {
	i := 0
	for i+1 < len(c.rec.frames) && !c.rec.frames[i+1].latest.After(t) {
		i++
	}
	c.restore(&c.rec.frames[i])
	for c.next != nil && !c.next.Time.Wall.After(t) {
		c.Step()
	}
}
