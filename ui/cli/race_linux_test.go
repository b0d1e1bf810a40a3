package cli_test

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/watcher/lab/labtest"
)

// race is two pods that connect to one place from the same port at the same instant, again and again.
type race struct{ sockets [2][]int }

const raceRounds = 900

// newRace opens the sockets of pods that `ip netns` knows in the node's mount namespace.
func newRace(t *testing.T, n *labtest.Namespace, pods ...string) *race {
	t.Helper()
	n.Must("conntrack -F")
	r := new(race)
	for side, pod := range pods {
		var err error
		if r.sockets[side], err = openRacers(n.Root() + "/run/netns/" + pod); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// openRacers makes connections that are about to begin, from ports 20000 on, in a network namespace.
func openRacers(netns string) (fds []int, err error) {
	f, err := os.Open(netns)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: this thread has been elsewhere
		if err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return
		}
		for i := range raceRounds {
			var fd int
			if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
				return
			}
			fds = append(fds, fd)
			if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
				return
			}
			if err = unix.Bind(fd, &unix.SockaddrInet4{Port: 20000 + i}); err != nil {
				return
			}
		}
	}()
	<-done
	return fds, err
}

// run lets both sides connect, each round at the same instant on both.
func (r *race) run() {
	const patience = 3 * time.Second
	var at [2]atomic.Int64
	var both sync.WaitGroup
	end := time.Now().Add(patience)
	for side := range r.sockets {
		both.Go(func() {
			for i, fd := range r.sockets[side] {
				at[side].Store(int64(i + 1))
				for spins := 1; at[1-side].Load() < int64(i+1); spins++ {
					if spins%10000 == 0 && time.Now().After(end) {
						return
					}
				}
				_ = unix.Connect(fd, &unix.SockaddrInet4{Port: 8080, Addr: [4]byte{192, 0, 2, 99}})
			}
		})
	}
	both.Wait()
}

func (r *race) close() {
	for _, fds := range r.sockets {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
}
