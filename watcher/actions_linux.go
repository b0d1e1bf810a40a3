package watcher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

const (
	// actionsFile is where flanwatch's commands and screens write down what they do, in the state directory.
	actionsFile = "actions.jsonl"
	// longestAction bounds what is read at once.
	longestAction = 1 << 20
	// folderPause is how often a state directory is looked for that is not there yet.
	folderPause = 500 * time.Millisecond
)

// acted is an action with the time at which it was read.
type acted struct {
	at     flannel.Time
	action incident.Action
}

// actionLog follows the file of actions from its end on.
type actionLog struct {
	dir   string
	inode uint64
	at    int64 // behind the last whole line
	seen  int64 // size when it was read
}

// followActions hands on what flanwatch does on this node, whichever process of it, until the context ends.
func (w *Watcher) followActions(ctx context.Context, dir string, out chan<- acted) {
	l := &actionLog{dir: dir}
	for old, err := l.read(); err == nil && len(old) > 0; { // what was done before is in receipts
		old, err = l.read()
	}
	for ctx.Err() == nil {
		l.wait(ctx)
		lines, err := l.read()
		if err != nil {
			continue // the file is not there, or not ours to read: then there is nothing to tell
		}
		for line := range bytes.Lines(lines) {
			a := acted{at: w.clock.now()}
			if json.Unmarshal(line, &a.action) == nil {
				send(ctx, out, a)
			}
		}
	}
}

// wait returns when something in the folder may have been written. Where the folder is not there yet it looks again later.
func (l *actionLog) wait(ctx context.Context) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		sleep(ctx, hostInterval)
		return
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	if _, err := unix.InotifyAddWatch(fd, l.dir, unix.IN_MODIFY|unix.IN_CREATE|unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW); err != nil {
		sleep(ctx, folderPause)
		return
	}
	if l.news() {
		return // it was written before we listened
	}
	stop := context.AfterFunc(ctx, func() { _ = events.SetReadDeadline(time.Now()) })
	defer stop()
	_, _ = events.Read(make([]byte, 4096)) // whatever it says, the file is read
}

// news tells whether the file is another, or longer than when it was read.
func (l *actionLog) news() bool {
	var st unix.Stat_t
	return unix.Lstat(filepath.Join(l.dir, actionsFile), &st) == nil && (st.Ino != l.inode || st.Size > l.seen)
}

// read gives the whole lines that are new.
func (l *actionLog) read() ([]byte, error) {
	fd, err := unix.Open(filepath.Join(l.dir, actionsFile), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), actionsFile)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() {
		return nil, errors.New("not a file of ours")
	}
	if st.Ino != l.inode || st.Size < l.at {
		l.inode, l.at = st.Ino, 0
	}
	text, err := io.ReadAll(io.LimitReader(io.NewSectionReader(f, l.at, 1<<62), longestAction))
	if err != nil {
		return nil, err
	}
	l.seen = l.at + int64(len(text))
	if len(text) < longestAction {
		text = text[:bytes.LastIndexByte(text, '\n')+1]
	}
	l.at += int64(len(text))
	return text, nil
}

// acted hands out an action with what is known of the process behind it.
func (w *Watcher) acted(a acted, sink Sink) {
	a.action.Who = w.host.asker.Who(a.action.Who, a.at)
	sink(&incident.Observation{Time: a.at, Action: &a.action})
}
