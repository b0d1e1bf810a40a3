package probe

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// openPod finds the network namespace of a pod by an address that it has, by the number of a process, or by the name or
// path of the namespace. An address is looked for among those of all processes, without entering any namespace.
func openPod(from string) (*os.File, error) {
	path := from
	switch addr, err := netip.ParseAddr(from); {
	case err == nil:
		if path, err = namespaceOf(addr); err != nil {
			return nil, err
		}
	case isNumber(from):
		path = "/proc/" + from + "/ns/net"
	case !strings.Contains(from, "/"):
		path = filepath.Join("/run/netns", from)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace of pod %s: %w", from, err)
	}
	return f, nil
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 31)
	return err == nil
}

func namespaceOf(addr netip.Addr) (string, error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return "", err
	}
	seen := map[string]bool{}
	for _, p := range processes {
		ns, err := os.Readlink(p + "/ns/net")
		if err != nil || seen[ns] {
			continue // it has ended, or may not be asked
		}
		seen[ns] = true
		if has(p, addr.Unmap()) {
			return p + "/ns/net", nil
		}
	}
	return "", fmt.Errorf("find pod %s: no process has that address", addr)
}

// has tells whether an address is local in the network namespace of a process.
func has(process string, addr netip.Addr) bool {
	if addr.Is6() {
		b, err := os.ReadFile(process + "/net/if_inet6")
		return err == nil && bytes.Contains(b, []byte(hex.EncodeToString(addr.AsSlice())))
	}
	b, err := os.ReadFile(process + "/net/fib_trie")
	if err != nil {
		return false
	}
	_, rest, found := strings.Cut(string(b), "|-- "+addr.String()+"\n")
	next, _, _ := strings.Cut(rest, "\n")
	return found && strings.Contains(next, "host LOCAL")
}
