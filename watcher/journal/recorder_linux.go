package journal

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// Recorder writes a stream of observations. Observe never waits for the disk: lines wait in memory for a goroutine that
// writes them. What cannot be written is counted and, as soon as writing works again, recorded as a gap.
type Recorder struct {
	opt Options

	mu      sync.Mutex
	encoder *Encoder
	queue   []byte    // lines that wait
	fresh   bool      // the queue begins with a header: it belongs into a new file
	urgent  bool      // the queue holds an event
	held    int64     // bytes in the file, as far as queued
	handed  int64     // number of observations handed over
	written int64     // of these, how many are in the file, or lost
	gap     *Gap      // what was lost and is not recorded yet
	broken  error     // why nothing is written now
	idle    bool      // another process writes
	again   time.Time // when to try next
	closed  bool
	settled *sync.Cond // written or broken changed
	wake    chan struct{}
	done    chan struct{}

	disk disk // of the goroutine that writes
}

// NewRecorder begins to record. Nothing is opened yet: what goes wrong is a state, told by Status and Err.
func NewRecorder(o Options) *Recorder {
	r := &Recorder{opt: o.withDefaults(), wake: make(chan struct{}, 1), done: make(chan struct{})}
	r.disk = disk{opt: r.opt}
	r.settled = sync.NewCond(&r.mu)
	r.encoder = NewEncoder(o.Header)
	r.encoder.stopped = true
	go r.run()
	return r
}

// Sink gives a sink that records what it hands on to another. The other one comes second, so that what a person is shown is
// on its way to the disk already; see Settle.
func (r *Recorder) Sink(next func(*incident.Observation)) func(*incident.Observation) {
	return func(o *incident.Observation) {
		r.Observe(o)
		next(o)
	}
}

// Observe records an observation. It keeps nothing of what o points to and does not wait.
func (r *Recorder) Observe(o *incident.Observation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.handed++
	if err := r.enqueue(o); err != nil {
		r.lose(1, err.Error(), o.Time)
		r.written++
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

var (
	errQueue = errors.New("the disk is slower than what happens")
	errWait  = errors.New("waiting to try again")
)

func (r *Recorder) enqueue(o *incident.Observation) error {
	if r.encoder.stopped || r.rotates() {
		if err := r.begin(o.Time); err != nil {
			return err
		}
	}
	if len(r.queue) > maxQueue {
		r.encoder.stopped = true
		return errQueue
	}
	n := len(r.queue)
	queue, important, err := r.encoder.Append(r.queue, o)
	r.queue = queue
	r.held += int64(len(queue) - n)
	r.urgent = r.urgent || important
	return err
}
