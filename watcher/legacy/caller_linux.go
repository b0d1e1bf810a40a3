package legacy

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"flanwatch/watcher/incident"
)

// caller is what /proc tells of a process that took the lock.
type caller struct {
	who, parent incident.Who
	cmdline     []string
	netns       uint64
}

// maxCallers bounds what is remembered of programs whose close was never seen.
const maxCallers = 256

// identify says who caused an event. A program is looked up when it opens the lock, as it is often gone when its close is
// heard of. The number is 0 for processes outside of our PID namespace: they stay unknown.
func (w *LockWatch) identify(e *LockEvent, pid int) {
	if pid <= 0 {
		return
	}
	c, known := w.callers[pid]
	if !known || e.Opened {
		c = lookUp(pid)
	}
	if len(w.callers) >= maxCallers {
		clear(w.callers)
	}
	w.callers[pid] = c
	if e.Closed {
		delete(w.callers, pid)
	}
	e.Who, e.Parent, e.Cmdline, e.Netns = c.who, c.parent, c.cmdline, c.netns
}

// lookUp reads what is still there; each part can be missing.
func lookUp(pid int) caller {
	c := caller{who: incident.Who{PID: pid}}
	c.who.Comm, c.parent.PID = stat(pid)
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && len(b) > 0 {
		c.cmdline = strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
	}
	if link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)); err == nil {
		number := strings.TrimSuffix(strings.TrimPrefix(link, "net:["), "]")
		c.netns, _ = strconv.ParseUint(number, 10, 64)
	}
	if c.parent.PID > 0 {
		c.parent.Comm, _ = stat(c.parent.PID)
	}
	return c
}

// stat gives name and parent of a process from /proc/PID/stat: "PID (NAME) STATE PARENT …", where the name can hold
// anything, parentheses included.
func stat(pid int) (comm string, parent int) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return "", 0
	}
	if f := strings.Fields(string(b[end+1:])); len(f) > 1 {
		parent, _ = strconv.Atoi(f[1])
	}
	return string(b[open+1 : end]), parent
}
