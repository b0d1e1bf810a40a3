package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Patience is how long an attempt waits: within it TCP repeats its first packet once, which the connection of a healthy
	// node does not need.
	Patience = time.Second
	// Every is the time between two attempts. Each leaves an entry in conntrack for up to two minutes.
	Every = 100 * time.Millisecond

	crowd = int(Patience/Every) + 2 // attempts at once, at most
)

// Attempt is a connection that was tried.
type Attempt struct {
	Took time.Duration // until it was there, or was given up
	Err  error         // nil if the target answered, be it to refuse: the way there and back is open
}

// Prober tries connections from inside one network namespace.
type Prober struct {
	target Target
	pod    *os.File
}

// Open finds the pod. See the flag --probe-from for what from may be.
func Open(target Target, from string) (*Prober, error) {
	pod, err := openPod(from)
	if err != nil {
		return nil, err
	}
	return &Prober{target, pod}, nil
}

// Close frees what Open opened.
func (p *Prober) Close() error { return p.pod.Close() }

// Once tries one connection.
func (p *Prober) Once() Attempt {
	result := make(chan Attempt)
	go func() {
		if err := p.enter(); err != nil {
			result <- Attempt{Err: err}
			return
		}
		result <- p.try()
	}()
	return <-result
}

// Run tries connections at a steady rate until the context ends, and hands each on as it is over. Those that wait for an
// answer do not hold up the next ones.
func (p *Prober) Run(ctx context.Context, every time.Duration, hand func(Attempt)) {
	var workers sync.WaitGroup
	defer workers.Wait()
	jobs := make(chan struct{})
	defer close(jobs)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for started := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		select {
		case jobs <- struct{}{}:
			continue
		default:
		}
		if started == crowd {
			continue // all are waiting for answers: the machine is too busy for this rate
		}
		started++
		workers.Go(func() { p.work(jobs, hand) })
	}
}

// work tries a connection at once, and one for each job. It keeps one thread in the pod's namespace, which ends with it.
func (p *Prober) work(jobs <-chan struct{}, hand func(Attempt)) {
	err := p.enter()
	for more := true; more; _, more = <-jobs {
		if err != nil {
			hand(Attempt{Err: err})
			continue
		}
		hand(p.try())
	}
}

// enter takes the calling goroutine into the pod's namespace for good.
func (p *Prober) enter() error {
	runtime.LockOSThread()
	if err := unix.Setns(int(p.pod.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("%w: enter the pod's network namespace: %w", ErrNotTried, err)
	}
	return nil
}

func (p *Prober) try() Attempt {
	start := time.Now()
	var err error
	switch p.target.Scheme {
	case "tcp":
		err = connect(p.target)
	case "udp":
		err = ask(p.target)
	default:
		err = ping(p.target.Addr)
	}
	return Attempt{time.Since(start), judge(err)}
}

// judge tells apart what a failed attempt says of the way to the target.
func judge(err error) error {
	var late interface{ Timeout() bool }
	switch {
	case err == nil, errors.Is(err, syscall.ECONNREFUSED):
		return nil
	case errors.As(err, &late) && late.Timeout():
		return errors.New("no answer")
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EPERM),
		errors.Is(err, syscall.ENETDOWN), errors.Is(err, syscall.EMFILE):
		return fmt.Errorf("%w: %w", ErrNotTried, err)
	}
	return err
}

func connect(t Target) error {
	c, err := net.DialTimeout("tcp", netip.AddrPortFrom(t.Addr, t.Port).String(), Patience)
	if err != nil {
		return err
	}
	return c.Close()
}

// ask sends a datagram and waits for any answer.
func ask(t Target) error {
	c, err := net.DialTimeout("udp", netip.AddrPortFrom(t.Addr, t.Port).String(), Patience)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(Patience)); err != nil {
		return err
	}
	if _, err := c.Write(question(t.Port)); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1500))
	return err
}

// question is what a server of the port answers to: for DNS, who serves the root.
func question(port uint16) []byte {
	if port == 53 {
		return []byte{0x46, 0x57, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1}
	}
	return []byte("flanwatch\n")
}
