package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/remediate"
)

// ActionsFile is the file in the state directory to which every action adds a line. Whoever watches the node reads it.
const ActionsFile = "actions.jsonl"

// largestActions is the size at which a new file is begun; what was in it is in the receipts and in journals.
const largestActions = 1 << 20

// Note adds a line about an action, for those who watch. Where there is no state directory nobody does.
func (s *Store) Note(a remediate.Action) error {
	if err := s.note(a); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("note action: %w", err)
	}
	return nil
}

func (s *Store) note(a remediate.Action) error {
	line, err := json.Marshal(a)
	if err != nil {
		return err
	}
	top, err := unix.Open(s.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(top)
	if err := ours(top); err != nil {
		return err
	}
	var st unix.Stat_t
	if unix.Fstatat(top, ActionsFile, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Size > largestActions {
		if err := unix.Unlinkat(top, ActionsFile, 0); err != nil {
			return err
		}
	}
	fd, err := unix.Openat(top, ActionsFile, unix.O_CREAT|unix.O_APPEND|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), ActionsFile)
	_, err = f.Write(append(line, '\n')) // one write: lines of several processes do not mix
	return errors.Join(err, f.Close())
}

// Refused notes that a plan of a kind was not even made, and why.
func (s *Store) Refused(kind remediate.Kind, cause error) error {
	by := Myself()
	return s.Note(remediate.Action{Kind: kind, Result: remediate.ResultRefused, Why: reason(cause), User: by.User, Who: by})
}

// NoteSecondLook notes whether what a receipt tells is still so some time later, as LookAgain found it.
func (s *Store) NoteSecondLook(r remediate.Receipt, next remediate.Plan, refused []remediate.Refusal, after time.Duration) {
	a := r.Action()
	switch {
	case len(refused) > 0:
		return // nothing can be said
	case next.Empty():
		a.Result, a.Why = remediate.ResultLasting, fmt.Sprintf("after %v", after)
	default:
		a.Result, a.Why = remediate.ResultGone, fmt.Sprintf("after %v it would take: %s", after, next.Title)
	}
	_ = s.Note(a) // whoever asked for the look is told by other means
}

// refused notes that a plan was not begun, and why.
func (a *Applier) refused(id string, p remediate.Plan, cause error) {
	if errors.Is(cause, ErrNothing) {
		return
	}
	kind := p.Kind
	if kind == "" {
		kind = a.Kind
	}
	by := Myself()
	_ = a.Store.Note(remediate.Action{ // it is refused whether somebody hears of it or not
		Plan: id, Kind: kind, Title: p.Title, Undoes: p.Undoes, Result: remediate.ResultRefused, Why: reason(cause), User: by.User, Who: by,
	})
}

// reason is a cause without the word that the result says already.
func reason(cause error) string { return strings.TrimPrefix(cause.Error(), "refused: ") }

// Myself is this process, and the login of the person who started it. The number is 0 where it is good only here.
func Myself() remediate.Actor {
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		comm = []byte("flanwatch")
	}
	a := remediate.Actor{PID: os.Getpid(), Comm: strings.TrimSpace(string(comm)), User: login()}
	if ns, err := os.Readlink("/proc/self/ns/pid"); err != nil || ns != initialPIDs {
		a.PID = 0 // elsewhere the number is another process's
	}
	return a
}

// initialPIDs is the PID namespace of the machine; the kernel gives it this number.
const initialPIDs = "pid:[4026531836]"

// login is the account that logged in, whoever it has become since; services have none.
func login() string {
	const nobody = "4294967295"
	id, err := os.ReadFile("/proc/self/loginuid")
	uid := strings.TrimSpace(string(id))
	if err != nil || uid == nobody || uid == "" {
		if uid = os.Getenv("SUDO_UID"); uid == "" {
			uid = strconv.Itoa(os.Geteuid())
		}
	}
	if _, err := strconv.ParseUint(uid, 10, 32); err != nil {
		return ""
	}
	u, err := user.LookupId(uid)
	if err != nil {
		return "uid " + uid
	}
	return u.Username
}
