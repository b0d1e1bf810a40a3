package journal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Suffix is that of a journal's files.
const Suffix = ".jsonl"

// Files lists the files of a journal, oldest first: those in a folder, or the one file. Their names sort by time.
func Files(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	list, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	var out []string
	for _, e := range list {
		if e.Type().IsRegular() && strings.HasSuffix(e.Name(), Suffix) {
			out = append(out, filepath.Join(path, e.Name()))
		}
	}
	slices.Sort(out)
	return out, nil
}

// place is where a line begins.
type place struct {
	file   int   // number in the list of files
	offset int64 // in bytes
	line   int   // number of the line before
}

// lines reads the lines of several files in turn.
type lines struct {
	files []string
	at    place
	file  *os.File
	in    *bufio.Reader
	long  []byte
}

// maxLine bounds a line. The longest that flanwatch writes holds some thousand rules.
const maxLine = 16 << 20

// errTorn says that a file ends within a line.
var errTorn = errors.New("line has no end")

// next gives the next line without its line feed, valid until the next call, and io.EOF behind the last. A line without a
// line feed, which only the end of a file can have, comes with errTorn, and is read again if called again unless pass is
// called.
func (l *lines) next() ([]byte, error) {
	for l.at.file < len(l.files) {
		if err := l.open(); err != nil {
			return nil, err
		}
		line, err := l.readLine()
		switch {
		case err == nil:
			l.at.offset += int64(len(line))
			l.at.line++
			if len(line) > maxLine {
				return line[:0], nil // nothing that the decoder could take for a line
			}
			return bytes.TrimSuffix(line, []byte("\n")), nil
		case !errors.Is(err, io.EOF):
			return nil, fmt.Errorf("read journal: %w", err)
		case len(line) > 0:
			return line, errTorn
		case l.at.file == len(l.files)-1:
			return nil, io.EOF
		}
		l.pass()
	}
	return nil, io.EOF
}

// readLine reads up to a line feed, and forgets what is longer than a line can be.
func (l *lines) readLine() ([]byte, error) {
	line, err := l.in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	l.long = append(l.long[:0], line...)
	for errors.Is(err, bufio.ErrBufferFull) {
		line, err = l.in.ReadSlice('\n')
		if len(l.long) <= maxLine {
			l.long = append(l.long, line...)
		} else {
			l.at.offset += int64(len(line))
		}
	}
	return l.long, err
}

func (l *lines) open() error {
	if l.file != nil {
		return nil
	}
	f, err := os.Open(l.files[l.at.file])
	if err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	if _, err := f.Seek(l.at.offset, io.SeekStart); err != nil {
		return errors.Join(fmt.Errorf("open journal: %w", err), f.Close())
	}
	l.file = f
	if l.in == nil {
		l.in = bufio.NewReaderSize(f, 64<<10)
	}
	l.in.Reset(f)
	return nil
}

// pass goes on to the next file.
func (l *lines) pass() {
	l.close()
	l.at = place{file: l.at.file + 1}
}

// again forgets what was read ahead, so that what a writer has added since is seen.
func (l *lines) again() { l.close() }

func (l *lines) close() {
	if l.file != nil {
		_ = l.file.Close() // it was only read
		l.file = nil
	}
}
