package proc

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"flanwatch/flannel"
	"flanwatch/watcher/diagnose"
)

// Scanner looks for the processes of one network namespace that matter. It remembers what does not change while a process
// lives, so that a repeated look costs one small read for each process of the machine.
type Scanner struct {
	fs    *FS
	ns    Namespace
	view  view
	mark  *mark // in the namespace; nil where none is known
	known map[int]*process
	node  bool // the last look found a kubelet or container runtime

	round      int
	bystanders map[int]bystander
}

// bystander is a process that does not matter, as long as it does not execute another program.
type bystander struct {
	looks int // how often its name was read
	round int // when it was last there
}

// A process executes what it is meant to run soon after its start, so a bystander is looked at in every round at first, and
// later in one of several: that still finds the rare late one, and a number that was given away again.
const (
	youngLooks = 8
	oldRounds  = 8
)

// Found is the outcome of one look.
type Found struct {
	Flannel flannel.Reading[[]diagnose.Process] // by start, oldest first; Known and empty: looked, none there
	Near    []diagnose.Process                  // other programs of a node in the same namespace, Kind empty
}

// process is what is remembered of a process.
type process struct {
	diagnose.Process
	stat stat
	role role
	ok   bool // of this namespace, and one that counts
	seen bool // in this look
}

// unsettled stands for the start of a process in the middle of an exec, when it has its new name and no command line yet:
// it is read again at the next look.
const unsettled = -1

// New makes a scanner for a namespace.
func New(fs *FS, ns Namespace) *Scanner {
	return &Scanner{fs: fs, ns: ns, view: fs.view(), known: map[int]*process{}, bystanders: map[int]bystander{}}
}

// Recognize lets the scanner tell the namespace of processes without CAP_SYS_PTRACE. The links must have been opened in the
// scanner's namespace, and stay open.
func (s *Scanner) Recognize(links *LinkReader) { s.mark = &links.mark }

// Scan looks once. A process of which the namespace cannot be told is not counted; where nothing else was found, the
// reading says so and is unreadable instead of empty.
func (s *Scanner) Scan(now flannel.Time) Found {
	names, err := s.fs.pids()
	if err != nil {
		return Found{Flannel: flannel.Miss[[]diagnose.Process](flannel.Unreadable, err.Error(), s.fs.name, now)}
	}
	s.round++
	var hidden []string
	for _, name := range names {
		if err := s.look(name, now); err != nil {
			hidden = append(hidden, err.Error())
		}
	}
	s.forget()
	return s.found(hidden, now)
}

// look judges one process by its name, and remembers it if it matters. The error says why one that would matter could not
// be judged.
func (s *Scanner) look(name string, now flannel.Time) error {
	pid, err := strconv.Atoi(name)
	if err != nil || s.bypass(pid) {
		return nil
	}
	var buf [32]byte
	role := roleOf(s.fs.comm(name, buf[:]))
	if role == none {
		s.bystanders[pid] = bystander{looks: s.bystanders[pid].looks + 1, round: s.round}
		return nil
	}
	delete(s.bystanders, pid)
	st, err := s.fs.stat(pid)
	if err != nil || st.dead() {
		return nil
	}
	if p := s.known[pid]; p != nil && p.stat.start == st.start && p.stat.comm == st.comm {
		p.seen = true
		return nil
	}
	p, err := s.meet(pid, st, role, now)
	switch {
	case gone(err):
		return nil
	case err != nil && role != runs:
		return nil
	case err != nil:
		return fmt.Errorf("%s (pid %d): %w", flannel.Printable(st.comm), pid, err)
	}
	s.known[pid] = p
	return nil
}

// bypass tells whether a process is a bystander of old that need not be looked at in this round.
func (s *Scanner) bypass(pid int) bool {
	b, ok := s.bystanders[pid]
	if !ok || b.looks < youngLooks || (pid+s.round)%oldRounds == 0 {
		return false
	}
	b.round = s.round
	s.bystanders[pid] = b
	return true
}

// forget drops the bystanders that are gone.
func (s *Scanner) forget() {
	for pid, b := range s.bystanders {
		if b.round != s.round {
			delete(s.bystanders, pid)
		}
	}
}

// meet reads everything about a process that is seen for the first time.
func (s *Scanner) meet(pid int, st stat, role role, now flannel.Time) (*process, error) {
	here, err := s.here(pid)
	if err != nil {
		return nil, err
	}
	p := &process{stat: st, role: role, seen: true}
	if !here {
		return p, nil
	}
	p.Process, err = s.describe(pid, st, now)
	if err != nil {
		return nil, err
	}
	if len(p.Cmdline) == 0 {
		p.stat.start = unsettled
	}
	p.ok = true
	if role == runs {
		p.Kind, p.ok = kindOf(p.Comm, p.Cmdline)
		if p.ok {
			p.Version = s.fs.version(pid)
		}
	}
	return p, nil
}

// here tells whether a process lives in the scanner's namespace.
func (s *Scanner) here(pid int) (bool, error) {
	ns, err := s.fs.link(strconv.Itoa(pid) + "/ns/net")
	switch {
	case err == nil:
		return Namespace(ns) == s.ns, nil
	case !denied(err):
		return false, err
	case s.mark == nil:
		return false, fmt.Errorf("its network namespace cannot be read without CAP_SYS_PTRACE: %w", err)
	}
	return s.fs.bears(pid, *s.mark)
}

func (s *Scanner) describe(pid int, st stat, now flannel.Time) (diagnose.Process, error) {
	p := diagnose.Process{PID: pid, Comm: st.comm, Started: now.Add(st.start - now.Boot)}
	cmdline, err := s.fs.take(pid, "cmdline", maxCmdline)
	if err != nil {
		return p, err
	}
	p.Cmdline = parseStrings(cmdline)
	if env, err := s.fs.take(pid, "environ", maxEnviron); err == nil {
		p.Env = parseEnviron(env)
	}
	if cgroup, err := s.fs.take(pid, "cgroup", maxSmall); err == nil {
		p.Container = parseCgroup(cgroup)
	}
	return p, nil
}

// found sums up, and forgets the processes that were not seen this time.
func (s *Scanner) found(hidden []string, now flannel.Time) Found {
	f := Found{Flannel: flannel.Know([]diagnose.Process(nil), s.fs.name, now)}
	s.node = false
	for pid, p := range s.known {
		if !p.seen {
			delete(s.known, pid)
			continue
		}
		p.seen = false
		switch {
		case !p.ok:
		case p.role == runs:
			f.Flannel.Value = append(f.Flannel.Value, p.Process)
		default:
			s.node = s.node || p.role == manages
			f.Near = append(f.Near, p.Process)
		}
	}
	slices.SortFunc(f.Flannel.Value, byStart)
	slices.SortFunc(f.Near, byStart)
	if len(f.Flannel.Value) > 0 {
		return f
	}
	// A kubelet or container runtime in view means that this /proc is the node's, whatever its PID namespace.
	if len(hidden) == 0 && s.view.hides != "" && !s.node {
		hidden = []string{s.view.hides}
	}
	if len(hidden) > 0 {
		f.Flannel = flannel.Miss[[]diagnose.Process](flannel.Unreadable, strings.Join(hidden, "; "), s.fs.name, now)
	}
	return f
}

func byStart(a, b diagnose.Process) int {
	return cmp.Or(cmp.Compare(a.Started.Boot, b.Started.Boot), cmp.Compare(a.PID, b.PID))
}
