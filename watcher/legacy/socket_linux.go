package legacy

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"flanwatch/flannel"
)

// Options of getsockopt, the same for both families (linux/netfilter_ipv4/ip_tables.h, ip6_tables.h).
const (
	optInfo    = 64
	optEntries = 65
)

const (
	nameLen = 32 // XT_TABLE_MAXNAMELEN
	hooks   = 5  // NF_INET_NUMHOOKS

	entriesHeader = 40 // bytes before the entries: struct ipt_get_entries
)

// info is struct ipt_getinfo.
type info struct {
	name       [nameLen]byte
	validHooks uint32
	hookEntry  [hooks]uint32
	underflow  [hooks]uint32
	entries    uint32
	size       uint32
}

// socket asks for the tables of one family in the namespace that it was opened in.
type socket struct {
	fd    int
	level int
	len   uint32 // in-out argument of getsockopt
}

// openSocket opens a socket and tells whether it may be used. The kernel looks at the privilege before the length, and at
// the length before the table, so a length of 0 asks for nothing.
func openSocket(f flannel.Family) (*socket, error) {
	domain, level := unix.AF_INET, unix.SOL_IP
	if f == flannel.IPv6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	s := &socket{fd: fd, level: level}
	var none info
	switch err := s.get(optInfo, unsafe.Pointer(&none), 0); {
	case errors.Is(err, unix.EINVAL):
		return s, nil
	case errors.Is(err, unix.EPERM):
		err = ErrPrivilege
		fallthrough
	default:
		return nil, errors.Join(err, unix.Close(fd))
	}
}

func (s *socket) close() error { return unix.Close(s.fd) }

func (s *socket) info(name *[nameLen]byte, in *info) error {
	in.name = *name
	return s.get(optInfo, unsafe.Pointer(in), uint32(unsafe.Sizeof(*in)))
}

// get calls getsockopt.
func (s *socket) get(option int, value unsafe.Pointer, length uint32) error {
	s.len = length
	for {
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), uintptr(s.level), uintptr(option),
			uintptr(value), uintptr(unsafe.Pointer(&s.len)), 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return errno
	}
}
