package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"flanwatch/assets"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// play carries out steps until the last, or the first that fails, or the end of the context, which is no failure.
func (l *Lab) play(ctx context.Context, steps []step) error {
	for i := 0; i < len(steps) && ctx.Err() == nil; i++ {
		st := steps[i]
		if st.verb == "again" {
			i = -1
			continue
		}
		if err := l.step(ctx, st); err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s %s: %w", st.verb, strings.Join(st.words, " "), err)
		}
	}
	return nil
}

func (l *Lab) step(ctx context.Context, st step) error {
	first, rest := st.words[0], st.words[1:]
	switch st.verb {
	case "say":
		l.say(strings.Join(st.words, " "))
		return nil
	case "wait":
		return wait(ctx, first)
	case "flanneld":
		return l.startFlanneld(first, rest[0], rest[1:])
	case "stop":
		return l.stopFlanneld(first)
	case "start":
		return l.startProgram(st.words)
	case "run":
		return l.runProgram("", st.words)
	case "feed":
		text, err := fs.ReadFile(assets.Scenarios, folder+first)
		if err != nil {
			return err
		}
		return l.runProgram(string(text), rest)
	case "tool":
		return l.runTool(st.words)
	case "link":
		return l.network.node.stub(first)
	case "unlink":
		return l.network.node.unlink(first)
	case "remove":
		return l.Node.Do(func() error { return os.Remove(hostRoot + first) })
	}
	return errors.New("no such step here")
}

func (l *Lab) say(text string) {
	select {
	case l.captions <- text:
	default:
	}
}

func wait(ctx context.Context, text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return nil
}

func (l *Lab) stopFlanneld(name string) error {
	switch name {
	case "TERM":
		return l.endFlanneld(unix.SIGTERM)
	case "KILL":
		return l.endFlanneld(unix.SIGKILL)
	}
	return errors.New("unknown signal")
}

func (l *Lab) startProgram(argv []string) error {
	cmd, err := l.Node.Program(argv...)
	if err != nil {
		return err
	}
	if err := l.Node.Start(cmd); err != nil {
		return err
	}
	l.others = append(l.others, cmd)
	return nil
}

func (l *Lab) runProgram(stdin string, argv []string) error {
	cmd, err := l.Node.Program(argv...)
	if err != nil {
		return err
	}
	cmd.Stdin = strings.NewReader(stdin)
	if err := l.Node.Start(cmd); err != nil {
		return err
	}
	return explain(cmd, cmd.Wait())
}

// runTool runs a real program, and does nothing where it is not installed.
func (l *Lab) runTool(argv []string) error {
	if _, err := exec.LookPath(argv[0]); err != nil {
		return nil
	}
	_, err := l.Node.Run(argv[0], argv[1:]...)
	return err
}

// stub makes a link that only has the name of another CNI's device.
func (h *host) stub(name string) error {
	err := h.links.LinkAdd(&netlink.Bridge{LinkAttrs: attrs(name)})
	if err != nil {
		return linkError("add", name, err)
	}
	return h.up(name)
}
