package proc

import (
	"debug/buildinfo"
	"errors"
	"io"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// maxExecutable is how much of an executable is read in search of its build information. It stands near the beginning of
// the writable data; a program that hides it further back, or scatters it, stays without a version.
const maxExecutable = 16 << 20

// version gives the version of Flannel in the executable of a process, "" if it cannot be told.
func (fs *FS) version(pid int) string {
	f, err := fs.open(pid, "exe")
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	info, err := buildInfo(&boundedReader{r: f, left: maxExecutable})
	if err != nil {
		return ""
	}
	return flannelVersion(info)
}

// buildInfo reads build information of a file that anybody may have made. The standard library promises an error for
// broken files, not for hostile ones.
func buildInfo(r io.ReaderAt) (info *debug.BuildInfo, err error) {
	defer func() {
		if recover() != nil {
			info, err = nil, errors.New("read build information: malformed")
		}
	}()
	return buildinfo.Read(r)
}

// boundedReader reads at most left bytes in all.
type boundedReader struct {
	r    io.ReaderAt
	left int
}

func (b *boundedReader) ReadAt(p []byte, off int64) (int, error) {
	if len(p) > b.left {
		return 0, unix.EFBIG
	}
	b.left -= len(p)
	return b.r.ReadAt(p, off)
}
