package proc

import "time"

// Started is what process events told of one process.
type Started struct {
	PID     int
	Parent  int           // who forked it, 0 if it was there before watching began
	Forked  time.Duration // boot clock, 0 as above
	Exited  time.Duration // 0 while it runs
	Comm    string
	Cmdline []string // nil where it had ended before it could be read
	Sure    bool     // false where events were lost since, so that the number may have been given away unseen
}

// late is how long after the end of a process something of it may still arrive.
const late = time.Second

// ring remembers the newest max processes by their numbers. A process that was forgotten and still runs can be looked up
// in /proc.
type ring struct {
	max   int
	seq   uint64
	byPID map[int]*record
	order []place // oldest first; a place whose record is newer or gone is stale
}

type record struct {
	Started
	seq uint64
}

type place struct {
	pid int
	seq uint64
}

func newRing(max int) *ring { return &ring{max: max, byPID: make(map[int]*record, max)} }

// fork begins a process. Until it executes something it is its parent's image.
func (r *ring) fork(pid, parent int, at time.Duration) {
	s := Started{PID: pid, Parent: parent, Forked: at, Sure: true}
	if p := r.byPID[parent]; p != nil {
		s.Comm, s.Cmdline = p.Comm, p.Cmdline
	}
	r.put(s)
}

// exec gives a process its program.
func (r *ring) exec(pid int, comm string, cmdline []string) {
	p := r.byPID[pid]
	if p == nil || p.Exited != 0 {
		r.put(Started{PID: pid, Comm: comm, Cmdline: cmdline, Sure: true})
		return
	}
	p.Comm, p.Cmdline = comm, cmdline
}

func (r *ring) exit(pid int, at time.Duration) {
	if p := r.byPID[pid]; p != nil && p.Exited == 0 {
		p.Exited = at
	}
}

// lost marks everything remembered: any of the numbers may mean another process by now.
func (r *ring) lost() {
	for _, p := range r.byPID {
		p.Sure = false
	}
}

func (r *ring) put(s Started) {
	r.seq++
	r.byPID[s.PID] = &record{s, r.seq}
	r.order = append(r.order, place{s.PID, r.seq})
	for len(r.byPID) > r.max || len(r.order) > 2*r.max {
		oldest := r.order[0]
		r.order = r.order[1:]
		if p := r.byPID[oldest.pid]; p != nil && p.seq == oldest.seq {
			delete(r.byPID, oldest.pid)
		}
	}
}

// lookup gives the process that had a number at a moment of the boot clock.
func (r *ring) lookup(pid int, at time.Duration) (Started, bool) {
	p := r.byPID[pid]
	if p == nil || p.Forked > at || p.Exited != 0 && at > p.Exited+late {
		return Started{}, false
	}
	return p.Started, true
}
