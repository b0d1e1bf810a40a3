package journal

import (
	"bytes"
	"errors"
	"io"
	"time"

	"flanwatch/flannel"
	"flanwatch/watcher/incident"
)

// History is how far back OpenState looks: what happened in the night is on the first picture in the morning.
const History = 12 * time.Hour

// OpenState folds what a journal tells of the last hours. The reader stands behind the last line, to be followed from there.
func OpenState(path string) (*incident.State, *Reader, error) {
	files, err := Files(path)
	if err != nil {
		return nil, nil, err
	}
	r := openFiles(files)
	if err := r.startBefore(History); err != nil {
		return nil, nil, err
	}
	s := incident.NewState()
	for {
		o, err := r.Next()
		if errors.Is(err, io.EOF) {
			return s, r, nil
		}
		if err != nil {
			return nil, nil, err
		}
		s.Apply(o)
	}
}

// startBefore goes to the last place at which a reader can start that lies at least so long before the end; to the beginning
// if there is none.
func (r *Reader) startBefore(span time.Duration) error {
	if len(r.lines.files) == 0 {
		return nil
	}
	var starts []start
	for i := len(r.lines.files) - 1; i >= 0; i-- {
		found, err := startsOf(r.lines.files, i)
		if err != nil {
			return err
		}
		starts = append(found, starts...)
		if n := len(starts); n > 0 && starts[n-1].time.Wall.Sub(starts[0].time.Wall) >= span {
			break
		}
	}
	if len(starts) == 0 {
		return nil
	}
	end := starts[len(starts)-1].time.Wall
	from := starts[0]
	for _, s := range starts {
		if end.Sub(s.time.Wall) < span {
			break
		}
		from = s
	}
	if from.header != nil {
		if err := r.decoder.header(from.header); err != nil {
			return err
		}
	}
	r.lines.at = from.at
	return nil
}

// start is a place at which a reader can start, with the header that holds there.
type start struct {
	at     place
	time   flannel.Time
	header []byte
}

// startsOf lists the places of one file at which a reader can start.
func startsOf(files []string, file int) ([]start, error) {
	l := lines{files: files[:file+1], at: place{file: file}}
	defer l.close()
	c := newCodec()
	var out []start
	var header []byte
	for {
		at := l.at
		line, err := l.next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, errTorn):
			return out, nil
		case err != nil:
			return nil, err
		case bytes.HasPrefix(line, []byte(headerPrefix)):
			header = bytes.Clone(line)
		case bytes.HasPrefix(line, []byte(syncPrefix)):
			var x entry
			if header != nil && c.read(line, &x) == nil {
				out = append(out, start{at, x.Time, header})
			}
		}
	}
}
