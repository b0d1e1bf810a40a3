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
	if st.verb == "migrate" {
		return l.network.migrate()
	}
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
	case "feed", "tool", "copy":
		text, err := fs.ReadFile(assets.Scenarios, folder+first)
		if err != nil {
			return err
		}
		return l.useFile(st.verb, string(text), rest)
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

func (l *Lab) useFile(verb, text string, words []string) error {
	switch verb {
	case "copy":
		return l.Node.Do(func() error { return writeFile(hostRoot+words[0], text) })
	case "tool":
		return l.runTool(text, words)
	}
	return l.runProgram(text, words)
}

// runTool runs a real program, and does nothing where it is not installed.
func (l *Lab) runTool(stdin string, argv []string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil
	}
	cmd := exec.Command(path, argv[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := l.Node.Output(cmd); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
