package apply

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
	"flanwatch/remediate"
)

// rescue is our end of the process that survives us. Its input says how far we are; when that ends without "done", we are
// dead, and what was half done is taken back.
type rescue struct {
	cmd   *exec.Cmd
	words io.WriteCloser
}

// arm starts the process and waits until it stands by.
func (r *run) arm() (*rescue, error) {
	if len(r.Rescue) == 0 {
		return nil, nil
	}
	args := append(slices.Clone(r.Rescue[1:]), r.Store.dir, r.receipt.ID, r.Root)
	cmd := exec.Command(r.Rescue[0], args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	words, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("arm the way back: %w", err)
	}
	answer, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("arm the way back: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("arm the way back: %w", err)
	}
	found, err := json.Marshal(r.Tools.found) // looking for them again would take time that it does not have
	if err == nil {
		_, err = fmt.Fprintln(words, string(found))
	}
	if err != nil {
		_ = cmd.Process.Kill()
		return nil, errors.Join(fmt.Errorf("arm the way back: %w", err), cmd.Wait())
	}
	late := time.AfterFunc(armWait, func() { cmd.Process.Kill() }) //nolint:errcheck // it may be gone
	line, err := bufio.NewReader(answer).ReadString('\n')
	if !late.Stop() || line != "armed\n" {
		_ = cmd.Process.Kill()
		return nil, errors.Join(fmt.Errorf("arm the way back: it says %q", line), err, words.Close(), cmd.Wait())
	}
	return &rescue{cmd, words}, nil
}

// armWait is how long the process that survives us may take to start.
const armWait = 10 * time.Second

// legacyDone says that all legacy tables are written, and what is for nf_tables comes next.
func (r *rescue) legacyDone() {
	if r != nil {
		fmt.Fprintln(r.words, "legacy") //nolint:errcheck // a way back that died is not needed any more
	}
}

// done says that nothing is half done.
func (r *rescue) done() {
	if r == nil || r.cmd == nil {
		return
	}
	fmt.Fprintln(r.words, "done") //nolint:errcheck // as above
	_ = r.words.Close()
	_ = r.cmd.Wait()
	r.cmd = nil
}

// Rescue is the process that survives: it waits for the end of the one that started it, and returns a plan that was carried
// out in part to the state before. Arguments: state directory, receipt, root.
func Rescue(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 3 {
		return errors.New("rescue: want state directory, receipt and root")
	}
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGPIPE)
	if _, err := fmt.Fprintln(out, "armed"); err != nil {
		return err
	}
	legacy, scan := false, bufio.NewScanner(in)
	scan.Buffer(nil, 1<<20)
	tools := newTools(args[2])
	if scan.Scan() {
		if err := json.Unmarshal(scan.Bytes(), &tools.found); err != nil {
			return fmt.Errorf("rescue: read programs: %w", err)
		}
	}
	for scan.Scan() {
		switch scan.Text() {
		case "legacy":
			legacy = true
		case "done":
			return nil
		}
	}
	store := NewStore(args[0])
	r, err := store.Get(args[1])
	if err != nil {
		return err
	}
	return takeBack(store, r, tools, args[2], legacy)
}

// takeBack undoes the legacy part of a plan whose process died, unless the part for nf_tables got through: then all is done.
func takeBack(store *Store, r remediate.Receipt, tools *Tools, root string, legacy bool) error {
	lock, err := TakeLock(root, time.Minute) // a restore program of ours may still run, and holds it
	if err != nil {
		return err
	}
	defer lock.Release()
	if legacy && committed(r) {
		r.Result, r.Why = remediate.ResultUnverified, "flanwatch died after the change and before it was verified"
		return store.Put(r)
	}
	err = revertLegacy(tools, r)
	r.Result, r.Why = remediate.ResultFailed, "flanwatch died half-way; the state of before was put back"
	if err != nil {
		r.Result, r.Why = remediate.ResultUnverified, "flanwatch died half-way: "+err.Error()
	}
	return errors.Join(err, store.Put(r))
}

// committed tells whether the rules that were to go from nf_tables are gone, and those that were to come are there.
func committed(r remediate.Receipt) bool {
	s, err := dial()
	if err != nil {
		return false
	}
	defer s.close()
	concerned := false
	for _, e := range r.Edits {
		if e.Chain.Backend == flannel.IptablesLegacy {
			continue
		}
		now, err := s.rules(e.Chain)
		if err != nil {
			return false
		}
		kept := 0
		for _, l := range e.Lines {
			there := slices.ContainsFunc(now, func(x rawRule) bool { return x.handle == l.Handle })
			switch {
			case l.Mark == remediate.Remove && there:
				return false
			case l.Mark == remediate.Keep && there:
				kept++
			}
		}
		if e.Count(remediate.Add) > 0 && len(now) < kept+e.Count(remediate.Add) {
			return false
		}
		concerned = true
	}
	return concerned
}

// Command is the rescue command of the program that runs, with the words before its arguments. It is good even when the
// program's file was replaced.
func Command(words ...string) []string {
	return append([]string{fmt.Sprintf("/proc/%d/exe", os.Getpid())}, words...)
}
