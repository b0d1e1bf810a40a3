package host

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
)

// savedName is the file in the state directory.
const savedName = "node.json"

func (g *gatherer) saved(dir string) {
	if dir == "" {
		return
	}
	name := filepath.Join(dir, savedName)
	data, err := readSaved(name)
	if err != nil {
		g.fail(name, err)
		return
	}
	c, ok := parseSaved(data, name)
	if !ok {
		g.evidence.Problems = append(g.evidence.Problems, flannel.Problem{File: name, What: "is not what flanwatch wrote"})
		return
	}
	g.claim(c)
}

func readSaved(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, ErrNotRegular
	}
	return io.ReadAll(io.LimitReader(f, maxConfig))
}

// Save remembers the node's facts in the state directory for the time when their sources are gone. It does nothing where
// they come from a weak source, and writes only what has changed.
func Save(dir string, n flannel.Node, now time.Time) error {
	if !worthSaving(n) {
		return nil
	}
	s := toSaved(n, now)
	name := filepath.Join(dir, savedName)
	if old, err := readSaved(name); err == nil && unchanged(old, s) {
		return nil
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("save node facts: %w", err)
	}
	if err := replace(name, append(data, '\n')); err != nil {
		return fmt.Errorf("save node facts: %w", err)
	}
	return nil
}

func unchanged(old []byte, s saved) bool {
	var before saved
	if json.Unmarshal(old, &before) != nil {
		return false
	}
	s.Saved = before.Saved
	a, errA := json.Marshal(before)
	b, errB := json.Marshal(s)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// replace writes a file beside the old one and renames it: a reader sees one or the other, whole.
func replace(name string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+savedName+".*") // 0600, and never an existing file
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
