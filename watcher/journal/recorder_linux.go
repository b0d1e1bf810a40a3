package journal

import (
	"cmp"
	"errors"
	"sync"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// Recorder writes a stream of observations. Observe never waits for the disk: lines wait in memory for a goroutine that
// writes them. What cannot be written is counted and, as soon as writing works again, recorded as a gap.
type Recorder struct {
	opt  Options
	wake chan struct{}
	done chan struct{}
	disk disk // of the goroutine that writes

	mu      sync.Mutex
	news    *sync.Cond // settled or trouble changed
	encoder *Encoder
	queue   []segment
	bytes   int64     // in the queue
	size    int64     // of the file, with what waits for it
	handed  int64     // observations so far
	settled int64     // of these, written or given up
	gap     *Gap      // what was lost and is not in the queue
	stopped bool      // nothing is queued: the next line belongs into a new file
	again   time.Time // when to try that
	trouble error     // why nothing is written, nil while all is well
	where   string    // the file being written
	onDisk  int64     // its size
	closed  bool
}

// segment is a piece of the queue that goes into one file.
type segment struct {
	fresh  bool // a new file begins here
	data   []byte
	urgent bool // an event is in it
	count  int
	from   flannel.Time // of the first observation
	gap    *Gap         // told at its beginning
}

// NewRecorder begins to record. What goes wrong is no error but a state; see Status.
func NewRecorder(o Options) *Recorder {
	r := &Recorder{opt: o.withDefaults(), wake: make(chan struct{}, 1), done: make(chan struct{}), stopped: true}
	r.news = sync.NewCond(&r.mu)
	r.encoder = NewEncoder(o.Header)
	r.disk.opt = r.opt
	go r.run()
	return r
}

// Sink gives a sink that records what it hands on to another.
func (r *Recorder) Sink(next func(*incident.Observation)) func(*incident.Observation) {
	return func(o *incident.Observation) {
		r.Observe(o)
		next(o)
	}
}

var errSlow = errors.New("the disk is slower than what happens")

// Observe records an observation. It keeps nothing of what o points to and does not wait. What somebody happens to look at
// on a screen, chains of others, is no part of the record.
func (r *Recorder) Observe(o *incident.Observation) {
	if o.Bases != nil || o.Opened != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.handed++
	if r.stopped && time.Now().Before(r.again) {
		r.encoder.Note(o)
		r.lose(1, o.Time, cmp.Or(r.trouble, errSlow))
		return
	}
	if err := r.enqueue(o); err != nil {
		r.encoder.Note(o)
		r.lose(1, o.Time, err)
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Recorder) enqueue(o *incident.Observation) error {
	if r.bytes > maxQueue {
		r.stopped, r.again = true, time.Now().Add(retryAfter)
		return errSlow
	}
	if r.stopped || r.opt.rotates() && r.size >= r.opt.FileSize {
		data, err := r.encoder.Begin(nil, o.Time, r.gap)
		if err != nil {
			return err
		}
		r.queue = append(r.queue, segment{fresh: true, data: data, gap: r.gap})
		r.stopped, r.gap = false, nil
		r.size = int64(len(data))
		r.bytes += r.size
	}
	if len(r.queue) == 0 {
		r.queue = append(r.queue, segment{})
	}
	s := &r.queue[len(r.queue)-1]
	before := len(s.data)
	data, important, err := r.encoder.Append(s.data, o)
	s.data = data
	if err != nil {
		return err
	}
	if s.count == 0 {
		s.from = o.Time
	}
	s.count++
	s.urgent = s.urgent || important
	r.bytes += int64(len(data) - before)
	r.size += int64(len(data) - before)
	return nil
}

// lose counts observations that are not written. While another process writes nothing is lost.
func (r *Recorder) lose(n int, from flannel.Time, why error) {
	r.settled += int64(n)
	defer r.news.Broadcast()
	if errors.Is(why, ErrBusy) {
		return
	}
	if r.gap == nil {
		r.gap = &Gap{From: from}
	}
	r.gap.Lost += n
	r.gap.Why = why.Error()
}

// run writes what is queued until the recorder is closed.
func (r *Recorder) run() {
	defer close(r.done)
	tick := time.NewTicker(retryAfter)
	defer tick.Stop()
	for {
		select {
		case <-r.wake:
		case <-tick.C:
		}
		r.mu.Lock()
		queue, closed := r.queue, r.closed
		r.queue, r.bytes = nil, 0
		r.mu.Unlock()
		r.write(queue)
		if closed {
			r.disk.close()
			return
		}
	}
}

// write writes segments, and gives up all that is queued when one fails.
func (r *Recorder) write(queue []segment) {
	for i, s := range queue {
		if err := r.disk.write(s); err != nil {
			r.fail(queue[i:], err)
			return
		}
		r.mu.Lock()
		r.settled += int64(s.count)
		r.trouble, r.where, r.onDisk = nil, r.disk.name(), r.disk.size
		r.news.Broadcast()
		r.mu.Unlock()
	}
	if err := r.disk.flushLate(); err != nil {
		r.fail(nil, err)
	}
}

func (r *Recorder) fail(queue []segment, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	later := r.gap
	r.gap = nil
	for _, s := range append(queue, r.queue...) {
		if s.gap != nil {
			r.lose(0, s.gap.From, err)
			r.gapAdd(s.gap.Lost)
		}
		r.lose(s.count, s.from, err)
	}
	if later != nil {
		r.lose(0, later.From, err)
		r.gapAdd(later.Lost)
	}
	if r.gap != nil && r.gap.Lost == 0 {
		r.gap = nil
	}
	r.queue, r.bytes = nil, 0
	r.stopped, r.again, r.trouble = true, time.Now().Add(retryAfter), err
	r.news.Broadcast()
}

// gapAdd counts what was counted as settled before.
func (r *Recorder) gapAdd(n int) {
	if r.gap != nil {
		r.gap.Lost += n
	}
}

// Settle waits until every observation handed over so far is written, or has been given up, though no longer than a second:
// what a person is shown then survives the death of the process.
func (r *Recorder) Settle() {
	stop := time.AfterFunc(time.Second, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.news.Broadcast()
	})
	defer stop.Stop()
	end := time.Now().Add(time.Second)
	r.mu.Lock()
	defer r.mu.Unlock()
	for goal := r.handed; r.settled < goal && time.Now().Before(end) && !r.closed; {
		r.news.Wait()
	}
}

// State tells which file is written and its size, or why nothing is; ErrBusy means that another process does it.
func (r *Recorder) State() (file string, size int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.where, r.onDisk, r.trouble
}

// Close writes what is queued and makes it safe, and frees the journal for other processes.
func (r *Recorder) Close() {
	r.mu.Lock()
	closed := r.closed
	r.closed = true
	r.mu.Unlock()
	if !closed {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
	<-r.done
}
