package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrStale says that the ruleset is no longer of the generation that the batch requires. Nothing was changed.
var ErrStale = errors.New("the ruleset has changed since it was read")

// ErrNoAnswer says that the kernel did not tell whether it carried the batch out.
var ErrNoAnswer = errors.New("no answer from the kernel")

// answers collects what the kernel says to a batch.
type answers struct {
	batch *Batch
	done  bool // the last change was acknowledged
	errs  []error
}

// take reads the messages of one datagram and passes over what is malformed.
func (a *answers) take(b []byte) {
	for len(b) >= unix.NLMSG_HDRLEN {
		n := int(binary.NativeEndian.Uint32(b))
		if n < unix.NLMSG_HDRLEN || n > len(b) {
			return
		}
		if binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR && n >= unix.NLMSG_HDRLEN+4 {
			code := int32(binary.NativeEndian.Uint32(b[unix.NLMSG_HDRLEN:]))
			a.add(int(binary.NativeEndian.Uint32(b[8:])), unix.Errno(-code))
		}
		b = b[min(align(n), len(b)):]
	}
}

// add notes the answer to the message with this sequence number.
func (a *answers) add(sequence int, errno unix.Errno) {
	changes := a.batch.Len()
	switch {
	case errno == 0:
		a.done = a.done || sequence == changes+1
	case errno == unix.ERESTART:
		a.errs = append(a.errs, ErrStale)
	case sequence >= 2 && sequence <= changes+1:
		a.errs = append(a.errs, fmt.Errorf("%s: %w", a.batch.what[sequence-2], errno))
	default: // the batch as a whole, as for a missing privilege
		a.errs = append(a.errs, fmt.Errorf("change the ruleset: %w", errno))
	}
}

// err is nil if the kernel carried out everything.
func (a *answers) err() error {
	if len(a.errs) == 0 && !a.done {
		return ErrNoAnswer
	}
	return errors.Join(a.errs...)
}
