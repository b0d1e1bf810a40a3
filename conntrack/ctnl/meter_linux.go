package ctnl

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"flanwatch/conntrack"
)

// Meter reads the health of the table of one network namespace, by netlink, and where that is refused from procfs.
type Meter struct {
	netlink *Reader // nil where netlink is refused
	refused error   // why
	proc    *procReader
}

// OpenMeter opens both sources in the calling thread's network namespace. It fails where neither answers; where connection
// tracking is not there at all, with ErrNotPresent.
func OpenMeter() (*Meter, error) { return openMeter("/proc", Open) }

func openMeter(proc string, open func() (*Reader, error)) (*Meter, error) {
	m := &Meter{}
	m.netlink, m.refused = open()
	if m.refused == nil {
		return m, nil
	}
	var err error
	if m.proc, err = openProc(proc); err != nil {
		return nil, fmt.Errorf("%w; %w", m.refused, err)
	}
	return m, nil
}

// Read reads the figures. Their Source says which way they came.
func (m *Meter) Read() (conntrack.Health, error) {
	if m.netlink != nil {
		return m.netlink.Health()
	}
	h, err := m.proc.read()
	if err != nil {
		return h, fmt.Errorf("read conntrack statistics: %w; %w", m.refused, err)
	}
	return h, nil
}

// Reader is the netlink reader for further questions. Where there is none, the error says why.
func (m *Meter) Reader() (*Reader, error) { return m.netlink, m.refused }

// Close closes what is open. For netlink that can wait, as Reader.Close says.
func (m *Meter) Close() error {
	if m.netlink != nil {
		return m.netlink.Close()
	}
	return m.proc.close()
}

// procReader reads /proc, whose files stay open: an open file stays that of the network namespace it was opened in.
type procReader struct {
	stat       *os.File
	count, max *os.File // nil where there is none
	buf        []byte
}

func openProc(proc string) (*procReader, error) {
	// thread-self, not self: a thread can be in another network namespace than its process.
	stat, err := os.Open(filepath.Join(proc, "thread-self/net/stat/nf_conntrack"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrNotPresent, err)
	}
	if err != nil {
		return nil, err
	}
	p := &procReader{stat: stat, buf: make([]byte, 64<<10)}
	p.count, _ = os.Open(filepath.Join(proc, "sys/net/netfilter/nf_conntrack_count"))
	p.max, _ = os.Open(filepath.Join(proc, "sys/net/netfilter/nf_conntrack_max"))
	return p, nil
}

func (p *procReader) close() error {
	errs := []error{p.stat.Close()}
	for _, f := range []*os.File{p.count, p.max} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

func (p *procReader) read() (conntrack.Health, error) {
	h := conntrack.Health{Source: conntrack.SourceProcfs}
	text, err := p.text(p.stat)
	if err != nil {
		return conntrack.Health{}, err
	}
	if err := h.AddProc(text); err != nil {
		return conntrack.Health{}, err
	}
	h.Max = p.number(p.max, h.Max)
	h.Count = p.number(p.count, h.Count)
	return h, nil
}

// number reads a file of one number; unreadable, it leaves what is known otherwise.
func (p *procReader) number(f *os.File, otherwise conntrack.Count) conntrack.Count {
	if f == nil {
		return otherwise
	}
	text, err := p.text(f)
	if err != nil {
		return otherwise
	}
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return otherwise
	}
	return conntrack.Counted(n)
}

// text reads a whole file of procfs, which on a machine with many processors takes several reads.
func (p *procReader) text(f *os.File) (string, error) {
	total := 0
	for {
		n, err := f.ReadAt(p.buf[total:], int64(total))
		total += n
		switch {
		case errors.Is(err, io.EOF):
			return string(p.buf[:total]), nil
		case err != nil:
			return "", err
		}
		p.buf = append(p.buf, make([]byte, len(p.buf))...)
	}
}
