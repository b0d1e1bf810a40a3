package metrics

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// textfileName is the name that node_exporter's textfile collector looks for by its ending.
const textfileName = "flanwatch.prom"

// Textfile is a file for node_exporter's textfile collector.
type Textfile struct{ path string }

// OpenTextfile makes sure that the folder is there and can be written. The file is made by Write.
func OpenTextfile(dir string) (*Textfile, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("textfile folder: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("textfile folder %s: not a folder", dir)
	}
	return &Textfile{filepath.Join(dir, textfileName)}, nil
}

// Write replaces the file at once, readable for everyone. The new one has no name that the collector would take meanwhile.
func (t *Textfile) Write(e *Exporter) (err error) {
	f, err := os.CreateTemp(filepath.Dir(t.path), "."+textfileName+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", t.path, err)
	}
	err = errors.Join(e.Write(f), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), t.path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", t.path, errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// Remove takes the file away at an orderly stop: the collector would serve its last values for ever.
func (t *Textfile) Remove() error {
	if err := os.Remove(t.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", t.path, err)
	}
	return nil
}
