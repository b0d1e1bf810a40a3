package proc

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mark is a socket that does nothing but lie in a network namespace. Every process of that namespace, and no other, has it
// in its /proc/PID/net/netlink, which anybody may read: so it tells who belongs there without CAP_SYS_PTRACE.
type mark struct {
	fd    int
	inode uint64
}

// openMark makes a mark in the network namespace of the calling thread.
func openMark() (mark, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return mark{}, err
	}
	// The kernel lists a socket from when it has an address.
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err != nil {
		unix.Close(fd)
		return mark{}, err
	}
	return mark{fd: fd, inode: st.Ino}, nil
}

// bears tells whether a process sees the mark.
func (fs *FS) bears(pid int, m mark) (bool, error) {
	table, err := fs.take(pid, "net/netlink", maxMounts)
	if err != nil {
		return false, err
	}
	inodes, err := parseInodes(table)
	if err != nil {
		return false, fmt.Errorf("read sockets: %w", err)
	}
	return inodes[m.inode], nil
}
