package journal

import (
	"errors"
	"time"
)

// ErrBusy says that another process writes the journal.
var ErrBusy = errors.New("another process writes this journal")

// Options say where a Recorder writes and what it keeps. Zero values stand for the defaults.
type Options struct {
	// Path is a folder, made if it is not there, or a file whose name ends in Suffix. A single file is neither rotated nor
	// bounded, and a journal that is in it already is continued.
	Path     string
	Header   Header        // Version, Node, BootID and Session
	FileSize int64         // size at which a new file is begun, 64 MiB by default
	MaxTotal int64         // size of all files together beyond which the oldest goes, 512 MiB by default
	MaxAge   time.Duration // age at which a file goes, 30 days by default
}

// Defaults of Options, and how patient the writer is.
const (
	defaultFileSize = 64 << 20
	defaultMaxTotal = 512 << 20
	defaultMaxAge   = 30 * 24 * time.Hour

	maxQueue   = 4 << 20         // bytes that wait for a slow disk
	syncWithin = 3 * time.Second // longest time for which written lines may not be on the disk
	retryAfter = time.Second     // after a failure, or while another process writes
)

func (o Options) withDefaults() Options {
	if o.FileSize == 0 {
		o.FileSize = defaultFileSize
	}
	if o.MaxTotal == 0 {
		o.MaxTotal = defaultMaxTotal
	}
	if o.MaxAge == 0 {
		o.MaxAge = defaultMaxAge
	}
	return o
}

// fileTime is the time in a file's name, in UTC: names sort by it.
const fileTime = "20060102T150405.000000000Z"

// fileName is the name of a file begun at a time. Where the clock was set back it stays behind the last one.
func fileName(at time.Time, last string) string {
	for {
		name := at.UTC().Format(fileTime) + Suffix
		if name > last {
			return name
		}
		before, err := time.Parse(fileTime+Suffix, last)
		if err != nil {
			return last[:len(last)-len(Suffix)] + "~" + Suffix
		}
		at = before.Add(time.Nanosecond)
	}
}
