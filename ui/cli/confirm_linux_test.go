package cli_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/ui/cli"
)

// terminal is a pseudo-terminal: what the person types goes in, what is shown is kept.
type terminal struct {
	mu     sync.Mutex
	person *os.File
	tty    *os.File
	shown  strings.Builder
	paused bool // nobody reads
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	number, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	x := &terminal{person: person, tty: tty}
	t.Cleanup(func() {
		tty.Close()
		person.Close()
	})
	go func() {
		buf := make([]byte, 4096)
		for {
			for x.isPaused() {
				time.Sleep(10 * time.Millisecond)
			}
			n, err := person.Read(buf)
			x.mu.Lock()
			x.shown.Write(buf[:n])
			x.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return x
}

// pause begins or ends a time in which nobody reads what is shown. The reading at hand goes on to its end.
func (x *terminal) pause(on bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.paused = on
}

func (x *terminal) isPaused() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.paused
}

func (x *terminal) screen() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.shown.String()
}

// answer types a line when something is asked.
func (x *terminal) answer(t *testing.T, word string) {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if strings.Contains(x.screen(), "to go on:") {
			io.WriteString(x.person, word+"\n") //nolint:errcheck // the test fails below
			return
		}
	}
	t.Error("nothing was asked")
}

func TestOnATerminalAWordCarriesThePlanOut(t *testing.T) {
	for word, want := range map[string]int{"y": cli.ExitRefused, "reapply": cli.ExitRefused, "purge": cli.ExitOK} {
		n := node(t)
		n.Feed(rules4, "iptables-nft-restore")
		x := newTerminal(t)
		go x.answer(t, word)
		args := []string{"purge", "--look-again", "0", "--netns", n.Path(), "--root", n.Root(), "--state", filepath.Join(t.TempDir(), "state")}
		code := cli.Main(t.Context(), args, cli.Streams{In: x.tty, Out: x.tty, Err: x.tty})
		time.Sleep(50 * time.Millisecond)
		if gone := !strings.Contains(n.Must("iptables-nft-save"), "FLANNEL"); code != want || gone != (want == cli.ExitOK) {
			t.Errorf("%s: exit code %d, gone %t\n%s", word, code, gone, x.screen())
		}
		if !strings.Contains(x.screen(), "- -A FLANNEL-POSTRTG") || !strings.Contains(x.screen(), "backup") {
			t.Errorf("it shows\n%s", x.screen())
		}
	}
}
