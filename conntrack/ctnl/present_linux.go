package ctnl

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

// What keeps this package from reading at all.
var (
	// ErrNotPresent: the kernel has no conntrack netlink, or has not loaded it. It is not asked for then: asking loads it.
	ErrNotPresent = errors.New("not present")
	// ErrPrivilege: the kernel answers only holders of CAP_NET_ADMIN in the user namespace that owns the network namespace.
	ErrPrivilege = errors.New("needs CAP_NET_ADMIN")
)

// present tells whether the kernel can be asked in the calling thread's network namespace without making it load a module:
// opening a netfilter socket requests nfnetlink, and a first message to a subsystem requests that. root is the root of the
// file system.
func present(root fs.FS) error {
	sockets, err := fs.ReadFile(root, "proc/thread-self/net/netlink")
	if err != nil {
		return fmt.Errorf("look for nfnetlink: %w", err)
	}
	if !hasNfnetlink(string(sockets)) {
		return fmt.Errorf("nfnetlink: %w", ErrNotPresent)
	}
	if _, err := fs.Stat(root, "sys/module/nf_conntrack_netlink"); err == nil {
		return nil
	}
	return builtIn(root)
}

// hasNfnetlink looks in the list of netlink sockets for the kernel's own of protocol 12, NETLINK_NETFILTER.
func hasNfnetlink(sockets string) bool {
	for line := range strings.Lines(sockets) {
		fields := strings.Fields(line)
		if len(fields) > 2 && fields[1] == "12" && fields[2] == "0" {
			return true
		}
	}
	return false
}

// builtIn looks for conntrack netlink among the symbols of the kernel: code that is no module has no entry in /sys/module.
// The search takes some 60 ms.
func builtIn(root fs.FS) error {
	f, err := root.Open("proc/kallsyms")
	if err != nil {
		return fmt.Errorf("look for conntrack netlink: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if bytes.Contains(lines.Bytes(), []byte(" ctnetlink_dump_table")) {
			return nil
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("look for conntrack netlink: %w", err)
	}
	return fmt.Errorf("conntrack netlink: %w", ErrNotPresent)
}

// explain names the privilege that is missing.
func explain(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %w", ErrPrivilege, err)
	}
	return err
}
