// Package nfnl tells whether the kernel's netfilter netlink subsystems are there, without making the kernel load them: opening
// a netfilter socket requests the module nfnetlink, and a first message to a subsystem requests that subsystem's.
package nfnl

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// What keeps a subsystem from being asked at all.
var (
	// ErrNotPresent: the kernel has no such subsystem, or has not loaded it.
	ErrNotPresent = errors.New("not present")
	// ErrPrivilege: the kernel answers only holders of CAP_NET_ADMIN in the user namespace that owns the network namespace.
	ErrPrivilege = errors.New("needs CAP_NET_ADMIN")
)

// Explain names the privilege that is missing.
func Explain(err error) error {
	if errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("%w: %w", ErrPrivilege, err)
	}
	return err
}

// Subsystem is one part of netfilter that is asked through netlink.
type Subsystem struct {
	name   string // for people
	module string // where it is one
	option string // of the kernel's configuration
	symbol string // a function of it
}

// The subsystems.
var (
	Tables    = Subsystem{"nf_tables", "nf_tables", "CONFIG_NF_TABLES", "nf_tables_newrule"}
	Conntrack = Subsystem{"conntrack netlink", "nf_conntrack_netlink", "CONFIG_NF_CT_NETLINK", "ctnetlink_dump_table"}
)

// Present returns nil if the subsystem can be asked in the calling thread's network namespace. root is the root of the file
// system.
func Present(root fs.FS, s Subsystem) error {
	sockets, err := fs.ReadFile(root, "proc/thread-self/net/netlink")
	if err != nil {
		return fmt.Errorf("look for nfnetlink: %w", err)
	}
	if !hasNfnetlink(string(sockets)) {
		return fmt.Errorf("nfnetlink: %w", ErrNotPresent)
	}
	if _, err := fs.Stat(root, "sys/module/"+s.module); err == nil {
		return nil
	}
	builtIn, err := s.builtIn(root)
	switch {
	case err != nil:
		return fmt.Errorf("look for %s: %w", s.name, err)
	case !builtIn:
		return fmt.Errorf("%s: %w", s.name, ErrNotPresent)
	}
	return nil
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

// builtIn tells whether the subsystem is part of the kernel itself: code that is no module has no entry in /sys/module. The
// kernel's configuration tells it in a millisecond, where the kernel gives it; its list of symbols takes some 60 ms.
func (s Subsystem) builtIn(root fs.FS) (bool, error) {
	f, err := root.Open("proc/config.gz")
	if err != nil {
		return s.hasSymbol(root)
	}
	defer f.Close()
	plain, err := gzip.NewReader(f)
	if err != nil {
		return s.hasSymbol(root)
	}
	lines := bufio.NewScanner(plain)
	want := []byte(s.option + "=y")
	for lines.Scan() {
		if bytes.Equal(lines.Bytes(), want) {
			return true, nil
		}
	}
	if lines.Err() != nil {
		return s.hasSymbol(root)
	}
	return false, nil
}

func (s Subsystem) hasSymbol(root fs.FS) (bool, error) {
	f, err := root.Open("proc/kallsyms")
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	want := []byte(" " + s.symbol)
	for lines.Scan() {
		if bytes.Contains(lines.Bytes(), want) {
			return true, nil
		}
	}
	return false, lines.Err()
}
