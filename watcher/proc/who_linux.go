package proc

import (
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
	"flanwatch/watcher/incident"
)

// generations is how many parents of a program are told.
const generations = 3

// Asker finds out more about a program that the kernel has named by its number.
type Asker struct {
	fs    *FS
	view  view
	execs *Execs
}

// NewAsker makes an Asker. Without execs, which may be nil, it knows only processes that still run.
func NewAsker(fs *FS, execs *Execs) *Asker { return &Asker{fs: fs, view: fs.view(), execs: execs} }

// Who completes what is known of the program that did something at a moment. It is best asked at once: what cannot be
// learnt from the starts of processes is read from /proc, as long as the process runs. The kernel's name, where it is
// known, is kept, and decides how far the rest can be trusted.
func (a *Asker) Who(w incident.Who, at flannel.Time) incident.Who {
	o := &incident.Origin{}
	w.Origin = o
	if why := a.unable(w.PID); why != "" {
		o.Cmdline.How, o.Parents.How, o.Container.How = why, why, why
		return w
	}
	p, ok := a.find(w.PID, w.Comm, at.Boot)
	if !ok {
		why := "it had ended before it could be looked at"
		o.Cmdline.How, o.Parents.How, o.Container.How = why, why, why
		return w
	}
	if w.Comm == "" {
		w.Comm = p.comm
	}
	o.Cmdline = incident.Fact[[]string]{Value: p.cmdline, Certainty: p.certainty, How: p.how}
	switch {
	case p.cmdline == nil && p.running:
		o.Cmdline.Certainty, o.Cmdline.How = "", "it shows no command line"
	case p.cmdline == nil:
		o.Cmdline.Certainty, o.Cmdline.How = "", "it had ended before its command line could be read"
	}
	o.Parents, o.Container = a.parents(p, at.Boot)
	return w
}

func (a *Asker) unable(pid int) string {
	switch {
	case !a.view.initial:
		return "process unknown: own PID namespace"
	case pid <= 0:
		return "the kernel gave no process number"
	}
	return ""
}

// seen is a process as it was found.
type seen struct {
	pid       int
	parent    int
	born      bool          // parent is the one that started it, not one that adopted it
	forked    time.Duration // when it did, if born
	comm      string
	cmdline   []string
	start     time.Duration
	running   bool
	certainty incident.Certainty
	how       string
}

// find prefers what the events told, which holds for the moment itself; then the process as it runs now, if it is the
// same one. Where the name is another than the kernel said, the process has executed something else in between.
func (a *Asker) find(pid int, comm string, at time.Duration) (seen, bool) {
	past, told := a.past(pid, at)
	if told && past.cmdline != nil && past.certainty == incident.Exact && matches(comm, past.comm) {
		return past, true
	}
	now, runs := a.present(pid, at)
	if runs && told {
		now.parent, now.born, now.forked = past.parent, past.born, past.forked
	}
	switch {
	case runs && matches(comm, now.comm):
		return now, true
	case told && past.cmdline != nil:
		past.certainty = incident.Estimate
		if !matches(comm, past.comm) {
			past.how += "; its name was " + flannel.Printable(past.comm) + " then"
		}
		return past, true
	case runs:
		now.certainty = incident.Estimate
		now.how += "; its name is " + flannel.Printable(now.comm) + " by now"
		return now, true
	}
	return past, told
}

func matches(said, found string) bool { return said == "" || said == found }

func (a *Asker) past(pid int, at time.Duration) (seen, bool) {
	if a.execs == nil {
		return seen{}, false
	}
	s, ok := a.execs.Lookup(pid, at)
	if !ok {
		return seen{}, false
	}
	p := seen{
		pid: pid, parent: s.Parent, born: s.Parent != 0, forked: s.Forked, comm: s.Comm, cmdline: s.Cmdline, running: s.Exited == 0,
		certainty: incident.Exact, how: "seen when it started",
	}
	if !s.Sure {
		p.certainty, p.how = incident.Estimate, "seen when it started; starts of other processes were missed since"
	}
	return p, true
}

// present reads a running process. One that started after the moment has only inherited the number. The start is read
// again at the end, in case the number changed hands while reading.
func (a *Asker) present(pid int, at time.Duration) (seen, bool) {
	st, err := a.fs.stat(pid)
	if err != nil || st.start > at {
		return seen{}, false
	}
	_, cmdline := a.fs.program(pid)
	again, err := a.fs.stat(pid)
	if err != nil || again.start != st.start || again.comm != st.comm {
		return seen{}, false
	}
	return seen{
		pid: pid, parent: st.ppid, comm: st.comm, cmdline: cmdline, start: st.start, running: true,
		certainty: incident.Exact, how: "read while it ran",
	}, true
}

// parents follows the chain upwards. It is exact as long as every step is known from the start of the child: /proc tells
// of an orphan only who has adopted it. The container is that of the process or, once it has ended, of the nearest parent
// that still runs, since a child begins in the group of its parent.
func (a *Asker) parents(p seen, at time.Duration) (incident.Fact[[]incident.Ancestor], incident.Fact[diagnose.Container]) {
	chain := incident.Fact[[]incident.Ancestor]{Certainty: incident.Exact, How: "seen when they started their children"}
	box := a.container(p, incident.Exact, "read while it ran")
	for range generations {
		if p.parent <= 0 {
			break
		}
		when := at
		if p.born {
			when = p.forked // the parent may have ended since
		} else {
			chain.Certainty, chain.How = incident.Estimate, "as /proc has them, which tells of an orphan who adopted it"
		}
		up, ok := a.find(p.parent, "", when)
		if !ok {
			break
		}
		chain.Value = append(chain.Value, incident.Ancestor{PID: up.pid, Comm: up.comm, Cmdline: up.cmdline})
		if box.Certainty == "" {
			box = a.container(up, incident.Estimate, "its parent's, "+flannel.Printable(up.comm))
		}
		p = up
	}
	if len(chain.Value) == 0 {
		chain.Certainty, chain.How = "", "its parent had ended"
	}
	if box.Certainty == "" {
		box.How = "neither it nor a parent could be read"
	}
	return chain, box
}

func (a *Asker) container(p seen, c incident.Certainty, how string) incident.Fact[diagnose.Container] {
	if !p.running {
		return incident.Fact[diagnose.Container]{}
	}
	b, err := a.fs.take(p.pid, "cgroup", maxSmall)
	if err != nil {
		return incident.Fact[diagnose.Container]{}
	}
	return incident.Fact[diagnose.Container]{Value: parseCgroup(b), Certainty: c, How: how}
}
