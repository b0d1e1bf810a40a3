package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"flanwatch/watcher/incident"
)

// Damage is a line that could not be read.
type Damage struct {
	File string
	Line int // from 1
	Why  string
}

// maxDamage bounds the damaged lines that are named; all are counted.
const maxDamage = 16

// Report says how well a journal could be read.
type Report struct {
	Lines   int // read so far
	Damaged int
	First   []Damage // of the damaged lines
	Skipped int      // lines that build on damaged ones and tell nothing by themselves
	Unknown int      // keys that this version does not know
	Torn    bool     // the end of a file is missing
}

// Notes tells, one clause each, what a person should know of the reading; nothing if all is well.
func (r *Report) Notes() []string {
	var out []string
	if r.Damaged > 0 {
		d := r.First[0]
		out = append(out, fmt.Sprintf("%d lines are damaged, the first is %s:%d (%s)", r.Damaged, filepath.Base(d.File), d.Line, d.Why))
	}
	if r.Skipped > 0 {
		out = append(out, fmt.Sprintf("%d readings of counters are lost with them", r.Skipped))
	}
	if r.Unknown > 0 {
		out = append(out, fmt.Sprintf("%d facts are of kinds that this version does not know", r.Unknown))
	}
	return out
}

// Reader gives the observations of a journal, file by file.
type Reader struct {
	Report
	lines   lines
	decoder *Decoder
}

// Open prepares to read a journal: a file, or a folder of files in the order of their names.
func Open(path string) (*Reader, error) {
	files, err := Files(path)
	if err != nil {
		return nil, err
	}
	return openFiles(files), nil
}

func openFiles(files []string) *Reader {
	return &Reader{lines: lines{files: files}, decoder: NewDecoder()}
}

// Header is that of the session being read.
func (r *Reader) Header() Header { return r.decoder.Header }

// Next gives the next observation, valid until the next call, and io.EOF behind the last. Lines that cannot be read are
// passed over and counted; an error says that the file itself cannot be read.
func (r *Reader) Next() (*incident.Observation, error) {
	for {
		line, err := r.lines.next()
		if errors.Is(err, errTorn) {
			r.lines.pass()
			if !json.Valid(line) { // a whole line without its line feed is as good as any
				r.Torn = true
				r.decoder.Miss()
				continue
			}
			err = nil
		}
		if err != nil {
			return nil, err
		}
		if o := r.take(line); o != nil {
			return o, nil
		}
	}
}

// take decodes a line and notes what is wrong with it.
func (r *Reader) take(line []byte) *incident.Observation {
	r.Lines++
	o, err := r.decoder.Line(line)
	r.Skipped, r.Unknown = r.decoder.Skipped, r.decoder.Unknown()
	if err == nil {
		return o
	}
	r.Damaged++
	if len(r.First) < maxDamage {
		at := r.lines.at
		r.First = append(r.First, Damage{File: r.lines.files[min(at.file, len(r.lines.files)-1)], Line: max(1, at.line), Why: err.Error()})
	}
	return nil
}

// Close frees the file being read.
func (r *Reader) Close() { r.lines.close() }

// Follow goes on reading behind the last line as the journal grows, and into files that are added to its folder, until the
// context ends. It gives each observation to sink, which must not keep it.
func (r *Reader) Follow(ctx context.Context, folder string, sink func(*incident.Observation)) error {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	defer r.Close()
	for {
		for {
			o, err := r.grown(folder)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			if o != nil {
				sink(o)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// followEvery is how often a file that is being followed is looked at.
const followEvery = 200 * time.Millisecond

// grown gives the observation of the next line that is whole by now. A file is left for the next one only if it was at its
// end after the next one was there.
func (r *Reader) grown(folder string) (*incident.Observation, error) {
	l := &r.lines
	if l.at.file >= len(l.files) { // nothing was there to read
		files, err := Files(folder)
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, io.EOF
		}
		l.files, l.at = files, place{}
	}
	line, err := l.next()
	if err == nil {
		return r.take(line), nil
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, errTorn) {
		return nil, err
	}
	l.again()
	files, listed := Files(folder)
	if listed != nil {
		return nil, listed
	}
	newer := newerThan(files, l.files[l.at.file])
	if len(newer) == 0 {
		return nil, io.EOF
	}
	line, err = l.next()
	if err == nil {
		return r.take(line), nil
	}
	l.files = append([]string{l.files[l.at.file]}, newer...)
	l.at.file = 0
	l.pass()
	return nil, nil
}

func newerThan(files []string, name string) []string {
	for i, f := range files {
		if f > name {
			return files[i:]
		}
	}
	return nil
}
