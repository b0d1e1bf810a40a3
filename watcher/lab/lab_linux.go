package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Lab is a node with its surroundings, its traffic and a scenario that is being played.
type Lab struct {
	// Node is the namespace to watch.
	Node *Namespace
	// Captions tells what happens, one sentence each, and is closed when the story is over or has failed. A caption that
	// nobody takes is dropped.
	Captions <-chan string

	network  *network
	traffic  *traffic
	captions chan string
	stop     context.CancelFunc
	story    sync.WaitGroup
	failure  error
	flanneld *daemonProcess
	others   []*exec.Cmd
}

// daemonProcess is a flanneld that runs.
type daemonProcess struct {
	cmd  *exec.Cmd
	done chan error
}

// Start builds the node, sets it up and begins to play. When it returns, the rules are there and the traffic runs.
func Start(ctx context.Context, s *Scenario) (*Lab, error) {
	w, err := newNetwork()
	if err != nil {
		if errors.Is(err, unix.EPERM) {
			err = &PrivilegeError{err}
		}
		return nil, err
	}
	captions := make(chan string, 16)
	l := &Lab{Node: w.node.Namespace, Captions: captions, captions: captions, network: w}
	if err := l.begin(ctx, s); err != nil {
		l.Close()
		return nil, fmt.Errorf("start lab: %w", err)
	}
	ctx, l.stop = context.WithCancel(ctx)
	l.story.Go(func() {
		defer close(captions)
		l.failure = l.play(ctx, s.story)
	})
	return l, nil
}

func (l *Lab) begin(ctx context.Context, s *Scenario) (err error) {
	if err := l.Node.Do(furnish); err != nil {
		return err
	}
	if err := l.play(ctx, s.setUp); err != nil {
		return err
	}
	l.traffic, err = startTraffic(l.network)
	return err
}

// Root is the node's file system for readers of its files: nothing of the machine's own lies in it.
func (l *Lab) Root() string { return l.Node.Root() + hostRoot }

// Wait waits until the story is over, and tells why it could not be played to its end. The lab goes on living.
func (l *Lab) Wait() error {
	l.story.Wait()
	return l.failure
}

// Close ends the story, the traffic and every process, and takes the namespaces down.
func (l *Lab) Close() {
	if l.stop != nil {
		l.stop()
	}
	l.story.Wait()
	if l.flanneld != nil {
		l.endFlanneld(unix.SIGKILL) //nolint:errcheck // it ends with the namespace's thread at the latest
	}
	for _, cmd := range l.others {
		cmd.Process.Kill() //nolint:errcheck // ditto
		cmd.Wait()         //nolint:errcheck // it was killed
	}
	if l.traffic != nil {
		l.traffic.close()
	}
	l.network.close()
}

// startFlanneld starts a daemon and waits until it has set its rules up.
func (l *Lab) startFlanneld(version, mode string, argv []string) error {
	if l.flanneld != nil {
		return errors.New("flanneld runs already")
	}
	cmd, err := l.Node.Program(argv...)
	if err != nil {
		return err
	}
	cmd.Env = append(cmd.Env, versionMark+"="+version, modeMark+"="+mode)
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS // its container
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := l.Node.Start(cmd); err != nil {
		return err
	}
	said, _ := bufio.NewReader(out).ReadString('\n')
	d := &daemonProcess{cmd, make(chan error, 1)}
	go func() { d.done <- explain(cmd, cmd.Wait()) }()
	if said != "ready\n" {
		return errors.Join(errors.New("flanneld ended before it was ready"), <-d.done)
	}
	l.flanneld = d
	return nil
}

// endFlanneld sends a signal and waits for the end.
func (l *Lab) endFlanneld(s syscall.Signal) error {
	d := l.flanneld
	if d == nil {
		return errors.New("flanneld does not run")
	}
	l.flanneld = nil
	if err := d.cmd.Process.Signal(s); err != nil {
		return err
	}
	select {
	case err := <-d.done:
		if s == unix.SIGKILL {
			return nil
		}
		return err
	case <-time.After(2 * grace):
		return errors.New("flanneld does not end")
	}
}
