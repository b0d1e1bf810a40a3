package wire

import (
	"encoding/binary"
	"errors"
	"testing"

	"flanwatch/flannel"

	"golang.org/x/sys/unix"
)

// answerTo builds the kernel's answer to the message with this sequence number.
func answerTo(sequence uint32, errno unix.Errno) []byte {
	b := binary.NativeEndian.AppendUint32(nil, unix.NLMSG_HDRLEN+20)
	b = binary.NativeEndian.AppendUint16(b, unix.NLMSG_ERROR)
	b = binary.NativeEndian.AppendUint16(b, 0)
	b = binary.NativeEndian.AppendUint32(b, sequence)
	b = append(b, 0, 0, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, uint32(-int32(errno)))
	return append(b, make([]byte, 16)...) // the header that is answered
}

func TestAnswersAreTakenForWhatTheySay(t *testing.T) {
	var b Batch
	b.AddTable(flannel.TableID{Backend: flannel.IptablesNft, Family: flannel.IPv4, Name: "nat"})
	b.AddTable(flannel.TableID{Backend: flannel.IptablesNft, Family: flannel.IPv6, Name: "nat"})
	const begin, first, last = 1, 2, 3
	two := append(answerTo(first, unix.EEXIST), answerTo(last, 0)...)
	for name, c := range map[string]struct {
		datagram []byte
		want     string
		is       error
	}{
		"the last change is acknowledged":  {answerTo(last, 0), "", nil},
		"nothing was said":                 {nil, "no answer from the kernel", ErrNoAnswer},
		"an earlier acknowledgement":       {answerTo(first, 0), "no answer from the kernel", ErrNoAnswer},
		"a short datagram":                 {answerTo(last, 0)[:10], "no answer from the kernel", ErrNoAnswer},
		"a length beyond the end":          {answerTo(last, 0)[:30], "no answer from the kernel", ErrNoAnswer},
		"a length below the header's":      {make([]byte, 40), "no answer from the kernel", ErrNoAnswer},
		"a change failed":                  {answerTo(first, unix.EBUSY), "add table iptables-nft ip nat: device or resource busy", unix.EBUSY},
		"a failure beside an acknowledged": {two, "add table iptables-nft ip nat: file exists", unix.EEXIST},
		"all is refused":                   {answerTo(begin, unix.EPERM), "change the ruleset: operation not permitted", unix.EPERM},
		"the generation is old":            {answerTo(begin, unix.ERESTART), ErrStale.Error(), ErrStale},
	} {
		t.Run(name, func(t *testing.T) {
			a := answers{batch: &b}
			a.take(c.datagram)
			err := a.err()
			if !errors.Is(err, c.is) || err != nil && err.Error() != c.want {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
