package metrics

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
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

// Write replaces the file at once, readable for everyone, without timestamps: the collector refuses those.
func (t *Textfile) Write(g prometheus.Gatherer) error {
	if err := prometheus.WriteToTextfile(t.path, g); err != nil {
		return fmt.Errorf("write %s: %w", t.path, err)
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
